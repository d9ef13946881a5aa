"""Whole runs in several processes: what they leave, how they stop and how they go on."""

import contextlib
import os
import random
import re
import signal
import sys
import time

import pytest
import torch.multiprocessing as mp

from eblvm_lit.core import compile_choice, fast_paths
from eblvm_lit.core.compile_choice import Choice
from eblvm_lit.errors import ConfigError
from eblvm_lit.training import launch
from eblvm_lit.training.callbacks.checkpoints import load_checkpoint
from eblvm_lit.training.loggers.csv import read_curves
from launching import RUN, Launch, gone
from processes import in_processes
from shell import TINY, checkpoint, curves, of_checkpoint, same, same_state, start, train

forking = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

EMA = ("method=bidsm", "method.n_lower_steps=1", "method.n_unroll=1", "callbacks=ema", "eval_weights=both")
PCD = ("method=pcd", "method.n_chains=30")


def close(one, other, rel=1e-9):
    """Whether two runs' checkpoints hold the same parameters, states and averages up to rounding."""
    a, b = checkpoint(one), checkpoint(other)

    def near(x, y):
        if isinstance(x, dict):
            return x.keys() == y.keys() and all(near(x[k], y[k]) for k in x)
        if isinstance(x, list):
            return len(x) == len(y) and all(map(near, x, y))
        if hasattr(x, "dtype") and x.is_floating_point():
            return bool((x - y).norm() <= rel * x.norm() + 1e-12)
        return same(x, y) if hasattr(x, "dtype") else True

    kept = ("state_dict", "optimizer_states", "averages") if "averages" in a else ("state_dict", "optimizer_states")
    return a["global_step"] == b["global_step"] and all(near(a[k], b[k]) for k in kept)


def numbers(rows):
    return [{k: v for k, v in row.items() if not k.startswith("train/") or k.endswith("loss")} for row in rows]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs in one process and in two: metrics, and what each process has opened for writing."""
    folder = tmp_path_factory.mktemp("runs")
    one = {name: train(folder / "one" / name, *RUN, *method) for name, method in (("ema", EMA), ("pcd", PCD))}

    def work(rank):
        written = []

        def watch(event, args):
            if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
                written.append(str(args[0]))

        sys.addaudithook(watch)
        found = {}
        for name, method in (("ema", EMA), ("pcd", PCD)):
            found[name] = train(folder / "two" / name, *RUN, *method, "trainer.devices=2")
        return found, [path for path in written if str(folder) in path]

    return folder, one, in_processes(2, folder, work)


@forking
@pytest.mark.parametrize("name", ["ema", "pcd"])
def test_a_run_in_two_processes_is_a_run_in_one(name, runs):
    folder, one, two = runs
    for found, _ in two:
        assert of_checkpoint(found[name]) == pytest.approx(of_checkpoint(one[name]), rel=1e-6)
    assert of_checkpoint(two[0][0][name]) == of_checkpoint(two[1][0][name])
    assert close(folder / "one" / name, folder / "two" / name)
    expected, found = (numbers(curves(folder / n / name)) for n in ("one", "two"))
    assert [row.keys() for row in found] == [row.keys() for row in expected]
    for a, b in zip(found, expected, strict=True):
        assert a == pytest.approx(b, rel=1e-6)


@forking
def test_all_processes_compile_if_the_first_one_chooses_to(tmp_path, monkeypatch):
    monkeypatch.setattr(fast_paths, "_compile_graph", lambda graph, inputs, device: graph)  # traced only
    options = [*RUN, "method=dsm", "trainer.devices=2"]

    def work(rank):
        monkeypatch.setattr(compile_choice, "costs", lambda *measured: Choice(rank == 0, "chosen"))
        for mode in ("auto", "false"):
            train(tmp_path / mode, *options, f"method.compile={mode}")

    in_processes(2, tmp_path, work)
    kept = checkpoint(tmp_path / "auto")["eblvm_lit"]["compile"]
    assert kept == {"at": compile_choice.N_MEASURED, "max_steps": 18, "compiled": True}
    assert close(tmp_path / "auto", tmp_path / "false")


@forking
def test_the_first_process_alone_writes(runs):
    folder, _, ((_, by_first), (_, by_second)) = runs
    assert any("last.ckpt" in path for path in by_first)
    assert by_second == []
    assert not list(folder.rglob("*.tmp"))


# --- stopping ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run in two processes."""
    started = Launch(tmp_path_factory.mktemp("straight"), *PCD)
    assert started.wait() == 0
    assert not list(started.run.glob("process_*.log"))
    return started.run


@forking
def test_a_lost_process_ends_the_run_and_it_goes_on_bit_by_bit(straight, tmp_path):
    started = Launch(tmp_path, *PCD, pause=11)
    started.send(signal.SIGKILL, rank=1)
    assert started.wait() == 1
    assert "Process 1 of the run has ended with code -9" in started.said
    assert checkpoint(started.run)["global_step"] == 8
    again = Launch(tmp_path, *PCD, "ckpt=last")
    assert again.wait() == 0
    assert same_state(again.run, straight)
    assert curves(again.run) == curves(straight)


