"""What a run prints, at its start and at its end, and that it is printed at once and kept in the log file."""

import re
import shlex

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from eblvm_lit.cli.build import build
from eblvm_lit.cli.console import next_steps, show_results
from eblvm_lit.cli.sentences import conf_folder
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.evaluation.ais import AIS
from eblvm_lit.utils import progress
from eblvm_lit.utils.progress import progress_bar
from helpers.shell import CONF, configured, start, tiny, train

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))


def test_the_screen_of_a_run_is_a_line_a_table_and_commands_that_work(tmp_path):
    words = ("debug=fast", "data=line_blobs", "method=dsm", "final_lr=null", "summary=true", 'hydra.run.dir="lr=0.1 b"')
    process = start("train.py", *words, folder=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert all(line.startswith("INFO: compile=") for line in err.splitlines())  # nothing of any library
    assert re.fullmatch(
        r"DSM: denoising score matching, exact score; \d+ parameters in theta; [\d,]+ examples of LineBlobs; "
        r"6 iterations on .*; results in lr=0.1 b",
        out.splitlines()[0],
    )
    steps = dict(line.split(maxsplit=1) for line in out.splitlines()[-3:])
    assert steps["compare"] == "python -m eblvm_lit.reports outputs"
    *_, word = shlex.split(steps["evaluate"])
    assert OverridesParser.create().parse_override(word).value() == "lr=0.1 b"
    _, _, *overrides = shlex.split(steps["resume"])
    assert overrides[-2:] == [word, "trainer.max_steps=12"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["final_lr=1e-4"], ["evaluate", "compare"]),  # twice as many iterations would raise the rate
        (["schedule@optimizer.schedule=step"], ["evaluate", "compare"]),
        (
            ["schedule@optimizer.schedule=exponential", "optimizer.schedule.factor=0.5"],
            ["evaluate", "resume", "compare"],
        ),
    ],
)
def test_a_run_whose_rate_has_come_down_is_not_resumed(overrides, words, tmp_path, monkeypatch):
    config = OmegaConf.create({"overrides": {"task": []}, "runtime": {"config_sources": [], "cwd": "."}})
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: config)
    cfg = tiny(tmp_path, "method=dsm", *overrides)
    assert [line.split()[0] for line in next_steps(cfg, build(cfg).method)] == words


def test_numbers_have_significant_digits_and_units(tmp_path, capsys):
    show_results({"iteration": 12000, "test/log_likelihood": 2.6e-5, "train/iterations_per_second": 1906.4}, tmp_path)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "/" in line or "iteration" in line]
    assert rows[0] == ["test/log_likelihood", "2.6e-05", "nats"]
    assert ["iteration", "12,000"] in rows
    assert ["train/iterations_per_second", "1,906", "iterations/s"] in rows


def test_the_results_say_how_a_metric_was_computed(tmp_path, capsys):
    metrics = train(tmp_path, "data=checkerboard", "method=dsm")
    assert "test/log_likelihood" in metrics
    assert "log_likelihood: log Z by enumeration.\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_title(name, tmp_path):
    data = "line_blobs" if name not in ("bidvl", "bidvl_resnet", "lebm", "sngan", "vae") else "fashion_mnist"
    title = build(configured(f"method={name}", f"data={data}", f"run_dir={tmp_path}")).method.title
    assert re.match(r"[A-Za-z-]+: .{10}", title)


def test_nothing_is_printed_where_no_summary_is_wanted(tmp_path, capsys):
    train(tmp_path, "method=dsm")
    assert "denoising" not in (out := capsys.readouterr().out)
    assert "evaluate" not in out


# --- long work off a terminal ---------------------------------------------------------------------------------------


def test_long_work_prints_lines_off_a_terminal(capsys, monkeypatch):
    clock = {"now": 0.0}
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock["now"])
    with progress_bar("log Z by AIS", 1000) as on_step:
        for _ in range(1000):
            clock["now"] += 0.03
            on_step(1)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "log Z by AIS: 334 of 1,000, 0:00:20 left",
        "log Z by AIS: 668 of 1,000, 0:00:10 left",
    ]


def test_short_work_prints_nothing(capsys):
    AIS(n_chains=3, n_betas=3).log_weights(GRBM(v_dim=2, h_dim=3), None)
    assert capsys.readouterr() == ("", "")


# --- the process ----------------------------------------------------------------------------------------------------


def test_lines_appear_at_once_and_are_in_the_log(tmp_path):
    run_dir = tmp_path / "run"
    process = start(
        *("train.py", "debug=fast", "data=line_blobs", "method=dsm", "summary=true", f"hydra.run.dir={run_dir}"),
        *(
            "allow_packages=[helpers]",
            f"+callbacks.pause={{_target_: helpers.stopping.PauseAt, iteration: 5, folder: {tmp_path}}}",
        ),
        folder=tmp_path,
    )
    lines = []
    while not lines or (lines[-1] and not lines[-1].startswith("3/6 ")):
        lines.append(process.stdout.readline())
    assert "6/6 " not in (run_dir / "train.log").read_text()  # the run waits at its fifth iteration
    (tmp_path / "go").touch()
    out, err = process.communicate()
    assert process.returncode == 0, err
    log = (run_dir / "train.log").read_text()
    for line in [*lines, *out.splitlines()]:
        assert line.rstrip() in log or "━" in line  # the last state of Lightning's bar


def test_the_help_of_evaluate_names_every_choice():
    text = (CONF / "hydra" / "help" / "evaluate.yaml").read_text()
    for group in ("evaluation", "figures", "sampler", "logger"):
        for path in (conf_folder() / group).glob("[!_]*.yaml"):
            assert re.search(rf"\b{path.stem}\b", text), f"{group}: {path.stem}"
