"""Tests of the output of a run at its start and end, which is printed at once and kept in the log file."""

import re
import shlex
import warnings
from pathlib import Path

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from torch.nn.parallel import DistributedDataParallel

from eblvm_lit.cli.output_folder import CheckOutputFolder
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.evaluation.likelihood.ais import AIS, GaussianPath
from eblvm_lit.reports.runs import read_runs
from eblvm_lit.runs.build import build
from eblvm_lit.runs.console import next_steps, quiet, show_results
from eblvm_lit.utils import progress
from eblvm_lit.utils.progress import progress_bar
from helpers.launching import run_script
from helpers.shell import tiny


def commands_of(cfg):
    """Return the commands that a run with this configuration prints at its end."""
    return next_steps(Path(cfg.run_dir), cfg.outputs_dir, build(cfg).method, cfg.trainer.max_steps, cfg.allow_packages)


def test_the_screen_of_a_run_is_a_line_a_table_and_commands_that_work_and_is_in_the_log(tmp_path):
    words = ("debug=fast", "data=line_blobs", "method=dsm", "final_lr=null", "summary=true", "callbacks.figures=null")
    code, said = run_script("train.py", *words, 'hydra.run.dir="lr=0.1 b"', folder=tmp_path)
    assert code == 0, said
    first = re.search(r"(?m)^DSM: .* of LineBlobs; 6 iterations on .*; results in lr=0.1 b$", said)[0]
    last = said.splitlines()[-3:]
    log = (tmp_path / "lr=0.1 b" / "train.log").read_text()
    assert all(line in log for line in (first, *last))
    steps = dict(line.split(maxsplit=1) for line in last)
    assert shlex.split(steps["compare"]) == ["python", "-m", "eblvm_lit.reports", "lr=0.1 b"]
    assert [run.folder.name for run in read_runs([tmp_path / shlex.split(steps["compare"])[3]])[0]] == ["lr=0.1 b"]
    word = shlex.split(steps["evaluate"])[2]
    assert OverridesParser.create().parse_override(word).value() == "lr=0.1 b"
    assert {word, "trainer.max_steps=12"} <= {*shlex.split(steps["resume"])}


def test_no_longer_run_is_suggested_where_the_learning_rate_has_decayed(tmp_path, monkeypatch):
    config = OmegaConf.create({"overrides": {"task": []}, "runtime": {"config_sources": [], "cwd": "."}})
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: config)
    # The rate has decayed to 1e-4, and a run with twice as many iterations would raise it again.
    cfg = tiny(tmp_path, "method=dsm", "final_lr=1e-4")
    assert [line.split()[0] for line in commands_of(cfg)] == ["evaluate", "compare"]


def test_long_work_prints_lines_off_a_terminal_and_short_work_none(capsys, monkeypatch):
    AIS(n_chains=3, n_betas=3).log_weights(GaussianPath(GRBM(v_dim=2, h_dim=3)), torch.Generator())
    assert capsys.readouterr() == ("", "")
    clock = {"now": 0.0}
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock["now"])
    with progress_bar("log Z by AIS", 1000) as on_step:
        for _ in range(1000):
            clock["now"] += 0.03
            on_step(1)
    lines = ("log Z by AIS: 334 of 1,000, 0:00:20 left\n", "log Z by AIS: 668 of 1,000, 0:00:10 left\n")
    assert capsys.readouterr() == ("".join(lines), "")


def test_runs_of_one_second_take_folders_of_their_own(tmp_path):
    found = []
    for _ in range(3):
        config = OmegaConf.create({"hydra": {"run": {"dir": f"{tmp_path}/12-00-00"}}, "sweep": {"resume": False}})
        OmegaConf.set_readonly(config, True)  # Hydra's own configuration is read-only, too
        CheckOutputFolder().on_run_start(config)
        found.append(config.hydra.run.dir.rpartition("/")[2])
    assert found == ["12-00-00", "12-00-00_1", "12-00-00_2"]


def test_several_processes_warn_of_nothing_that_users_can_change():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            quiet()
            DistributedDataParallel(torch.nn.Linear(1, 1), broadcast_buffers=False)  # Lightning passes the same option
    finally:
        torch.distributed.destroy_process_group()
    assert [str(warning.message) for warning in told] == []


def test_names_of_metrics_send_nothing_to_the_terminal_but_themselves(tmp_path, capsys):
    show_results({"test/\x1b[31mred": 1.0, "test/log_likelihood": 2.0}, tmp_path)
    said = capsys.readouterr().out
    assert r"test/\x1b[31mred" in said
    assert all(c.isprintable() or c == "\n" for c in said)


def sweep(folder, resume=False, named=True):
    """Return a configuration with those keys of Hydra that describe a sweep."""
    overrides = [f"hydra.sweep.dir={folder}"] if named else []
    return OmegaConf.create(
        {"hydra": {"sweep": {"dir": str(folder)}, "overrides": {"hydra": overrides}}, "sweep": {"resume": resume}}
    )


def test_sweeps_of_one_second_take_folders_of_their_own_and_so_do_their_jobs(tmp_path):
    for name in ("12-00-00", "12-00-00_1"):
        config = sweep(tmp_path / "12-00-00", named=False)
        CheckOutputFolder().on_multirun_start(config)
        assert config.hydra.sweep.dir == str(tmp_path / name)
        # Hydra composes the configurations of the jobs from these overrides, which must therefore name the new folder.
        assert config.hydra.overrides.hydra == [f"hydra.sweep.dir='{tmp_path / name}'"]


def test_a_sweep_refuses_the_folder_of_another_one_and_one_in_use(tmp_path):
    (tmp_path / "multirun.yaml").write_text("hydra: {}\n")
    with pytest.raises(SystemExit, match=r"already contains a sweep: resume it with sweep\.resume=true"):
        CheckOutputFolder().on_multirun_start(sweep(tmp_path))
    CheckOutputFolder.claims.close()
    CheckOutputFolder().on_multirun_start(sweep(tmp_path, resume=True))
    with pytest.raises(SystemExit, match="is in use by another process"):
        CheckOutputFolder().on_multirun_start(sweep(tmp_path, resume=True))
    CheckOutputFolder.claims.close()  # the end of a process also releases its folders
    assert [path.name for path in tmp_path.iterdir()] == ["multirun.yaml"]
    CheckOutputFolder().on_multirun_start(sweep(tmp_path, resume=True))


def test_the_report_command_names_the_folder_of_all_runs_or_else_the_run_itself(tmp_path, monkeypatch):
    config = OmegaConf.create({"overrides": {"task": []}, "runtime": {"config_sources": [], "cwd": "."}})
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: config)
    for folder, outputs, compared in (("o/a/b", "o", "o"), ("elsewhere/b", "o", "elsewhere/b"), ("o2", "o", "o2")):
        cfg = tiny(tmp_path / folder, "method=dsm", f"outputs_dir={tmp_path / outputs}")
        assert commands_of(cfg)[-1] == f"compare  python -m eblvm_lit.reports {tmp_path / compared}"
