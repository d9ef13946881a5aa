"""Tests of the moving averages of parameters: their recursion, runs with and without them, and metrics of averages."""

import pytest
import torch

from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.runs import run
from eblvm_lit.training.callbacks.ema import averaged_of
from helpers.image_files import write_cifar10
from helpers.shell import checkpoint, configure, evaluate, of_checkpoint, same, same_state, train

EMA = ("callbacks=ema", "callbacks.ema.decay=0.9")
LONG = (
    *("trainer.max_steps=24", "n_validations=2", "callbacks.checkpoints.every=7", "test_checkpoint=last"),
    *("method=bidsm", "optimizer.lr=0.01", "seed=3", "method.n_lower_steps=1", "method.n_unroll=0"),
)
UNTESTED = "callbacks.evaluation=null"
CRASH = ("allow_packages=[helpers]", "+callbacks.crash._target_=helpers.stopping.CrashAt")
QUICK = ("method=bidsm", "optimizer.lr=0.1", "method.n_lower_steps=1", "method.n_unroll=0", "n_validations=2")
STATISTICS = ("running_mean", "running_var")


def record(monkeypatch):
    """Record all tensors that are averaged, before the first iteration and after each iteration."""
    found = []
    step = Method.step

    def copied(method):
        return {name: x.detach().clone() for name, x in averaged_of(method).items()}

    def step_and_record(self, *args):
        if not found:
            found.append(copied(self))
        record = step(self, *args)
        found.append(copied(self))
        return record

    monkeypatch.setattr(Method, "step", step_and_record)
    return found


def averaged(path, decay, every=1):
    """Compute the moving average of a sequence of values by a plain loop.

    The first value is that before the first iteration, and each other value is that after an iteration.
    """
    average = path[0]
    kept = 1.0
    for t, value in enumerate(path[1:], start=1):
        kept *= min(decay, (1 + t) / (10 + t))
        if t % every == 0:
            average = kept * average + (1 - kept) * value
            kept = 1.0
    return average


IMAGES = (
    *("method=vae", "data=cifar10", "posterior.network.width=2", "generator.width=2", "data.val_size=2"),
    *("data.batch_size=3", "trainer.accelerator=cpu", "trainer.precision=64-true", "logger=none"),
    *("callbacks.figures=null", "callbacks.progress=null", "summary=false", "trainer.max_steps=20", "n_validations=1"),
    *("callbacks=ema", "callbacks.ema.decay=0.5", "callbacks.ema.every=5", "method.compile=false", UNTESTED),
)


def test_averages_are_the_recursion_over_every_iteration_of_parameters_and_statistics(tmp_path, monkeypatch):
    write_cifar10(tmp_path)
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    path = record(monkeypatch)
    # The decay rises with t, and reaches its full value 0.5 at t = 8.
    run.train(configure(*IMAGES, f"run_dir={tmp_path}/run"))
    assert len(path) == 21
    found = checkpoint(tmp_path / "run")["averages"]
    assert found.keys() == path[0].keys()
    assert {name.split(".")[1] for name in found} == {"encoder", "generator"}
    assert {name.rpartition(".")[2] for name in found} == {"weight", "bias", "running_mean", "running_var"}
    for name, average in found.items():
        expected = averaged([values[name] for values in path], 0.5, every=5)
        torch.testing.assert_close(average, expected, rtol=1e-12, atol=1e-14)
    assert any(not torch.allclose(average, path[-1][name], rtol=1e-3) for name, average in found.items())


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Train an uninterrupted run with averages."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    return folder, train(folder, *LONG, *EMA)


def test_training_is_the_same_with_and_without_averages(straight, tmp_path):
    train(tmp_path, *LONG, UNTESTED)
    assert same_state(tmp_path, straight[0])


def test_a_crashed_run_resumes_its_averages_bit_by_bit(tmp_path):
    run = (*LONG, *EMA, UNTESTED, "callbacks.ema.every=4")
    with pytest.raises(RuntimeError, match="crashed on purpose"):
        train(tmp_path / "crashed", *run, *CRASH, "+callbacks.crash.iteration=19")
    assert checkpoint(tmp_path / "crashed")["global_step"] == 14
    train(tmp_path / "resumed", *run, "ckpt=last")
    train(tmp_path / "whole", *run)
    assert same_state(tmp_path / "resumed", tmp_path / "whole")
    resumed, whole = (checkpoint(tmp_path / folder)["averages"] for folder in ("resumed", "whole"))
    assert same(resumed, whole)


def test_a_run_without_averages_has_no_metrics_of_them_and_they_begin_where_it_resumes(tmp_path, caplog):
    train(tmp_path / "raw", *QUICK, UNTESTED)
    last = tmp_path / "raw" / "checkpoints" / "last.ckpt"
    with pytest.raises(ConfigError, match="contains no averages"):
        evaluate(tmp_path / "e", last, "eval_weights=ema")
    again = [*QUICK, UNTESTED, "callbacks=ema", "callbacks.ema.decay=0", f"ckpt={last}"]
    train(tmp_path / "more", *again, "trainer.max_steps=12")
    assert "contains no averages of the parameters" in caplog.text
    content = checkpoint(tmp_path / "more")
    # The averages have decay 0, so that they equal the last parameters.
    assert all(torch.equal(x, content["state_dict"][name]) for name, x in content["averages"].items())


def test_metrics_of_averages_are_those_of_a_model_with_these_parameters(straight, tmp_path):
    folder, metrics = straight
    last = folder / "checkpoints" / "last.ckpt"
    content = checkpoint(folder)
    content["state_dict"].update(content["averages"])
    torch.save(content, tmp_path / "averaged.ckpt")
    expected = evaluate(tmp_path / "averaged", tmp_path / "averaged.ckpt")
    found = evaluate(tmp_path / "ema", last, "eval_weights=ema")
    assert found == expected
    assert found["test/fisher"] != metrics["test/fisher"]
    # By default eval_weights is null, which evaluates the raw parameters, as the run did.
    assert evaluate(tmp_path / "raw", last) == of_checkpoint(metrics)
    both = evaluate(tmp_path / "both", last, "eval_weights=both")
    averaged = {name.replace("test/", "test_ema/"): value for name, value in expected.items()}
    assert both == of_checkpoint(metrics) | averaged


def test_metrics_of_averages_that_there_are_not_are_refused_before_the_first_iteration(tmp_path):
    with pytest.raises(ConfigError, match="eval_weights"):
        train(tmp_path, "method=bidsm", "eval_weights=ema")
    assert not (tmp_path / "checkpoints").exists()
