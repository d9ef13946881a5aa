"""A benchmark of the time and memory of an iteration as functions of each size of the problem.

Run it with python -m benchmarks.growth.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.growth_figures import draw
from benchmarks.growth_fits import Line, PowerLaw, fit_line, fit_power_law
from benchmarks.memory_meter import MemoryMeter
from benchmarks.run import machine, parser
from benchmarks.scaling import method_of
from eblvm_lit.core.minibatch import WHOLE
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.figures.style import save
from eblvm_lit.utils.memory import keep_freed_memory

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 15
QUICK_ROUNDS = 2
QUICK_POINTS = 2
ITERATIONS = 50  # the number of iterations in each measurement by benchmarks.scaling
QUICK_ITERATIONS = 5
DPI = 120  # a low resolution, so that the file of a figure takes less than 60 kB
BLOCK_SECONDS = 0.05  # approximate time of a block of iterations
GRBM = ("data=standard_normal", "data.v_dim=512", "sizes.h_dim=256", "method.n_lower_steps=5")
BIDSM = ("method=bidsm", *GRBM, "method.n_unroll=5")
FIXED_POINT = ("method=bidsm", *GRBM, "hypergradient=fixed_point")
DEEP = (
    *("method=bimdsm", "method.n_lower_steps=5", "data=image_folder", "data.path=.", "data.channels=1", "data.size=16"),
    *("model.h_dim=50", "model.head_dim=256", "model.network.channels=16", "posterior.network.widths=[8,16,32]"),
)
VAGES = ("method=vages_dsm", *GRBM)
# The titles of the figures describe each of these settings with the following words.
SUBJECTS = {
    BIDSM: "BiDSM, GRBM: d = 512, 256 latents, batch 100, K = N = 5, but for the x axis",
    VAGES: "VaGES-DSM, GRBM: d = 512, 256 latents, batch 100, K = 5",
    DEEP: "BiMDSM, deep model of grey images: K = 5, N = 0",
    (): "BiDSM, Frey faces: K = N = 5",
}
FACES = "BiDSM K=5 N=5, Frey faces"  # the name of the measurement of Frey faces in benchmarks.scaling
PROCESSES = tuple(2**i for i in range(1 + int(math.log2(min(os.cpu_count() or 1, 8)))))


@dataclass(frozen=True)
class Axis:
    """A size of the problem that grows while all other sizes are constant.

    Args:
        name: The name of the axis and of its figure, by which --only selects the axis.
        label: The label of the figure's x axis.
        points: The values of the size.
        key: The configuration key of the size; None for the batch size.
        base: The overrides of all other settings; empty if benchmarks.scaling makes the measurement.
        batch: Number of examples in the minibatch.
        power: The expected exponent of time and memory; None if a straight line a + b x is expected.
        beside: Overrides of a method that does not have this size, for comparison.
    """

    name: str
    label: str
    points: tuple[int, ...]
    key: str | None
    base: tuple[str, ...]
    batch: int
    power: int | None
    beside: tuple[str, ...] = ()

    def overrides(self, x: int) -> tuple[str, ...]:
        return (*self.base, f"{self.key}={x}") if self.key else self.base

    def rows(self, x: int) -> int:
        return self.batch if self.key else x

    def fit(self, x: list[int], y: list[float]) -> PowerLaw | Line:
        return fit_line(x, y) if self.power is None else fit_power_law(x, y)


AXES = (
    Axis("v_dim", "d", (128, 256, 512, 1024, 2048, 4096, 8192), "data.v_dim", BIDSM, 100, 1),
    Axis("h_dim", "dim h", (64, 128, 256, 512, 1024, 2048, 4096), "sizes.h_dim", BIDSM, 100, 1),
    Axis("batch_size", "batch size", (50, 100, 200, 400, 800, 1600, 3200), None, BIDSM, 100, 1),
    Axis("n_lower_steps", "K", (0, 1, 2, 5, 10, 15, 20), "method.n_lower_steps", BIDSM, 100, None),
    Axis("n_unroll", "N", (1, 2, 5, 10, 15, 20), "method.n_unroll", BIDSM, 100, None, FIXED_POINT),
    Axis("n_particles", "L", (2, 4, 8, 16, 24, 32), "score.n_particles", VAGES, 100, None),
    Axis("image_size", "image size, pixels a side", (16, 24, 32, 48, 64, 96, 128), "data.size", DEEP, 16, 2),
    Axis("n_blocks", "depth, blocks in a stage", (1, 2, 3, 4, 6, 8), "model.network.n_blocks", DEEP, 32, None),
    Axis("image_batch_size", "batch size of images", (8, 16, 32, 64, 128, 256, 512), None, DEEP, 32, 1),
    Axis("processes", "processes, the same work in all", PROCESSES, None, (), 100, -1),
    Axis("processes_weak", "processes, the same work in each", PROCESSES, None, (), 100, 0),
)


class Point:
    """A method in training at one value of an axis, which measures its own time, memory and operations."""

    def __init__(self, overrides: tuple[str, ...], rows: int) -> None:
        self.method, shape = method_of(overrides)
        optimizers = dict(zip(self.method.groups, self.method.configure_optimizers(), strict=True))
        self.state = self.method.train_state(optimizers, {name: torch.tensor(1e-4) for name in self.method.rates})
        self.v = torch.rand(rows, *shape, generator=keyed_generator(0, "growth"))
        self.n_iterations = 0
        self.seconds = []
        self.iterate()  # the first call is slow: it allocates memory and chooses kernels
        self.block = max(1, round(BLOCK_SECONDS / self.time(1)))

    def iterate(self) -> None:
        self.n_iterations += 1
        self.method.step(self.state, WHOLE, self.v, keyed_generator(0, "noise", self.n_iterations))

    def time(self, n: int) -> float:
        """Return the mean processor time of n iterations in seconds.

        Processor time does not include the time of other programs.
        """
        begin = time.process_time()
        for _ in range(n):
            self.iterate()
        return (time.process_time() - begin) / n

    def mebibytes(self) -> float | None:
        """Return the memory, in MiB, of the parameters and Adam's two moments, plus the peak of an iteration."""
        meter = MemoryMeter(torch.device("cpu"))
        self.iterate()
        peak = meter.peak()
        lasting = 3 * sum(p.nbytes for p in self.method.parameters()) / 2**20
        return None if peak is None else peak + lasting

    def products(self) -> int:
        """Count the floating-point operations of all matrix products and convolutions in an iteration."""
        counter = FlopCounterMode(display=False)
        counter.mod_tracker = Untracked()
        with counter:
            self.iterate()
        return counter.get_total_flops()