@forking
def test_the_others_end_where_the_first_is_killed_and_one_device_can_go_on(straight, tmp_path):
    started = Launch(tmp_path, *PCD, pause=11)
    started.send(signal.SIGKILL, rank=0)
    assert gone(started.pid(1))
    train(started.run, *RUN, *PCD, "ckpt=last")  # with one device
    assert close(started.run, straight)


@forking
@pytest.mark.parametrize(
    ("number", "rank"), [(signal.SIGTERM, 1), pytest.param(signal.SIGUSR1, 0, marks=pytest.mark.slow)]
)
def test_a_signal_to_any_process_stops_all_at_one_iteration(number, rank, straight, tmp_path):
    started = Launch(tmp_path, *PCD, pause=9)
    started.send(number, rank)
    assert started.wait() == 128 + number
    assert gone(started.pid(1))
    assert f"Stopped by {number.name} after iteration 10; resume with" in started.said
    assert checkpoint(started.run)["global_step"] == 10
    assert not list(started.run.glob("process_*.log"))
    again = Launch(tmp_path, *PCD, "ckpt=last")
    assert again.wait() == 0
    assert same_state(again.run, straight)
    assert curves(again.run) == curves(straight)


def test_the_command_line_starts_the_other_processes_itself(straight, tmp_path):
    options = [*TINY, *RUN, *PCD, "trainer.devices=2", "hydra.run.dir=run"]
    process = start("train.py", *options, folder=tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.count("18/18") == 1  # nothing is said twice
    assert same_state(tmp_path / "run", straight)
    assert curves(tmp_path / "run") == curves(straight)
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name != ".hydra") == [
        *("checkpoints", "config.yaml", "metrics.csv", "metrics.json", "train.log"),
    ]


@pytest.mark.slow
@forking
def test_twenty_kills_at_any_moment_lose_nothing(straight, tmp_path):
    chance = random.Random(0)
    for i in range(20):
        at, rank = chance.randrange(3, 18, 2), chance.randrange(2)  # where blocks of two begin
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        started = Launch(tmp_path / str(i), *PCD, pause=at)
        started.wait_for_pause()
        (started.folder / "go").touch()
        time.sleep(chance.uniform(0, 0.2))
        with contextlib.suppress(ProcessLookupError):  # it may be over
            if started.first.poll() is None:
                os.kill(started.pid(rank), number)
        started.wait()
        assert gone(started.pid(1))
        last = started.run / "checkpoints" / "last.ckpt"
        if last.exists():
            assert load_checkpoint(last)["global_step"] >= (at - 1) // 4 * 4
            for path in (started.run / "checkpoints").glob("*.ckpt"):
                load_checkpoint(path)
            read_curves(started.run / "metrics.csv")
        else:
            assert at <= 4
        again = Launch(tmp_path / str(i), *PCD, *(["ckpt=last"] if last.exists() else []))
        assert again.wait() == 0
        assert same_state(again.run, straight), (i, at, rank, number)
        assert curves(again.run) == curves(straight)


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["trainer.num_nodes=2"], "which torchrun or srun start: see docs/multi_gpu.md"),
        (["trainer.num_nodes=0"], "trainer.num_nodes must be an integer of at least 1"),
        (["+trainer.strategy=fsdp"], "trainer.strategy follows from trainer.devices: leave it out"),
    ],
)
def test_what_cannot_be_launched_is_refused_in_one_sentence(overrides, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence) as refusal:
        train(tmp_path / "run", "trainer.accelerator=cpu", *overrides)
    assert "\n" not in str(refusal.value)


def test_torchrun_needs_a_folder_for_all_and_no_sweep(monkeypatch):
    class Hydra:
        class overrides:  # noqa: N801
            hydra, task = [], []

        mode = None

    monkeypatch.setattr(launch, "started_outside", lambda: "torchrun")
    monkeypatch.setattr(launch.HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(launch.HydraConfig, "get", lambda: Hydra)
    with pytest.raises(ConfigError, match=r"give them one, such as hydra.run.dir=outputs/my_run"):
        launch.check_launch(2)
    Hydra.overrides.hydra = ["hydra.run.dir=outputs/x"]
    launch.check_launch(2)
    Hydra.mode = launch.RunMode.MULTIRUN
    with pytest.raises(ConfigError, match="torchrun would start a whole sweep"):
        launch.check_launch(1)


REFUSED = {
    "small": (["data.batch_size=3"], "are too few for 2 devices, each of which needs two"),
    "chains": (["method=pcd", "method.n_chains=3"], "3 persistent chains .* are too few for 2 devices"),
}


@forking
def test_what_several_processes_cannot_do_is_refused_by_all_of_them(tmp_path):
    def work(rank):
        found = {}
        for name, (overrides, _) in REFUSED.items():
            with pytest.raises(ConfigError) as refusal:
                train(tmp_path / name, "trainer.accelerator=cpu", "trainer.devices=2", "method=dsm", *overrides)
            found[name] = str(refusal.value)
        return found

    for found in in_processes(2, tmp_path, work):
        for name, (_, sentence) in REFUSED.items():
            assert re.search(sentence, found[name])
