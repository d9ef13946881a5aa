"""A benchmark of weak and strong scaling over the processes of one machine, and of their communication.

Run it with python -m benchmarks.scaling.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.table import Table

from benchmarks.measure import ROOT
from eblvm_lit.core.reductions import comm_counter
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.shards import minibatch_of, shard_of
from eblvm_lit.runs.build import build
from eblvm_lit.training.callbacks.compiling import for_full_minibatches
from eblvm_lit.utils.memory import keep_freed_memory

FACES = ("data=frey_face", "model.v_dim=560")
WARM = 3
# Small models, whose iterations are mostly overhead, and large models, for which the exchanged bytes matter.
CELLS = {
    "DSM, digits": ("method=dsm", "data=digits"),
    "BiDSM K=5 N=0, digits": ("method=bidsm", "data=digits", "method.n_unroll=0"),
    "BiDSM K=5 N=5, digits": ("method=bidsm", "data=digits", "method.n_unroll=5"),
    "VaGES-DSM K=5, digits": ("method=vages_dsm", "data=digits"),
    "KSD halves, digits": ("method=ksd", "data=digits"),
    "KSD all pairs, digits": ("method=ksd", "data=digits", "objective.pairs=all", "objective.bandwidth=median"),
    "PCD-1, digits": ("method=pcd", "data=digits"),
    "DSM, Frey faces": ("method=dsm", *FACES),
    "BiDSM K=5 N=0, Frey faces": ("method=bidsm", *FACES, "method.n_unroll=0"),
    "BiDSM K=5 N=5, Frey faces": ("method=bidsm", *FACES, "method.n_unroll=5"),
    "BiMDSM, deep, CIFAR10": ("method=bimdsm", "data=cifar10"),
    "VaGES-MDSM, deep, CIFAR10": ("method=vages_mdsm", "data=cifar10"),
    "BiDVL, convolutional, CIFAR10": ("method=bidvl", "data=cifar10"),
}


class Row(NamedTuple):
    """A setting in which all cells are measured: the mode, and the numbers of processes and threads."""

    compiled: bool
    processes: int
    threads: int


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    add = parser.add_argument
    add("--processes", type=int, nargs="+", default=[1, 2], help="numbers of processes")
    add("--batch", type=int, default=100, help="rows of a minibatch in each process")
    add("--iterations", type=int, default=50, help=f"iterations, of which {WARM} are not counted")
    add("--compile", action="store_true", help="measure compiled iterations beside the eager ones")
    add(
        "--strong",
        action="store_true",
        help="one minibatch of --batch rows for all processes, and as many threads in one",
    )
    add("--only", default="", help="cells whose name has this in it")
    add("--list", action="store_true", help="print the names of the cells and run nothing")
    add("--out", type=Path, default=ROOT / "outputs" / "bench" / "scaling.json")
    return parser.parse_args()


def method_of(overrides: tuple[str, ...]) -> tuple[Any, tuple[int, ...]]:
    """Build a method in training mode from its configuration, and return it with the shape of v.

    No data are read.
    """
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", [*overrides, "method.compile=false", "run_dir=."])
    parts = build(cfg)
    return parts.method.train(), tuple(parts.data.event_shape)


def iterate(cell: tuple[Any, tuple[int, ...]], n_rows: int, n: int, compiled: bool) -> dict[str, float]:
    """Measure an iteration with random examples: its seconds, its exchanges between processes, and their bytes.

    Args:
        cell: The method and the shape of v.
        n_rows: Number of examples in the minibatch, over all processes.
        n: Number of iterations.
        compiled: Whether to compile the iteration.
    """
    method, shape = cell
    optimizers = dict(zip(method.groups, method.configure_optimizers(), strict=True))
    state = method.train_state(optimizers, {name: torch.tensor(1e-4) for name in method.rates})
    whole = torch.rand(n_rows, *shape, generator=keyed_generator(0, "scaling"))
    shard = shard_of(len(whole))
    v = whole if shard is None else whole[shard.rows]
    seconds = []
    method.compiled = for_full_minibatches(method, n_rows, may_fail=False) if compiled else None
    for i in range(n):
        before = comm_counter.copy()
        begin = time.perf_counter()
        method.step(state, minibatch_of(v, len(whole)), v, keyed_generator(0, "noise", i))
        seconds.append(time.perf_counter() - begin)
    warm = seconds[WARM:] or seconds
    exchanged = {name: comm_counter[name] - before[name] for name in ("calls", "bytes")}
    return {"seconds": median(warm), "fastest": min(warm), "first": seconds[0], **exchanged}


def process(rank: int, row: Row, port: int, folder: str, cells: dict[str, Any], chosen: argparse.Namespace) -> None:
    torch.set_num_threads(row.threads)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if row.processes > 1:
        dist.init_process_group("gloo", rank=rank, world_size=row.processes)
    n_rows = chosen.batch * (1 if chosen.strong else row.processes)
    with keep_freed_memory():  # training also keeps freed memory
        found = {name: iterate(cell, n_rows, chosen.iterations, row.compiled) for name, cell in cells.items()}
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    if row.processes > 1:
        dist.destroy_process_group()


def measure(row: Row, cells: dict[str, Any], chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure all cells in processes that are forked from this process."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        s.close()
        mp.start_processes(process, (row, port, folder, cells, chosen), nprocs=row.processes, start_method="fork")
        return json.loads(Path(folder, "found.json").read_text())


def rows_of(chosen: argparse.Namespace) -> list[Row]:
    """List the settings in which the cells are measured.

    For strong scaling, one process with as many threads is added for comparison with each number of processes.
    """
    rows: list[Row] = []
    for compiled in (False, True) if chosen.compile else (False,):
        for size in chosen.processes:
            if chosen.strong and size > 1:
                rows.append(Row(compiled, 1, size))
            rows.append(Row(compiled, size, 1))
    return list(dict.fromkeys(rows))


def show(found: dict[Row, dict[str, Any]], strong: bool) -> None:
    """Print a table with the efficiency, which is the time of one process divided by the time of several.

    With strong scaling, the one process has as many threads as there are processes.
    """
    table = Table(
        "cell", "mode", "processes", "threads", "ms an iteration", "efficiency", "exchanges", "KiB", "first, s"
    )
    for name in next(iter(found.values())):
        for row, cells in found.items():
            cell = cells[name]
            alone = Row(row.compiled, 1, row.processes if strong else 1)
            efficiency = f"{found[alone][name]['fastest'] / cell['fastest']:.2f}" if alone in found else ""
            mode = "compiled" if row.compiled else "eager"
            numbers = (f"{1e3 * cell['fastest']:.2f}", efficiency, str(cell["calls"]), f"{cell['bytes'] / 1024:.1f}")
            table.add_row(name, mode, str(row.processes), str(row.threads), *numbers, f"{cell['first']:.1f}")
    Console().print(table)


def main() -> None:
    chosen = options()
    if chosen.list:
        print("\n".join(name for name in CELLS if chosen.only in name))
        return
    torch.set_num_threads(1)
    cells = {name: method_of(overrides) for name, overrides in CELLS.items() if chosen.only in name}
    rows = {row: measure(row, cells, chosen) for row in rows_of(chosen)}
    machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "torch": torch.__version__}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    kind = "strong" if chosen.strong else "weak"
    measured = [{**row._asdict(), "cells": cells} for row, cells in rows.items()]
    content = {"machine": machine, "scaling": kind, "batch": chosen.batch, "rows": measured}
    chosen.out.write_text(json.dumps(content, indent=2) + "\n")
    show(rows, chosen.strong)


if __name__ == "__main__":
    main()
