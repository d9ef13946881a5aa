"""Tests of runs on W&B's dashboards, read back from the files that are written without a network."""

import os

import pytest
from omegaconf import OmegaConf

from eblvm_lit.training.provenance import Job
from helpers.shell import checkpoint, curves, evaluate, train
from helpers.wandb_files import runs_of

OFFLINE = ("logger=wandb", "logger.wandb.offline=true", "method=dsm")
CRASH = ("allow_packages=[helpers]", "+callbacks.crash={_target_: helpers.stopping.CrashAt, iteration: 15}")
JOB = Job("train", experiment="bism_fig3", sweep="2026-01-01/10-00-00", name="seed=0", choices={"method": "dsm"})


@pytest.fixture(scope="module", autouse=True)
def nothing_is_recorded_about_the_environment():
    """Keep W&B from listing the installed packages, and from loading W&B Launch, which starts jobs on other machines.

    Both took half of the time of its first run, and no run of these tests uses them.
    """
    from wandb.sdk.wandb_run import Run  # imported here, because each worker of pytest-xdist imports all files

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_X_SAVE_REQUIREMENTS", "false")
        patch.setattr(Run, "_detect_and_apply_job_inputs", lambda run: None)
        yield


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Train two jobs in one process, and return their folder and the metrics of the second job.

    The second job has a figure, a tag and an artifact, and its checkpoint is evaluated.
    """
    folder = tmp_path_factory.mktemp("sweep")
    filters = "figures: {filters: {_target_: eblvm_lit.figures.filters.Filters, n: 4}}"
    figures = "{_target_: eblvm_lit.training.callbacks.figures.Figures, save_dir: %s, %s}"
    drawn = f"callbacks.figures={figures % (folder / '1', filters)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "current", lambda: JOB)
        patch.delenv("WANDB_MODE", raising=False)
        train(folder / "0", *OFFLINE)
        more = ("logger.wandb.tags=[mine]", "logger.wandb.log_checkpoints=true", "seed=7")
        metrics = train(folder / "1", *OFFLINE, drawn, *more)
        assert "WANDB_MODE" not in os.environ  # This variable would make all later runs of the process offline.
        last = folder / "1" / "checkpoints" / "last.ckpt"
        evaluate(folder / "2", last, "logger=wandb", "logger.wandb.offline=true")
    return folder, metrics


def test_two_jobs_of_one_process_are_two_runs_of_one_group(sweep):
    one, other, evaluation = runs_of(sweep[0])
    assert len({found.run.run_id for found in (one, other, evaluation)}) == 3
    assert {found.run.run_group for found in (one, other, evaluation)} == {"bism_fig3 2026-01-01/10-00-00"}
    assert (one.run.project, one.run.job_type, one.run.display_name) == ("eblvm_lit", "train", "seed=0")
    saved = OmegaConf.to_container(OmegaConf.load(sweep[0] / "1" / "config.yaml"))
    assert other.config == other.config | saved
    assert (one.config["seed"], one.config["job"]["experiment"]) == (1234, "bism_fig3")
    assert list(other.run.tags) == ["mine", "bism_fig3", "dsm"]
    assert one.exit_code == other.exit_code == evaluation.exit_code == 0


def test_curves_are_those_of_the_csv_file_by_iteration(sweep):
    folder, _ = sweep
    for name, found in zip(("0", "1"), runs_of(folder), strict=False):
        by_iteration = {}
        for row in found.rows:
            kept = {k: v for k, v in row.items() if not k.startswith(("_", "figures/", "train/iterations", "trainer/"))}
            by_iteration.setdefault(kept["iteration"], {}).update(kept)
        assert list(by_iteration) == list(range(1, 11))
        assert list(by_iteration.values()) == curves(folder / name)


def test_figures_results_and_checkpoints_are_there(sweep):
    folder, metrics = sweep
    one, other, evaluation = runs_of(folder)
    values = {name: row[name] for row in other.rows for name in row}
    files = next((folder / "1" / "wandb").glob("offline-run-*/files"))
    (figure,) = files.rglob("*.png")
    assert figure.read_bytes() == (folder / "1" / "figures" / "filters.png").read_bytes()
    for name in (name for name in metrics if name.startswith("test")):
        assert values[name] == metrics[name]
    (artifact,) = (found for run in (one, other) for found in run.artifacts if found.type == "model")
    assert {entry.path for entry in artifact.manifest.contents} == {"last.ckpt", "best.ckpt"}
    assert "figures/filters/filenames" in {name for row in evaluation.rows for name in row}


def test_a_resumed_run_is_the_same_run_and_a_failed_run_is_marked_as_failed(tmp_path, capfd):
    mode = ("logger=[csv,wandb]", "logger.wandb.mode=offline", "method=dsm")
    long = (*mode, "trainer.max_steps=20", "n_validations=2")
    with pytest.raises(RuntimeError, match="on purpose"):
        train(tmp_path / "run", *long, *CRASH)
    train(tmp_path / "run", *long, "ckpt=last")
    # W&B must not print lines of its own, which would flood the output of a sweep.
    assert "wandb: " not in "".join(capfd.readouterr())
    first, second = runs_of(tmp_path)
    assert first.run.run_id == second.run.run_id == checkpoint(tmp_path / "run")["loggers"]["WandbRun"]
    # As of wandb 0.31, `wandb sync` appends such a run to the run with the same id on the server.
    assert second.run.resume
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert min(row["iteration"] for row in second.rows) == 11


def test_a_disabled_run_leaves_nothing(tmp_path):
    train(tmp_path, "logger=wandb", "logger.wandb.mode=disabled", "method=dsm")
    assert not [*tmp_path.rglob("*.wandb")]
    assert curves(tmp_path)