class Untracked(nullcontext):
    """A substitute for the module tracker of torch's FLOP counter.

    The original tracker fails with second derivatives by torch.autograd.grad.
    """

    parents = frozenset({"Global"})


def measure(axis: Axis, rounds: int, n_points: int | None) -> dict[str, Any]:
    """Measure all points of an axis in turn, in several rounds.

    So a slow phase of the machine affects all points.
    """
    xs = axis.points[:n_points]
    points = {x: Point(axis.overrides(x), axis.rows(x)) for x in xs}
    beside = Point(axis.beside, axis.batch) if axis.beside else None
    every = [*points.values(), *([beside] if beside else [])]
    with keep_freed_memory():  # training also keeps freed memory
        for _ in range(rounds):
            for point in every:
                point.seconds.append(point.time(point.block))
    return {
        "rows": [{"x": x, **figures(point)} for x, point in points.items()],
        "beside": figures(beside) if beside else None,
    }


def figures(point: Point) -> dict[str, Any]:
    return {
        "seconds": median(point.seconds),
        "fastest": min(point.seconds),
        "slowest": max(point.seconds),
        "block": point.block,
        "mib": point.mebibytes(),
        "products": point.products(),
    }


@cache
def scaled(processes: int, rows: int, iterations: int) -> dict[str, float]:
    """Measure the training on Frey faces with benchmarks.scaling, which starts the processes."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = ("--processes", str(processes), "--batch", str(rows), "--iterations", str(iterations))
        words = (*sizes, "--only", FACES, "--out", str(Path(folder, "found.json")))
        subprocess.run(
            [sys.executable, "-m", "benchmarks.scaling", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        found = json.loads(Path(folder, "found.json").read_text())["rows"][0]["cells"][FACES]
    return {key: found[key] for key in ("seconds", "fastest")}


def measure_processes(axis: Axis, iterations: int) -> dict[str, Any]:
    """Measure the time of an iteration for each number of processes on an axis."""
    # With power -1 the total work is constant, so that each process gets a share of the minibatch. With power 0 the
    # work of each process is constant.
    shares = {x: axis.batch // x if axis.power else axis.batch for x in axis.points}
    return {"rows": [{"x": x, **scaled(x, rows, iterations)} for x, rows in shares.items()], "beside": None}


def fits(axis: Axis, rows: list[dict[str, Any]]) -> dict[str, PowerLaw | Line]:
    """Fit each quantity that was measured: time, memory and operations."""
    xs = [row["x"] for row in rows]
    measured = [key for key in ("seconds", "mib", "products") if rows[0].get(key)]
    return {key: axis.fit(xs, [row[key] for row in rows]) for key in measured}


def table(found: dict[str, dict[str, Any]], *, power: bool) -> Table:
    """Make a Markdown table of the fits: of exponents, or of the slopes of straight lines.

    Fitted exponents are shown with the expected ones, and slopes are relative to the intercepts of their lines.
    """
    title = "fitted exponents" if power else "b / a of the fitted line a + b x; the products are what is expected"
    rows = Table("size", "range", box=box.MARKDOWN, title=title, title_justify="left")
    for column in ("time", "products", "memory", *(("expected",) if power else ())):
        rows.add_column(column, justify="right", no_wrap=True)
    for axis in (axis for axis in AXES if axis.name in found and (axis.power is not None) == power):
        own = found[axis.name]
        span = f"{own['rows'][0]['x']:,} to {own['rows'][-1]['x']:,}"
        cells = [str(own["fits"].get(key, "")) for key in ("seconds", "products", "mib")]
        rows.add_row(axis.label, span, *cells, *((str(axis.power),) if power else ()))
    return rows


def tables(found: dict[str, dict[str, Any]]) -> list[Table]:
    kinds = {axis.power is not None for axis in AXES if axis.name in found}
    return [table(found, power=power) for power in (True, False) if power in kinds]


def write(folder: Path, found: dict[str, dict[str, Any]]) -> None:
    """Write all numbers as JSON, and the tables as Markdown.

    The files are written after each axis, so that an interruption loses little.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine() | {"torch": torch.__version__, "threads": torch.get_num_threads()}, "axes": {}}
    for name, own in found.items():
        content["axes"][name] = own | {"fits": {key: fit._asdict() for key, fit in own["fits"].items()}}
    (folder / "growth.json").write_text(json.dumps(content, indent=2) + "\n")
    with (folder / "growth.md").open("w") as file:
        for each in tables(found):
            Console(file=file, width=160).print(each)


