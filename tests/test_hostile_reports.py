"""A corpus of hostile run folders: a report over each is made, and says what it could not read and why."""

import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.text import Text
from omegaconf import OmegaConf

from eblvm_lit.cli.checkpoint_config import stored_config
from eblvm_lit.cli.console import show_config, show_results
from eblvm_lit.cli.sweeps.folder import earlier_sweep
from eblvm_lit.cli.sweeps.jobs import earlier_metrics
from eblvm_lit.cli.sweeps.summary import Job, read_jobs, show_jobs
from eblvm_lit.errors import DataError, EblvmError
from eblvm_lit.figures.learning_curves import draw_curves
from eblvm_lit.reports.__main__ import main
from eblvm_lit.reports.method_curves import Band, draw_bands
from eblvm_lit.reports.terminal import show
from eblvm_lit.training.callbacks.progress_bar import IterationBar
from eblvm_lit.training.loggers.csv import earlier_rows
from eblvm_lit.training.resume import find_checkpoint
from eblvm_lit.utils.progress import progress_bar
from hostile_reports import ACCEPTED, CASES, LISTED, LONG, SECRET, SENTINEL, write_run

ALL = list((CASES | LONG).items())
MEBIBYTES = 1024
LONGEST_LINE = 20_000


def ended(folder, names):
    """How a report over each case has ended, in a process with bounds for memory and computing time."""
    wanted = [index for index, (name, _) in enumerate(ALL) if name in names]
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(wanted))
    program = Path(__file__).parent / "hostile_reports.py"
    with open(folder / "printed", "wb") as printed:
        subprocess.run([sys.executable, program, folder], stdout=printed, stderr=subprocess.STDOUT, timeout=900)
    lines = (folder / "ended.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    crashed = [ALL[index][0] for index in wanted[len(found) :]]
    assert not crashed, f"the process ended at {crashed[0]!r}: {(folder / 'printed').read_bytes()[-500:]}"
    return found


def check(folder, names):
    """Nothing has run, and each report has ended as its case says."""
    bad = {}
    for index, name, how, mebibytes in ended(folder, names):
        root, case = folder / str(index), ALL[index][1]
        if how != "report":
            bad[name] = how
            continue
        table = (root / "out" / "table.md").read_text()
        page = (root / "out" / "page.html").read_text()
        count = sum(map(int, re.findall(r"^\| [^|]*(?:\\\|[^|]*)* \| (\d+) \|", table, re.MULTILINE)))
        n_runs = len(list((root / "runs").iterdir()))
        reason = "".join(re.findall(r"^- (?!good).*", table, re.MULTILINE))
        if case.ends == LISTED and not (re.search(case.why, reason) and count == n_runs - 1):
            bad[name] = f"{count} runs, {reason!r}"
        if case.ends == ACCEPTED and not (count == n_runs and not reason):
            bad[name] = f"{count} runs, {reason!r}"
        told = table + page + (root / "out" / "table.csv").read_text()
        if SECRET in told or "<script" in page or "\x1b" in told or mebibytes > MEBIBYTES:
            bad[name] = f"secret, script, command or {mebibytes} MiB"
        if max(map(len, table.splitlines())) > LONGEST_LINE:
            bad[name] = "a line of the table is too long to be read"
        if (root / "runs" / SENTINEL).exists():
            bad[name] = "executed"
    assert not bad, "\n".join(f"{name}: {how}" for name, how in bad.items())


def test_a_report_over_any_folder_is_made_and_says_what_it_could_not_read(tmp_path):
    assert len(CASES) > 200
    check(tmp_path / "a", CASES)


def test_a_table_has_a_hundred_metrics_and_says_of_how_many(tmp_path):
    write_run(tmp_path / "runs", metrics=json.dumps({f"test/{i}": i for i in range(150)}))
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) is None
    table = (tmp_path / "out" / "table.md").read_text()
    assert table.splitlines()[2].count("test/") == 100
    assert "The first 100 of 150 metrics: --metric NAME ... shows others." in table
    main([str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--metric", "test/149"])
    assert (tmp_path / "out" / "table.md").read_text().splitlines()[2].count("test/") == 1


@pytest.mark.slow
def test_a_report_over_large_files_is_made(tmp_path):
    check(tmp_path / "a", LONG)


# --- files of other runs that a run looks at --------------------------------------------------------------


def small(folder, **more):
    """The keys of a configuration that say where earlier runs are looked for."""
    plain = {"ckpt": "last", "run_dir": str(folder / "new"), "outputs_dir": str(folder), "seed": 3}
    plain |= {"data": {"_target_": "x.Checkerboard"}, "method": {"_target_": "x.dsm"}, "sweep": {"resume": True}}
    return OmegaConf.create(plain | more)


def search(folder):
    """``ckpt=last`` looks at the configurations of all runs."""
    (folder / "spoilt" / "checkpoints").mkdir(exist_ok=True)
    (folder / "spoilt" / "checkpoints" / "last.ckpt").write_bytes(b"")
    return find_checkpoint(small(folder))


def finished_job(folder):
    """A resumed sweep looks at the results of its jobs."""
    return earlier_metrics(small(folder, run_dir=str(folder / "spoilt")))


def jobs(folder):
    """The table of a sweep shows all jobs."""
    found = read_jobs(folder)
    show_jobs(found, folder, "test/fisher")
    return None if all(job.name.isprintable() and job.state.isprintable() for job in found) else found


def sweep(folder):
    """``sweep.resume=true`` looks at the records of all sweeps."""
    record = folder / "day" / "time"
    record.mkdir(parents=True)
    (folder / "spoilt" / "config.yaml").rename(record / "multirun.yaml")
    hydra = {"sweep": {"dir": str(folder / "new" / "time")}, "overrides": {"task": ["${oc.env:SECRET}"], "hydra": []}}
    return earlier_sweep(OmegaConf.create({"hydra": hydra | {"sweeper": {"params": None}}}))


def rows(folder):
    """A resumed run takes over the curves of its earlier part."""
    found = earlier_rows(folder / "spoilt" / "metrics.csv", 10)
    return None if all(isinstance(value, float) for row in found.values() for value in row.values()) else found


READERS = {
    "config.yaml": (search, finished_job, sweep),
    "metrics.json": (finished_job, jobs),
    "status.json": (finished_job, jobs),
    ".hydra/overrides.yaml": (jobs,),
    "metrics.csv": (rows,),
}
RESOLVED = "seed: 3\ndata: {_target_: '${oc.env:TARGET}'}\nmethod: {_target_: x.dsm}\nsweep: {resume: true}\n"


def how_it_ends(reader, make, folder):
    """What a reader makes of a spoilt run: nothing, or one sentence."""
    make(write_run(folder / "spoilt"))
    signal.setitimer(signal.ITIMER_PROF, 10)
    try:
        found = reader(folder)
    except EblvmError as error:
        return None if "\n" not in str(error) and SECRET not in str(error) else f"sentence: {error}"
    except BaseException as error:
        return f"traceback: {error!r:.300}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None if found is None else f"it took {found}"


def ring(*_):
    raise TimeoutError


def read_all(folder):
    """Every reader over every case of its file, with a bound for the memory; what has not ended well is a line."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, ring)
    os.environ |= {"SECRET": SECRET, "TARGET": "x.Checkerboard"}
    bad, n = [], 0
    made = [(name, case.make) for name, case in CASES.items() if case.ends == LISTED]
    made.append(("config.yaml: what would be this run", lambda folder: (folder / "config.yaml").write_text(RESOLVED)))
    for name, make in made:
        for reader in READERS.get(name.partition(":")[0], ()):
            n += 1
            how = how_it_ends(reader, make, folder / str(n))
            bad += [f"{reader.__name__}, {name}: {how}"] * (how is not None)
    (folder / "ended.json").write_text(json.dumps([n, bad]))


def test_no_file_of_another_run_is_a_trap_for_a_run(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=read_all, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    n, bad = json.loads((tmp_path / "ended.json").read_text())
    assert n > 200
    assert not bad, "\n".join(bad)


# --- the configuration in a checkpoint --------------------------------------------------------------------


def shared(n_levels):
    """Lists that share their parts, as a pickle can: ten to the number of levels, if they are written out."""
    inner = ["x"]
    for _ in range(n_levels):
        inner = [inner] * 10
    return inner


def in_itself():
    inner = {}
    inner["a"] = [inner]
    return inner


EXTRA = {
    "shared parts": lambda: shared(30),
    "a part of itself": in_itself,
    "an integer beyond floats": lambda: 10**400,
    "an object": lambda: {1, 2},
    "a tensor": lambda: torch.ones(3),
    "many entries": lambda: [0] * 10**6,
}


@pytest.mark.parametrize("extra", EXTRA)
def test_a_configuration_in_a_checkpoint_is_plain_data_of_some_size(extra):
    part = {"_target_": "x.Y"}
    plain = {"seed": 1, "data": part, "method": part, "callbacks": {}, "extra": EXTRA[extra]()}
    with pytest.raises(DataError, match=r"a\.ckpt holds no configuration that can be read"):
        stored_config(plain, OmegaConf.create({"ckpt": "a.ckpt"}))


# --- the screen -------------------------------------------------------------------------------------------

MARKUP = ("[/]", "[red]x[/red]", "[bold", "[/red]", "a\\", "\\[red]", ":smile:")


@pytest.mark.parametrize("text", MARKUP)
def test_markup_in_names_is_text_on_every_screen(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    job = Job(text, text, (f"a={text}",), {f"test/fid_{text}": 1.0})
    show({text: [["method", "n", f"test/{text}"], [text, "1", text]]}, [text], [text, text])
    assert capsys.readouterr().out.count(text) == 7
    show_results({f"test/{text}": 1.0}, Path(text), {text: text})
    assert capsys.readouterr().out.count(text) == 4
    show_config(OmegaConf.create({text: {text: text}}))
    tree = re.sub("\x1b[^m]*m", "", capsys.readouterr().out)
    assert tree.splitlines() == ["configuration", f"└── {text}", f"    └── {text}: {text}"]
    show_jobs([job, Job("b", "finished", (), {})], Path(text), f"test/fid_{text}")
    assert capsys.readouterr().out.count(text) == 5
    with progress_bar(text, 10) as on_step:
        on_step(3)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("text", MARKUP)
def test_markup_in_the_names_of_losses_is_text_beside_the_bar(text, capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "300")
    method = SimpleNamespace(diagnostics={f"{text}_loss": torch.ones(())}, compiled_in=0)
    trainer = SimpleNamespace(global_step=3, max_steps=9, callback_metrics={}, is_global_zero=True)
    bar = IterationBar()
    bar.on_train_start(trainer, method)
    bar._draw(trainer, method)
    bar._stop()
    assert f"{text}_loss 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["val/$\\frac{$", "val/$x^$", "val/$a_b$"])
def test_formulas_in_names_are_text_in_figures(name, tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(f"iteration,{name}\n1,2\n2,3\n")
    for figure in (draw_curves(path), draw_bands([Band(name, *np.ones((3, 2)), 1)], name, name)):
        figure.draw_without_rendering()
        shown = figure.findobj(Text)
        assert not any(text.get_parse_math() for text in shown if "$" in text.get_text())
        assert any(name.split("/")[1].replace("_", " ") in text.get_text().replace("_", " ") for text in shown)
    assert matplotlib.rcParams["text.parse_math"]
