"""Tests of signals in the phases of a run: its exit code, its checkpoint, and the run that resumes from it."""

import os
import signal

import pytest
import torch.multiprocessing as mp
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.core import fast_paths
from eblvm_lit.methods.base import Method
from eblvm_lit.training.callbacks.preemption import InterruptedRunError, stopping_signals
from helpers.launching import RUN, Launch
from helpers.shell import checkpoint, curves, same_state, train

forking = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

DSM = (*RUN, "method=dsm")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Train an uninterrupted run."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    train(folder, *DSM)
    return folder


def send_at(iteration, number, during="training_step", rank=0, patch=setattr):
    """Make this process, and those that it forks, receive a signal in an iteration or in the validation after it."""
    function = getattr(Method, during)
    sent = []

    def called(method, v, i):
        if rank_zero_only.rank == rank and not sent and method.iterations_done == iteration:
            sent.append(number)
            os.kill(os.getpid(), number)
        return function(method, v, i)

    patch(Method, during, called)


@pytest.mark.parametrize(
    ("during", "iteration", "number", "code", "saved"),
    [
        ("training_step", 8, signal.SIGUSR1, 138, 9),
        ("validation_step", 12, signal.SIGINT, 130, 12),
        ("training_step", 4, signal.SIGHUP, 129, 5),
    ],
    ids=["in an iteration", "in a validation", "a terminal that closes"],
)
def test_a_signal_saves_stops_and_loses_nothing(during, iteration, number, code, saved, straight, tmp_path):
    handler = signal.getsignal(number)
    with pytest.MonkeyPatch.context() as patch:
        send_at(iteration, number, during, patch=patch.setattr)
        with pytest.raises(InterruptedRunError, match=f"Stopped by {number.name} after iteration {saved}; ") as stop:
            train(tmp_path, *DSM)
    assert stop.value.exit_code == code
    assert signal.getsignal(number) is handler  # the old handler is restored, so that a later signal is not ignored
    assert checkpoint(tmp_path)["global_step"] == saved
    assert not (tmp_path / "metrics.json").exists()
    train(tmp_path, *DSM, "ckpt=last")
    assert same_state(tmp_path, straight)
    assert curves(tmp_path) == curves(straight)


def test_what_nohup_ignores_stays_ignored(straight, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.MonkeyPatch.context() as patch:
            send_at(8, signal.SIGHUP, patch=patch.setattr)
            train(tmp_path, *DSM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.SIGHUP not in stopping_signals()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert same_state(tmp_path, straight)


def test_a_signal_while_an_iteration_is_compiled_saves_that_iteration(tmp_path, monkeypatch):
    short = ("method=dsm", "method.compile=true", "trainer.max_steps=3", "n_validations=1")

    def compile_graph(graph, inputs):
        if not list(tmp_path.glob("run/checkpoints/*")):
            signal.raise_signal(signal.SIGTERM)
        return lambda *inputs: graph(*inputs)  # the graph is only traced, not compiled

    monkeypatch.setattr(fast_paths, "inductor", compile_graph)
    with pytest.raises(InterruptedRunError, match="Stopped by SIGTERM after iteration 1;"):
        train(tmp_path / "run", *short)
    train(tmp_path / "run", *short, "ckpt=last")
    train(tmp_path / "straight", *short)
    assert same_state(tmp_path / "run", tmp_path / "straight")


@forking
def test_a_signal_to_one_of_two_processes_stops_both_and_they_say_how_to_resume(tmp_path):
    started = Launch(tmp_path, *DSM, n=2, prepare=lambda: send_at(8, signal.SIGTERM, rank=1))
    assert started.wait() == 143, started.said
    assert checkpoint(started.run)["global_step"] == 10
    assert "resume with the same command and ckpt=" in started.said
    assert "Traceback" not in started.said


@forking
def test_a_second_signal_has_python_s_default_effect(tmp_path):
    def prepare():
        # Workers of pytest-xdist ignore this signal, whose default handler is restored here.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        send_at(8, signal.SIGINT)
        send_at(8, signal.SIGINT)

    started = Launch(tmp_path, *DSM, n=1, prepare=prepare)
    assert started.wait() == 1, started.said
    assert checkpoint(started.run)["global_step"] == 8  # no later checkpoint was written
