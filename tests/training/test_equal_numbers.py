"""Tests that every number that is logged, or decides something, is the same in one process and in several."""

import shutil
import sys
from itertools import product
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as mp

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data import digits
from eblvm_lit.data.base import Splits
from eblvm_lit.data.batches import OrderedBatches
from eblvm_lit.runs import run
from eblvm_lit.runs.build import build
from helpers.every_metric import METRICS
from helpers.image_files import write_mnist
from helpers.launching import RUN
from helpers.processes import in_processes, make
from helpers.shell import close, configured, curves, tiny

pytestmark = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

EMA = ("method=bidsm", "method.n_lower_steps=1", "method.n_unroll=1", "callbacks=ema", "eval_weights=both")


def config(folder, size):
    """Return the configuration of a short run in some processes."""
    batches = ("data.batch_size=61", "data.eval_batch_size=1", "trainer.max_steps=6")
    return tiny(folder / "run", *RUN, *EMA, *batches, "test_checkpoint=both", f"trainer.devices={size}")


def train(cfg):
    """Return the final metrics of a run with two examples for validation and two for testing.

    The new division of the digits ends with this process.
    """
    digits.SIZES = (1793, 2, 2)
    digits.split.cache_clear()
    assert [len(part) for part in digits.split("data")] == [1793, 2, 2]
    return run.train(cfg)


def metrics(built):
    """Return all metrics of untrained methods, by data set and number of examples."""
    found = {}
    for name, parts in built.items():
        parts.data.setup()
        parts.method.double().eval()
        whole = parts.data.splits
        labels = parts.data.labels
        evaluation = parts.callbacks["evaluation"]
        # Metrics compute images in one batch of up to 1000, or in batches of 2, of which the last process has only a
        # part.
        for n, rows in ((2, 1000), (7, 2)):
            parts.data.splits, parts.data.labels = (
                x and Splits(x.train[:200], x.val[:n], x.test[:n]) for x in (whole, labels)
            )
            for metric in evaluation.metrics.values():
                if hasattr(metric, "features"):
                    metric.features.batch_size = rows
            found[name, n] = evaluation.test(parts.method, parts.data)
    return found


def validation_losses(method, like):
    """Return the validation loss and the expected mean for each number of examples and each batch size."""
    method.trainer = trainer = SimpleNamespace(callback_metrics={})
    method.validation_loss = lambda v, generator: v.flatten(1).sum(1)
    found = {}
    means = {}
    for n, rows in product((1, 2, 7), (1, 2, 4)):
        examples = torch.rand(n, *like.shape[1:], dtype=like.dtype, generator=keyed_generator(0, n))
        means[n, rows] = float(examples.flatten(1).sum(1).mean())
        method.on_validation_epoch_start()
        for i, v in enumerate(OrderedBatches(examples, batch_size=rows, distributed=True)):
            method.validation_step(v, i)
        method.on_validation_epoch_end()
        found[n, rows] = float(trainer.callback_metrics["val/loss"])
    return found, means


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Return a folder, and the results of one process and of three processes in it.

    The results of a process are the numbers that it computed and the files that it opened for writing.
    """
    folder = tmp_path_factory.mktemp("numbers")
    write_mnist(folder, n_test=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBLVM_DATA", str(folder))
        method = make("vages_dsm", folder / "method")
        cache = folder / "cache"
        folders = (f"run_dir={folder}", f"cache_dir={cache}")
        # Everything is composed and built here, once: the processes of both runs are forked from this one.
        built = {name: build(configured("debug=fast", *folders, *options)) for name, options in METRICS.items()}
        configs = {size: config(folder / str(size), size) for size in (1, 3)}

        def work(size):
            written = []

            def watch(event, args):
                if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
                    written.append(str(args[0]))

            sys.addaudithook(watch)
            found = validation_losses(*method), metrics(built)
            del written[:]
            return *found, train(configs[size]), [path for path in written if str(folder) in path]

        (one,) = in_processes(1, folder, lambda rank: work(1))
        shutil.rmtree(cache)  # the three processes must not find what the one has drawn
        three = in_processes(3, folder, lambda rank: work(3))
        yield folder, one, three


def equal(found, expected):
    """Check that numbers in float64 are equal, except for rounding errors from another order of sums."""
    found, expected = ({k: x for k, x in named.items() if "per_second" not in k} for named in (found, expected))
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_the_validation_loss_is_the_mean_over_the_examples_of_all_processes(numbers):
    _, one, three = numbers
    for (found, means), *_ in (one, *three):
        assert found == pytest.approx(means, rel=1e-12)


def test_each_batch_of_a_validation_has_noise_of_its_own_whatever_process_has_it(tmp_path):
    method, like = make("dsm", tmp_path / "run")
    loss = method.validation_loss
    v = torch.zeros(1, *like.shape[1:], dtype=like.dtype)

    def work(rank):
        drawn = []
        method.validation_loss = lambda v, generator: drawn.append(loss(v, generator)) or drawn[-1]
        method.on_validation_epoch_start()
        for i in range(3):
            method.validation_step(v, i)
        return torch.cat(drawn).tolist()

    drawn = [loss for found in in_processes(2, tmp_path, work) for loss in found]
    assert len(drawn) == len({*drawn}) == 6


def test_every_metric_is_the_same(numbers):
    _, (_, one, *_), three = numbers
    assert {name for found in one.values() for name in found} >= {"test/log_likelihood", "test/auroc_noise", "test/kl"}
    for _, found, *_ in three:
        for key, expected in one.items():
            equal(found[key], expected)


def test_a_run_leaves_the_same_numbers_and_the_same_best_checkpoint(numbers):
    folder, (_, _, one, _), three = numbers
    for _, _, found, _ in three:
        equal(found, one)  # the numbers include best_iteration and val/loss
    for found, expected in zip(*(curves(folder / size / "run") for size in ("3", "1")), strict=True):
        equal(found, expected)
    for name in ("best", "last"):
        assert close(folder / "1" / "run", folder / "3" / "run", 1e-10, name)


def test_only_the_first_process_writes(numbers):
    folder, _, three = numbers
    by_first, *by_others = (written for *_, written in three)
    assert any("last.ckpt" in path for path in by_first)
    assert by_others == [[], []]
    assert not list(folder.rglob("*.tmp"))
