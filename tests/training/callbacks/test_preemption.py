"""Signals in the phases of a run: its exit code, its checkpoint, and the run that resumes from it."""

import signal

import pytest
import torch.multiprocessing as mp

from eblvm_lit.core import fast_paths
from eblvm_lit.training.callbacks.preemption import InterruptedRunError
from helpers.launching import RUN, Launch
from helpers.phases import send_in
from helpers.shell import checkpoint, curves, same_state, train

pytestmark = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

DSM = ("method=dsm",)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    train(folder, *RUN, *DSM)
    return folder


@pytest.mark.parametrize(
    ("phase", "name", "saved"),
    [("first iteration", "SIGTERM", 1), ("training", "SIGUSR1", 9), ("validation", "SIGINT", 12)],
)
def test_a_signal_saves_stops_and_loses_nothing(phase, name, saved, straight, tmp_path):
    started = Launch(tmp_path, *DSM, n=1, prepare=lambda: send_in(phase, name))
    assert started.wait() == 128 + getattr(signal, name), started.said
    assert f"Stopped by {name} after iteration {saved}; resume with the same command and ckpt=" in started.said
    assert "Traceback" not in started.said
    assert checkpoint(started.run)["global_step"] == saved
    assert not (started.run / "metrics.json").exists()
    train(started.run, *RUN, *DSM, "ckpt=last")
    assert same_state(started.run, straight)
    assert curves(started.run) == curves(straight)


def test_a_signal_to_one_of_two_processes_stops_both(tmp_path):
    started = Launch(tmp_path, *DSM, n=2, prepare=lambda: send_in("training", "SIGTERM", 1))
    assert started.wait() == 143, started.said
    assert checkpoint(started.run)["global_step"] == 10


def test_a_second_signal_does_what_python_does(tmp_path):
    def prepare():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of pytest-xdist ignore it
        send_in("training", "SIGINT")
        send_in("training", "SIGINT")

    started = Launch(tmp_path, *DSM, n=1, prepare=prepare)
    assert started.wait() == 1, started.said
    assert checkpoint(started.run)["global_step"] == 8  # no further one


def test_a_signal_while_an_iteration_is_compiled_saves_that_iteration(tmp_path, monkeypatch):
    handler = signal.getsignal(signal.SIGTERM)
    short = (*DSM, "method.compile=true", "trainer.max_steps=10", "n_validations=1")

    def compile_graph(graph, inputs):
        if len(list(tmp_path.glob("run/checkpoints/*"))) == 0:
            signal.raise_signal(signal.SIGTERM)
        return lambda *inputs: graph(*inputs)  # traced only

    monkeypatch.setattr(fast_paths, "inductor", compile_graph)
    with pytest.raises(InterruptedRunError, match="Stopped by SIGTERM after iteration 1"):
        train(tmp_path / "run", *short)
    assert signal.getsignal(signal.SIGTERM) is handler
    train(tmp_path / "run", *short, "ckpt=last")
    train(tmp_path / "straight", *short)
    assert same_state(tmp_path / "run", tmp_path / "straight")
