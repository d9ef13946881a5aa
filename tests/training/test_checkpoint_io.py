"""A run that is killed while it writes: what it loses, how it is resumed, what is left in its folder."""

import json
import os
import signal

import pytest
import torch.multiprocessing as mp

from eblvm_lit.cli import run
from helpers.launching import Forked
from helpers.shell import checkpoint, curves, of_checkpoint, same_state, tiny

pytestmark = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

SHORT = (
    *("method=dsm", "trainer.max_steps=3", "n_validations=1", "summary=false", "seed=5", "method.compile=false"),
    *("callbacks.checkpoints.every=1", "callbacks.progress=null", "trainer.enable_progress_bar=false"),
    *("iterations_per_batch=1", "callbacks.evaluation.at_validation=[]"),
)
FIGURES = "callbacks.figures={_target_: eblvm_lit.training.callbacks.figures.Figures, save_dir: %s, figures: %s}"
FILTERS = "{filters: {_target_: eblvm_lit.figures.filters.Filters, n: 4}}"


def short(folder, *overrides):
    """The configuration of such a run, with a figure at its end."""
    return tiny(folder, *SHORT, FIGURES % (folder, FILTERS), *overrides)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    run.train(short(folder))
    return folder


def killed(folder, moment):
    """A run that is killed in its second checkpoint, between that and the next, or in its figure."""
    writes = []
    flush, replace = os.fsync, os.replace

    def count(what, path):
        writes.append((what, str(path)))
        n = sum(kind == what and "last.ckpt" in name for kind, name in writes)
        figure = moment == "figure" and what == "rename" and str(path).endswith(".png")
        if figure or (moment == what and n == 2):
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(descriptor):
        count("write", os.readlink(f"/proc/self/fd/{descriptor}"))
        flush(descriptor)

    def rename(source, target):
        if moment != "after":
            count("rename", target)
        replace(source, target)
        if moment == "after":
            count("after", target)

    def work():
        os.fsync, os.replace = fsync, rename
        run.train(short(folder))
        os._exit(0)

    process = Forked(work)
    process.wait(100)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("moment", "saved"), [("write", 1), ("rename", 1), ("after", 2), ("figure", 3)])
def test_a_killed_run_resumes_bit_by_bit_and_leaves_no_temporary_file(moment, saved, straight, tmp_path):
    folder = tmp_path / "run"
    killed(folder, moment)
    assert checkpoint(folder)["global_step"] == saved  # nothing that was saved is lost
    run.train(short(folder, "ckpt=last"))
    for name in ("last", "best"):
        assert same_state(folder, straight, name)
    assert curves(folder) == curves(straight)
    files = [folder / "metrics.json", straight / "metrics.json"]
    assert of_checkpoint(json.loads((files[0]).read_text())) == of_checkpoint(json.loads((files[1]).read_text()))
    names = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert names == {path.relative_to(straight) for path in straight.rglob("*") if path.is_file()}
