"""A benchmark of the seconds per 100 iterations and the peak memory of every method.

Run it with python -m benchmarks.run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cells import CITATION, QUICK_ITERATIONS, REFERENCE, Cell, cells
from benchmarks.tables import Row, tables

Cells = Callable[[int | None], list[Cell]]
Tables = Callable[[list[Row]], Iterable[Table | str]]

# This module must not import torch: on Linux a process inherits the recorded peak memory of its parent, which would
# then count.
ROOT = Path(__file__).resolve().parents[1]


def parser(name: str, description: str, *, what: str, quick: str) -> argparse.ArgumentParser:
    """Make a parser of the command-line options that several benchmarks share.

    Args:
        name: The name of the benchmark's module.
        description: The description of the benchmark.
        what: A plural noun for the things that the benchmark measures one by one, such as "cells".
        quick: A description of what --quick does.
    """
    shared = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    add = shared.add_argument
    add("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help=f"pick {what} by name")
    add("--list", action="store_true", help=f"print the names of the {what} and run nothing")
    add("--quick", action="store_true", help=f"{quick}: does it run at all")
    add("--out", type=Path, default=ROOT / "outputs" / "bench", help="folder of what is written")
    return shared


def parse(name: str, description: str) -> argparse.Namespace:
    options_of = parser(name, description, what="cells", quick=f"--iterations {QUICK_ITERATIONS}")
    add = options_of.add_argument
    add("--iterations", type=int, help="iterations of each run (default: by cell)")
    add("--threads", type=int, help="CPU threads (default: torch's choice)")
    add("--accelerator", default="auto", help="as trainer.accelerator: auto, cpu, gpu")
    add("--cold", action="store_true", help="compile without the compiler's cache")
    add("overrides", nargs="*", help="keys of the configuration with other values, in all cells")
    options = options_of.parse_args()
    options.iterations = options.iterations or (QUICK_ITERATIONS if options.quick else None)
    if options.iterations is not None and options.iterations < 10:
        options_of.error("--iterations must be at least 10: some are for warming up")
    return options


def environment(folder: str, options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables of a child process.

    They simulate a terminal for the progress bar, and set the number of threads and the folder of the compiler's cache.
    """
    env = os.environ | {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "COLUMNS": "120"}
    if options.threads:
        env |= {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
    if options.cold:
        env["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/cache"
    return env


def command(cell: Cell, result: Path, options: argparse.Namespace) -> list[str]:
    overrides = (
        f"data={cell.data}",
        *cell.overrides,
        f"method.compile={str(cell.compiled).lower()}",
        f"trainer.max_steps={cell.iterations}",
        f"trainer.accelerator={options.accelerator}",
        *options.overrides,
    )
    return [sys.executable, "-m", f"benchmarks.{cell.script}", str(result), *overrides]


def measure(cell: Cell, options: argparse.Namespace) -> Row:
    """Run one measurement in its own process, so that it shares neither memory nor compiled code with others."""
    row = {key: getattr(cell, key) for key in ("name", "series", "data", "method", "mode", "reference")}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        output = Path(folder, "output.txt")
        with output.open("wb") as file:
            done = subprocess.run(
                command(cell, result, options),
                cwd=ROOT,
                env=environment(folder, options),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        if done.returncode == 0:
            return row | json.loads(result.read_text())
        tail = output.read_text(errors="replace").strip().splitlines()[-12:]
        return row | {"error": "\n".join(tail) or f"exit code {done.returncode}"}


def machine() -> dict[str, Any]:
    return {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}


def write(path: Path, rows: list[Row]) -> None:
    """Write all results so far as JSON.

    The file is written after each measurement, so that an interruption loses only one.
    """
    content = {"machine": machine(), "reference": {"source": CITATION, **REFERENCE}, "cells": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def main(cells: Cells = cells, tables: Tables = tables, *, name: str = "run", description: str = __doc__ or "") -> int:
    """Run the measurements one by one, and print the tables.

    Return the exit code, which is 1 if a measurement has failed.
    """
    options = parse(name, description)
    console = Console()
    chosen = [cell for cell in cells(options.iterations) if options.only.search(cell.name)]
    if options.list or not chosen:
        names = "\n".join(cell.name for cell in chosen)
        console.print(names or "No cell has such a name; --list shows them.")
        return 0 if chosen else 1
    path = options.out / f"{datetime.now():%Y-%m-%d_%H-%M-%S}.json"
    rows: list[Row] = []
    for i, cell in enumerate(chosen, 1):
        row = measure(cell, options)
        rows.append(row)
        write(path, rows)
        outcome = row.get("error") or f"{row['seconds_per_100']:.3f} s / 100 {cell.unit}"
        console.print(f"[{i}/{len(chosen)}] {cell.name}: {outcome}", markup=False, highlight=False)
    for table in tables(rows):
        console.print(table)
    console.print(f"written to {path}")
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
