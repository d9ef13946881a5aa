"""Tests of runs that are killed while they write: what is lost, how they resume, and what remains in their folders."""

import json
import os
import signal

import pytest
import torch.multiprocessing as mp

from eblvm_lit.runs import run
from helpers.launching import RUN, Forked
from helpers.shell import checkpoint, curves, of_checkpoint, same_state, tiny

pytestmark = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

SHORT = (
    *RUN,
    *("method=dsm", "trainer.max_steps=3", "n_validations=1", "summary=false", "callbacks.progress=null"),
    *("callbacks.checkpoints.every=1", "iterations_per_batch=1", "callbacks.evaluation.at_validation=[]"),
)
FIGURES = "callbacks.figures={_target_: eblvm_lit.training.callbacks.figures.Figures, save_dir: %s, figures: %s}"
FILTERS = "{filters: {_target_: eblvm_lit.figures.filters.Filters, n: 4}}"


def short(folder, *overrides):
    """Return the configuration of a short run with a figure at its end."""
    return tiny(folder, *SHORT, FIGURES % (folder, FILTERS), *overrides)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Train an uninterrupted run."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    run.train(short(folder))
    return folder


def kill_in(moment, folder):
    """Start a run that is killed at a given moment, while it writes a file.

    The moment is before or after its second checkpoint gets its final name, or before its figure does.
    """
    replace = os.replace
    n_saved = 0

    def rename(source, target):
        nonlocal n_saved
        n_saved += "last.ckpt" in str(target)
        if moment == ("figure" if str(target).endswith(".png") else "in a checkpoint" if n_saved == 2 else None):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if moment == "between two" and n_saved == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = rename
    run.train(short(folder))


@pytest.mark.parametrize(("moment", "saved"), [("in a checkpoint", 1), ("between two", 2), ("figure", 3)])
def test_a_killed_run_resumes_bit_by_bit_and_leaves_no_temporary_file(moment, saved, straight, tmp_path):
    folder = tmp_path / "run"
    process = Forked(kill_in, moment, folder)
    process.wait(100)
    assert process.returncode == -signal.SIGKILL
    assert checkpoint(folder)["global_step"] == saved  # no iteration that had been saved is lost
    run.train(short(folder, "ckpt=last"))
    for name in ("last", "best"):
        assert same_state(folder, straight, name)
    assert curves(folder) == curves(straight)
    found, wanted = (of_checkpoint(json.loads((run / "metrics.json").read_text())) for run in (folder, straight))
    assert found == wanted
    found, wanted = ({path.relative_to(run) for path in run.rglob("*") if path.is_file()} for run in (folder, straight))
    assert found == wanted
