"""Weak scaling over processes of this machine, and what they exchange: python -m benchmarks.scaling --help."""

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
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.table import Table

from benchmarks.measure import ROOT
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.distributed.reductions import comm_counter
from eblvm_lit.distributed.shards import minibatch_of, shard_of
from eblvm_lit.runtime.build import build

FACES = ("data=frey_face", "model.v_dim=560")
WARM = 3
# Small models, of which an iteration is mostly overhead, and large ones, of which bytes count.
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


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    add = parser.add_argument
    add("--processes", type=int, nargs="+", default=[1, 2], help="numbers of processes")
    add("--batch", type=int, default=100, help="rows of a minibatch in each process")
    add("--iterations", type=int, default=50, help=f"iterations, of which {WARM} are not counted")
    add("--only", default="", help="cells whose name has this in it")
    add("--list", action="store_true", help="print the names of the cells and run nothing")
    add("--out", type=Path, default=ROOT / "outputs" / "bench" / "scaling.json")
    return parser.parse_args()


def method_of(overrides: tuple[str, ...]) -> tuple[Any, tuple[int, ...]]:
    """A method in training, as its configuration has it, and the shape of v; no data are read."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", [*overrides, "method.compile=false", "run_dir=."])
    parts = build(cfg)
    return parts.method.train(), tuple(parts.data.event_shape)


def iterate(cell: tuple[Any, tuple[int, ...]], batch: int, n: int) -> dict[str, float]:
    """Seconds, exchanges and bytes of one iteration with random examples."""
    method, shape = cell
    size = dist.get_world_size() if dist.is_initialized() else 1
    optimizers = dict(zip(method.groups, method.configure_optimizers(), strict=True))
    state = method.train_state(optimizers, {name: torch.tensor(1e-4) for name in method.groups})
    whole = torch.rand(batch * size, *shape, generator=keyed_generator(0, "scaling"))
    shard = shard_of(len(whole))
    v, seconds = whole if shard is None else whole[shard.rows], []
    for i in range(n):
        before, begin = (comm_counter.calls, comm_counter.bytes), time.perf_counter()
        method.step(state, minibatch_of(v, len(whole)), v, keyed_generator(0, "noise", i))
        seconds.append(time.perf_counter() - begin)
    warm = seconds[WARM:] or seconds
    calls, bytes_ = comm_counter.calls - before[0], comm_counter.bytes - before[1]
    return {"seconds": median(warm), "fastest": min(warm), "calls": calls, "bytes": bytes_}


def process(rank: int, size: int, port: int, folder: str, cells: dict[str, Any], chosen: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if size > 1:
        dist.init_process_group("gloo", rank=rank, world_size=size)
    found = {name: iterate(cell, chosen.batch, chosen.iterations) for name, cell in cells.items()}
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    if size > 1:
        dist.destroy_process_group()


def measure(size: int, cells: dict[str, Any], chosen: argparse.Namespace) -> dict[str, Any]:
    """All cells in some processes that part from this one."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        s.close()
        mp.start_processes(process, (size, port, folder, cells, chosen), nprocs=size, start_method="fork")
        return json.loads(Path(folder, "found.json").read_text())


def show(rows: dict[int, dict[str, Any]]) -> None:
    table = Table("cell", "processes", "ms an iteration", "efficiency", "exchanges", "KiB")
    for name in next(iter(rows.values())):
        base = next(iter(rows.values()))[name]["fastest"]
        for size, found in rows.items():
            cell = found[name]
            numbers = (f"{1e3 * cell['fastest']:.2f}", f"{base / cell['fastest']:.2f}", str(cell["calls"]))
            table.add_row(name, str(size), *numbers, f"{cell['bytes'] / 1024:.1f}")
    Console().print(table)


def main() -> None:
    chosen = options()
    if chosen.list:
        print("\n".join(name for name in CELLS if chosen.only in name))
        return
    torch.set_num_threads(1)
    cells = {name: method_of(overrides) for name, overrides in CELLS.items() if chosen.only in name}
    rows = {size: measure(size, cells, chosen) for size in chosen.processes}
    machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "torch": torch.__version__}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "batch": chosen.batch, "rows": rows}
    chosen.out.write_text(json.dumps(content, indent=2) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
