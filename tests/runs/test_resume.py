"""An interrupted and resumed run ends like an uninterrupted one, bit by bit."""

import pytest

from eblvm_lit.errors import ConfigError, DataError
from helpers.shell import checkpoint, curves, of_checkpoint, same, same_state, train

# Options of a run whose learning rate falls. It has validations at iterations 15 and 30, checkpoints at multiples of 7,
# and three epochs of 11 minibatches, of which the last is short.
LONG = (
    *("trainer.max_steps=30", "n_validations=2", "callbacks.checkpoints.every=7", "data.batch_size=128"),
    *("optimizer.lr=0.01", "final_lr=1e-4", "seed=3"),
)
METHODS = {
    "dsm": ("method=dsm",),
    # The hypergradients warm and penalty keep a state between iterations.
    "warm": ("method=bidsm", "method.n_lower_steps=1", "hypergradient=warm", "hypergradient.reset_every=25"),
    "penalty": (
        *("method=bidsm", "method.n_lower_steps=1", "hypergradient=penalty", "hypergradient.n_steps=1"),
        "hypergradient.multiplier=100",
    ),
    "lebm": (
        *("method=lebm", "model=latent_prior_toy", "latent_langevin.n_steps=2"),
        *("method.posterior_langevin.n_steps=2", "method.posterior_langevin.step_size=0.001"),
    ),
}
CRASH = ("allow_packages=[helpers]", "+callbacks.crash._target_=helpers.stopping.CrashAt")


def crash(folder, iteration, *overrides):
    """Start a run that ends in the middle of an iteration."""
    with pytest.raises(RuntimeError, match="crashed on purpose"):
        train(folder, *LONG, *CRASH, f"+callbacks.crash.iteration={iteration}", *overrides)


@pytest.mark.parametrize(
    ("method", "crashed", "saved"),
    [("dsm", 16, 15), ("warm", 24, 21), ("lebm", 24, 21), pytest.param("penalty", 24, 21, marks=pytest.mark.slow)],
)
def test_a_crashed_run_resumes_bit_by_bit(method, crashed, saved, tmp_path):
    crash(tmp_path / "run" / "crashed", crashed, *METHODS[method])
    assert checkpoint(tmp_path / "run" / "crashed")["global_step"] == saved
    # ckpt=last finds the run below outputs_dir
    train(tmp_path / "run" / "resumed", *LONG, *METHODS[method], "ckpt=last")
    train(tmp_path / "straight", *LONG, *METHODS[method])
    for name in ("last", "best"):
        assert same_state(tmp_path / "run" / "resumed", tmp_path / "straight", name)
    # The curves of the resumed run also contain the rows before the crash.
    assert curves(tmp_path / "run" / "resumed") == curves(tmp_path / "straight")


def test_a_run_on_a_few_minibatches_goes_on_with_the_next_of_them(tmp_path):
    few = (*METHODS["dsm"], "+trainer.overfit_batches=4")
    train(tmp_path / "straight", *LONG, *few)
    crash(tmp_path / "crashed", 24, *few)
    train(tmp_path / "resumed", *LONG, *few, f"ckpt={tmp_path}/crashed/checkpoints/last.ckpt")
    assert same_state(tmp_path / "resumed", tmp_path / "straight")
    assert curves(tmp_path / "resumed") == curves(tmp_path / "straight")


def test_the_best_of_the_earlier_part_is_still_selected(tmp_path):
    # With this learning rate, every step after the first validation makes the model worse.
    worse = [*LONG, "optimizer.lr=3", "method=dsm", "test_checkpoint=best"]
    whole = of_checkpoint(train(tmp_path / "whole" / "run", *worse))
    assert whole["iteration"] < 30
    with pytest.raises(RuntimeError):
        train(tmp_path / "crashed", *worse, *CRASH, "+callbacks.crash.iteration=24")
    assert of_checkpoint(train(tmp_path / "resumed", *worse, "ckpt=last")) == whole


