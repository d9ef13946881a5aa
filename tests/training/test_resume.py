"""A run that was cut off and gone on with ends as if it had not been, bit by bit."""

import os
import signal
import time
from multiprocessing import get_all_start_methods

import pytest

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.bism import BiSM
from eblvm_lit.optimizers.schedules import Cosine
from eblvm_lit.training.callbacks.preemption import InterruptedRunError
from helpers.launching import Forked
from helpers.shell import TINY, checkpoint, curves, of_checkpoint, same, same_state, start, train

# A rate that falls, validations at 15, 30, 45, 60, checkpoints at multiples of 7 beside them, and three epochs
# of 22 batches the last of which is short.
LONG = (
    *("trainer.max_steps=60", "n_validations=4", "callbacks.checkpoints.every=7"),
    *("optimizer.lr=0.01", "final_lr=1e-4", "seed=3"),
)
METHODS = {
    "dsm": ("method=dsm",),
    "bidsm": ("method=bidsm", "method.n_lower_steps=2", "method.n_unroll=1"),
    "lebm": (
        *("method=lebm", "model=latent_prior_toy", "latent_langevin.n_steps=2"),
        *("method.posterior_langevin.n_steps=2", "method.posterior_langevin.step_size=0.001"),
    ),
    "ed_latent": ("method=ed_latent", "method.n_lower_steps=2", "method.n_negatives=2", "method.noise_std=0.1"),
}
CRASH = ("allow_packages=[helpers]", "+callbacks.crash._target_=helpers.stopping.CrashAt")
PAUSE = (
    "allow_packages=[helpers]",
    "+callbacks.pause._target_=helpers.stopping.PauseAt",
    "+callbacks.pause.iteration=38",
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Uninterrupted runs, by method."""
    folders = {}
    for name, method in METHODS.items():
        folders[name] = tmp_path_factory.mktemp("straight") / name
        train(folders[name], *LONG, *method)
    return folders


def crash(folder, iteration, *overrides):
    """A run that ends in the middle of an iteration."""
    with pytest.raises(RuntimeError, match="crashed on purpose"):
        train(folder, *LONG, *CRASH, f"+callbacks.crash.iteration={iteration}", *overrides)


def equal_from(iteration, one, other):
    return [row for row in curves(one) if row["iteration"] > iteration] == [
        row for row in curves(other) if row["iteration"] > iteration
    ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("crashed_at", "saved_at"),
    [(38, 35), (31, 30), (24, 21), (44, 42)],
    ids=["between", "after a validation", "in the short batch", "after the short batch"],
)
def test_a_crashed_run_goes_on_bit_by_bit(method, crashed_at, saved_at, straight, tmp_path):
    crash(tmp_path / "crashed", crashed_at, *METHODS[method])
    assert checkpoint(tmp_path / "crashed")["global_step"] == saved_at
    train(tmp_path / "resumed", *LONG, *METHODS[method], "ckpt=last")  # found under outputs_dir
    assert same_state(tmp_path / "resumed", straight[method])
    assert same_state(tmp_path / "resumed", straight[method], "best")
    assert curves(tmp_path / "resumed") == curves(straight[method])  # the earlier rows were taken over


@pytest.mark.parametrize(("crashed_at", "saved_at"), [(38, 35), (31, 30), (30, 28)])
def test_a_run_on_a_few_minibatches_goes_on_with_the_next_of_them(crashed_at, saved_at, tmp_path):
    few = (*METHODS["dsm"], "+trainer.overfit_batches=4")
    train(tmp_path / "straight", *LONG, *few)
    crash(tmp_path / "crashed", crashed_at, *few)
    assert checkpoint(tmp_path / "crashed")["global_step"] == saved_at
    train(tmp_path / "resumed", *LONG, *few, f"ckpt={tmp_path}/crashed/checkpoints/last.ckpt")
    assert same_state(tmp_path / "resumed", tmp_path / "straight")
    assert curves(tmp_path / "resumed") == curves(tmp_path / "straight")


# Hypergradients that keep something from one iteration to the next, in half of the iterations.
KEEPING = {
    "adjoint": ("hypergradient=warm", "hypergradient.reset_every=25"),
    "penalty_shift": ("hypergradient=penalty", "hypergradient.n_steps=1", "hypergradient.multiplier=100"),
}
HALF = ("method=bidsm", "method.n_lower_steps=1", "trainer.max_steps=30", "n_validations=2")


@pytest.mark.parametrize("kept", KEEPING)
def test_what_a_hypergradient_keeps_goes_on_bit_by_bit(kept, tmp_path):
    method = (*HALF, *KEEPING[kept])
    train(tmp_path / "straight", *LONG, *method)
    crash(tmp_path / "crashed", 24, *method)
    early, end = (checkpoint(tmp_path / folder)["state_dict"][kept] for folder in ("crashed", "straight"))
    assert early.abs().max() > 0
    assert not same(early, end)
    train(tmp_path / "resumed", *LONG, *method, "ckpt=last", f"outputs_dir={tmp_path / 'crashed'}")
    assert same_state(tmp_path / "resumed", tmp_path / "straight")
    assert curves(tmp_path / "resumed") == curves(tmp_path / "straight")
    for n in (1, 5):
        train(tmp_path / str(n), *in_blocks(n), *method)
    assert same_state(tmp_path / "5", tmp_path / "1")


def test_a_run_goes_on_in_its_own_folder(straight, tmp_path):
    crash(tmp_path, 38, *METHODS["dsm"])
    train(tmp_path, *LONG, *METHODS["dsm"], "ckpt=last")
    assert same_state(tmp_path, straight["dsm"])
    assert curves(tmp_path) == curves(straight["dsm"])


def test_a_run_can_go_on_from_its_best_checkpoint(straight, tmp_path):
    crash(tmp_path / "crashed", 40, *METHODS["bidsm"])
    best = tmp_path / "crashed" / "checkpoints" / "best.ckpt"
    start_at = checkpoint(tmp_path / "crashed", "best")["global_step"]
    train(tmp_path / "resumed", *LONG, *METHODS["bidsm"], f"ckpt={best}")
    assert start_at == 30
    assert same_state(tmp_path / "resumed", straight["bidsm"])
    assert curves(tmp_path / "resumed") == curves(straight["bidsm"])


def test_the_best_of_the_earlier_part_is_still_selected(tmp_path):
    # after the first validation every step makes it worse
    worse = [*LONG, "optimizer.lr=3", "method=dsm", "test_checkpoint=best"]
    whole = of_checkpoint(train(tmp_path / "whole" / "run", *worse))
    assert whole["iteration"] < 30
    with pytest.raises(RuntimeError):
        train(tmp_path / "crashed", *worse, *CRASH, "+callbacks.crash.iteration=38")
    assert of_checkpoint(train(tmp_path / "resumed", *worse, "ckpt=last")) == whole


BACK = ("method=dsm", "callbacks.checkpoints.every=15", "callbacks.checkpoints.keep=null", "test_checkpoint=best")


@pytest.mark.parametrize("into", ["run", "other"], ids=["in its own folder", "in another one"])
def test_after_going_back_the_best_is_not_of_the_part_that_is_left_out(into, tmp_path):
    # the run improves to its end; from its middle on, another rate makes it worse
    assert train(tmp_path / "run", *LONG, *BACK)["iteration"] == 60
    middle = tmp_path / "run" / "checkpoints" / "iteration_30.ckpt"
    allowed = ("optimizer.lr=3", "resume.allow=[optimizer.lr]", f"ckpt={middle}")
    metrics = train(tmp_path / into, *LONG, *BACK, *allowed)
    assert metrics["iteration"] == 30  # the middle itself is the best so far
    assert same(
        checkpoint(tmp_path / into, "best")["state_dict"], checkpoint(tmp_path / "run", "iteration_30")["state_dict"]
    )


def test_a_lost_best_is_told_and_the_best_from_there_on_is_kept(tmp_path, caplog):
    worse = [*LONG, "optimizer.lr=3", *BACK]
    best = train(tmp_path / "run", *worse)["iteration"]
    assert best < 45
    (tmp_path / "run" / "checkpoints" / "best.ckpt").unlink()
    found = train(tmp_path / "other", *worse, f"ckpt={tmp_path / 'run' / 'checkpoints' / 'iteration_45.ckpt'}")
    assert f"of iteration {best}, is gone" in caplog.text
    assert found["iteration"] == 60


def test_after_going_back_the_newest_checkpoints_of_this_run_are_kept(tmp_path):
    train(tmp_path, *LONG, *BACK)
    middle = tmp_path / "checkpoints" / "iteration_15.ckpt"
    train(
        tmp_path,
        *LONG,
        *BACK,
        "callbacks.checkpoints.keep=1",
        f"ckpt={middle}",
        "optimizer.lr=0.02",
        "resume.allow=[optimizer.lr]",
    )
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("iteration_*")) == ["iteration_60.ckpt"]
    assert checkpoint(tmp_path, "iteration_60")["eblvm_lit"]["config"]["optimizer"]["lr"] == 0.02


def test_a_finished_run_can_be_made_longer_or_only_evaluated_again(straight, tmp_path):
    last = straight["dsm"] / "checkpoints" / "last.ckpt"
    constant = ["method=dsm", "trainer.max_steps=20", "n_validations=2"]
    train(tmp_path / "short", *constant)
    short = tmp_path / "short" / "checkpoints" / "last.ckpt"
    again = train(tmp_path / "again", *constant, f"ckpt={short}")
    assert again["iteration"] == 20
    assert checkpoint(tmp_path / "again")["global_step"] == 20
    longer = ["method=dsm", "trainer.max_steps=40", "n_validations=4"]
    train(tmp_path / "longer", *longer, f"ckpt={short}")
    train(tmp_path / "whole", *longer)
    assert same_state(tmp_path / "longer", tmp_path / "whole")
    with pytest.raises(ConfigError, match=r"is of iteration 60, beyond trainer.max_steps=20"):
        train(tmp_path / "beyond", *constant, f"ckpt={last}")


def test_a_rate_that_leaves_its_schedule_is_told_before_and_after(tmp_path, caplog):
    short = ["method=dsm", "trainer.max_steps=4", "n_validations=1", "optimizer.lr=0.01", "final_lr=1e-4"]
    train(tmp_path / "short", *short, "callbacks.evaluation=null")
    last = f"ckpt={tmp_path / 'short'}"
    train(tmp_path / "again", *short, last, "callbacks.evaluation=null")
    assert "model_lr" not in caplog.text
    train(tmp_path / "longer", *short, "trainer.max_steps=8", last, "callbacks.evaluation=null")
    before, now = (Cosine(floor=1e-4)(0.01, *at) for at in ((3, 4), (4, 8)))
    assert f"at iteration 4: model_lr from {before:.3g} to {now:.3g}." in caplog.text


def test_last_is_a_run_of_the_same_kind(straight, tmp_path):
    train(tmp_path / "mine", "method=dsm", "trainer.max_steps=2", "n_validations=1")
    other_length = ["method=dsm", "trainer.max_steps=4", "n_validations=1", "trainer.log_every_n_steps=2"]
    assert train(tmp_path / "next", *other_length, "ckpt=last")["iteration"] == 4
    for other in ("seed=7", "optimizer.lr=0.5", "method=ssm", "data.batch_size=32"):
        with pytest.raises(DataError, match="ckpt=last: no run with this method, data and seed was found"):
            train(tmp_path / "other", *other_length, other, "ckpt=last")


# --- signals ----------------------------------------------------------------------------------------------


def stop_in_a_pause(process, folder, number):
    """Send a signal to a run that waits in iteration 38, and let it go on."""
    while not (folder / "paused").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, number)
    if number != signal.SIGKILL:
        time.sleep(0.2)
    (folder / "go").touch()


def paused_in(folder):
    return (*LONG, *METHODS["bidsm"], *PAUSE, f"+callbacks.pause.folder={folder}")


@pytest.mark.skipif("fork" not in get_all_start_methods(), reason="the run begins where this process is")
def test_a_killed_run_loses_what_came_after_its_last_checkpoint_and_goes_on(straight, tmp_path):
    folder = tmp_path / "killed" / "run"
    process = Forked(train, folder, *paused_in(tmp_path))
    stop_in_a_pause(process, tmp_path, signal.SIGKILL)
    process.wait(120)
    assert process.returncode == -signal.SIGKILL
    assert checkpoint(folder)["global_step"] == 35
    train(tmp_path / "resumed", *LONG, *METHODS["bidsm"], "ckpt=last", f"outputs_dir={folder.parent}")
    assert same_state(tmp_path / "resumed", straight["bidsm"])
    assert equal_from(35, tmp_path / "resumed", straight["bidsm"])
    assert curves(tmp_path / "resumed")[:35] == curves(straight["bidsm"])[:35]


def test_a_terminated_run_ends_the_iteration_in_hand_saves_and_says_how_to_go_on(straight, tmp_path):
    process = start("train.py", *TINY, *paused_in(tmp_path), "hydra.run.dir=run", folder=tmp_path)
    stop_in_a_pause(process, tmp_path, signal.SIGTERM)
    err, folder = process.communicate()[1], tmp_path / "run"
    assert process.returncode == 143
    assert checkpoint(folder)["global_step"] == 38
    assert "Stopped by SIGTERM after iteration 38; resume with the same command and ckpt=" in err
    assert "Traceback" not in err
    assert not (folder / "metrics.json").exists()
    train(tmp_path / "resumed", *LONG, *METHODS["bidsm"], f"ckpt={folder / 'checkpoints' / 'last.ckpt'}")
    assert same_state(tmp_path / "resumed", straight["bidsm"])
    assert curves(tmp_path / "resumed") == curves(straight["bidsm"])


def signal_at(monkeypatch, iteration, *numbers, during="training_step"):
    """Send signals to this process in an iteration (counted from 0), or in the validation after so many."""
    step = getattr(Method, during)

    def step_and_send(self, v, i):
        if self.iterations_done == iteration:
            for number in numbers:
                signal.raise_signal(number)
        return step(self, v, i)

    monkeypatch.setattr(Method, during, step_and_send)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(
    ("during", "iteration", "left_at"),
    [
        ("training_step", 22, 23),
        ("training_step", 29, 30),
        ("validation_step", 30, 30),
        ("training_step", 59, 60),
    ],
    ids=["in an iteration", "before a validation", "in a validation", "in the last iteration"],
)
def test_a_signal_loses_nothing(during, iteration, left_at, number, code, straight, tmp_path, monkeypatch):
    handler = signal.getsignal(number)
    signal_at(monkeypatch, iteration, number, during=during)
    sentence = f"Stopped by {number.name} after iteration {left_at}; "
    with pytest.raises(InterruptedRunError, match=sentence) as stop:
        train(tmp_path / "stopped", *LONG, *METHODS["dsm"])
    assert stop.value.exit_code == code
    assert signal.getsignal(number) is handler  # given back: a later signal is not swallowed
    assert checkpoint(tmp_path / "stopped")["global_step"] == left_at
    monkeypatch.undo()
    train(tmp_path / "resumed", *LONG, *METHODS["dsm"], "ckpt=last")
    assert signal.getsignal(number) is handler
    assert same_state(tmp_path / "resumed", straight["dsm"])
    assert curves(tmp_path / "resumed") == curves(straight["dsm"])


# --- blocks -----------------------------------------------------------------------------------------------

# Validations at 20, 40, 60; blocks of four or five cross the short batches that end an epoch.
BLOCKS = ("trainer.max_steps=60", "n_validations=3", "optimizer.lr=0.01", "final_lr=1e-4", "seed=3")


def in_blocks(n):
    return (*BLOCKS, f"iterations_per_batch={n}", f"trainer.log_every_n_steps={n}")


@pytest.mark.parametrize("method", METHODS)
def test_iterations_in_blocks_are_the_same_iterations(method, tmp_path):
    for n in (1, 4, 5):
        train(tmp_path / str(n), *in_blocks(n), *METHODS[method])
    for n in (4, 5):
        assert same_state(tmp_path / str(n), tmp_path / "1")
        assert same_state(tmp_path / str(n), tmp_path / "1", "best")
        shared = {row["iteration"]: row for row in curves(tmp_path / "1")}
        assert curves(tmp_path / str(n)) == [shared[row["iteration"]] for row in curves(tmp_path / str(n))]


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    """An uninterrupted run without blocks."""
    folder = tmp_path_factory.mktemp("one_by_one")
    train(folder, *in_blocks(1), *METHODS["bidsm"])
    return folder


@pytest.mark.parametrize("blocks", [(5, 5), (5, 4), (4, 1), (1, 5)])
@pytest.mark.parametrize("at", [22, 39, 40])
def test_a_signal_ends_a_block_early_and_the_run_goes_on_in_blocks_of_any_size(
    at, blocks, one_by_one, tmp_path, monkeypatch
):
    before, after = blocks
    draw = BiSM.draw_noise

    def draw_and_send(self, v, generator):
        if self.iterations_done == at:
            signal.raise_signal(signal.SIGTERM)
        return draw(self, v, generator)

    monkeypatch.setattr(BiSM, "draw_noise", draw_and_send)
    with pytest.raises(InterruptedRunError, match=f"Stopped by SIGTERM after iteration {at + 1}; "):
        train(tmp_path / "stopped", *in_blocks(before), *METHODS["bidsm"])
    assert checkpoint(tmp_path / "stopped")["global_step"] == at + 1
    monkeypatch.undo()
    last = tmp_path / "stopped" / "checkpoints" / "last.ckpt"
    train(tmp_path / "resumed", *in_blocks(after), *METHODS["bidsm"], f"ckpt={last}")
    assert same_state(tmp_path / "resumed", one_by_one)
    assert same_state(tmp_path / "resumed", one_by_one, "best")
    validated = [row for row in curves(tmp_path / "resumed") if "val/loss" in row]
    assert validated == [row for row in curves(one_by_one) if "val/loss" in row]
