"""A run that is killed at any moment of its writing: what it loses, how it is resumed, what is left in its folder."""

import os
import signal

import pytest
import torch.multiprocessing as mp

from crash_points import Points
from eblvm_lit.training.checkpoint_io import load_checkpoint
from eblvm_lit.utils.run_files import read_metrics
from launching import Forked
from shell import curves, of_checkpoint, same_state, train

# Checkpoints after each of three iterations, a validation after the third, and one earlier checkpoint that is kept.
SHORT = (
    *("method=dsm", "trainer.max_steps=3", "n_validations=1", "summary=false", "show_config=false", "seed=5"),
    *(
        "callbacks.checkpoints.every=1",
        "callbacks.checkpoints.keep=1",
        "method.compile=false",
        "callbacks.progress=null",
    ),
    *("trainer.enable_progress_bar=false", "callbacks.evaluation.at_validation=[]"),
)


@pytest.fixture(scope="module")
def met(tmp_path_factory):
    """An uninterrupted run, its moments, and the folder as it was at each of them."""
    folder = tmp_path_factory.mktemp("straight")
    with Points(folder / "run", folder / "copies") as points:
        train(folder / "run", *SHORT)
    return folder, points


def check_resumed(folder, saved, straight):
    """Resume as a user does, and compare."""
    last = folder / "checkpoints" / "last.ckpt"
    assert last.exists() == (saved is not None)
    if saved is not None:
        assert load_checkpoint(last)["global_step"] == saved  # nothing that was saved is lost
    train(folder, *SHORT, *(["ckpt=last"] if last.exists() else []))
    for name in ("last", "best"):
        assert same_state(folder, straight, name)
    assert curves(folder) == curves(straight)
    files = [folder / "metrics.json", straight / "metrics.json"]
    assert of_checkpoint(read_metrics(files[0])) == of_checkpoint(read_metrics(files[1]))
    names = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert names == {path.relative_to(straight) for path in straight.rglob("*") if path.is_file()}


def test_a_run_killed_in_any_kind_of_write_resumes_bit_by_bit_and_leaves_no_temporary_file(met):
    folder, points = met
    kinds = [(what, name.replace(f".{os.getpid()}.", ".")) for what, name in points.met]
    chosen = {kinds.index(kind) for kind in kinds if kind[0] in ("write", "rename", "link")}  # the first of each
    chosen |= {i for i, (what, name) in enumerate(kinds) if what == "rename" and name.endswith("last.ckpt")}
    chosen.add(len(kinds) - 1)
    for i in sorted(chosen):
        check_resumed(folder / "copies" / str(i), points.saved_at[i], folder / "run")


@pytest.mark.slow
@pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")
def test_a_run_killed_at_each_of_all_moments_resumes_bit_by_bit(met, tmp_path):
    folder, points = met

    def work(at):
        with Points(tmp_path / str(at), kill_at=at):
            train(tmp_path / str(at), *SHORT)
        os._exit(0)

    for at in range(len(points.met)):
        process = Forked(work, at)
        process.wait(100)
        assert process.returncode == -signal.SIGKILL
        check_resumed(tmp_path / str(at), points.saved_at[at], folder / "run")