BACK = ("method=dsm", "callbacks.checkpoints.every=5", "callbacks.checkpoints.keep=null", "test_checkpoint=best")


def test_after_going_back_the_best_is_not_of_the_part_that_is_left_out(tmp_path):
    # The run improves until its end. If it is resumed from the middle with a larger learning rate, it becomes worse.
    assert train(tmp_path / "run", *LONG, *BACK)["iteration"] == 30
    middle = tmp_path / "run" / "checkpoints" / "iteration_15.ckpt"
    allowed = ("optimizer.lr=3", "resume.allow=[optimizer.lr]", f"ckpt={middle}")
    for into in ("other", "run"):
        # The best checkpoint must be that of iteration 15, from which the run is resumed.
        assert train(tmp_path / into, *LONG, *BACK, *allowed)["iteration"] == 15
        best = checkpoint(tmp_path / into, "best")
        held = checkpoint(tmp_path / "run", "iteration_15")
        assert same(best["state_dict"], held["state_dict"])


def test_a_finished_run_can_be_trained_longer_or_only_evaluated_again(tmp_path):
    constant, longer = (("method=dsm", f"trainer.max_steps={5 * n}", f"n_validations={n}") for n in (2, 4))
    train(tmp_path / "short", *constant)
    short = tmp_path / "short" / "checkpoints" / "last.ckpt"
    assert train(tmp_path / "again", *constant, f"ckpt={short}", "sampler.n_steps=7")["iteration"] == 10
    for name in ("last", "best"):  # the samples of a loaded model are drawn with the settings of its own run
        assert checkpoint(tmp_path / "again", name)["eblvm_lit"]["config"]["sampler"]["n_steps"] == 7
        assert same_state(tmp_path / "again", tmp_path / "short", name)
    train(tmp_path / "longer", *longer, f"ckpt={short}")
    train(tmp_path / "whole", *longer)
    assert same_state(tmp_path / "longer", tmp_path / "whole")
    with pytest.raises(ConfigError, match=r"is of iteration 20, beyond trainer.max_steps=10"):
        train(tmp_path / "beyond", *constant, f"ckpt={tmp_path / 'longer'}")


def test_last_is_a_run_of_the_same_kind(tmp_path):
    train(tmp_path / "mine", "method=dsm", "trainer.max_steps=2", "n_validations=1")
    other_length = ("method=dsm", "trainer.max_steps=4", "n_validations=1", "trainer.log_every_n_steps=2")
    assert train(tmp_path / "next", *other_length, "ckpt=last")["iteration"] == 4
    for other in ("seed=7", "method=ssm", "data.batch_size=32"):
        with pytest.raises(DataError, match="ckpt=last: no run"):
            train(tmp_path / "other", *other_length, other, "ckpt=last")
    with pytest.raises(DataError, match=r"last\.ckpt was trained with seed=1234, not 7: .*resume\.allow=\[seed\]"):
        train(tmp_path / "other", *other_length, "seed=7", "ckpt=last")


def test_iterations_in_blocks_are_the_same_iterations(tmp_path):
    # Validations are at iterations 20 and 40. Blocks of four iterations extend over the short minibatch that ends an
    # epoch.
    blocks = ("trainer.max_steps=40", "n_validations=2", "optimizer.lr=0.01", "final_lr=1e-4", "seed=3")
    for n in (1, 4):
        per = (f"iterations_per_batch={n}", f"trainer.log_every_n_steps={n}")
        train(tmp_path / str(n), *blocks, *per, *METHODS["lebm"])
    for name in ("last", "best"):
        assert same_state(tmp_path / "4", tmp_path / "1", name)
    one_by_one = {row["iteration"]: row for row in curves(tmp_path / "1")}
    assert curves(tmp_path / "4") == [one_by_one[row["iteration"]] for row in curves(tmp_path / "4")]