def main(*words: str) -> int:
    """Measure the axes one by one, draw a figure of each, and print the tables."""
    quick = f"the {QUICK_POINTS} smallest sizes of each"
    options = parser("growth", __doc__ or "", what="axes", quick=quick).parse_args(words or None)
    console = Console()
    chosen = [axis for axis in AXES if options.only.search(axis.name)]
    if options.list or not chosen:
        console.print("\n".join(axis.name for axis in chosen) or "No axis has such a name; --list shows them.")
        return 0 if chosen else 1
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for i, axis in enumerate(chosen, 1):
        if axis.base:
            own = measure(axis, QUICK_ROUNDS if options.quick else ROUNDS, QUICK_POINTS if options.quick else None)
        else:
            own = measure_processes(axis, QUICK_ITERATIONS if options.quick else ITERATIONS)
        found[axis.name] = own | {"fits": fits(axis, own["rows"])}
        write(options.out, found)
        figure = draw(axis.label, axis.power, subject=SUBJECTS[axis.base], **found[axis.name])
        save(figure, options.out / f"speed_{axis.name}", dpi=DPI)
        last = own["rows"][-1]
        text = f"[{i}/{len(chosen)}] {axis.name} = {last['x']}: {1e3 * last['seconds']:.1f} ms"
        console.print(text, markup=False, highlight=False)
    for each in tables(found):
        console.print(each)
    console.print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
