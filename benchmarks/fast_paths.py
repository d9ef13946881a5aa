"""A benchmark of each fast path against the alternative that uses only torch's public API.

Run it with python -m benchmarks.fast_paths.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from eblvm_lit.core import fast_paths
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.optimizers.stateful import StatefulOptimizer
from eblvm_lit.runs.build import build

ROOT = Path(__file__).resolve().parents[1]
METHODS = {
    "DSM": ("method=dsm",),
    "BiDSM, K = N = 5": ("method=bidsm", "method.n_lower_steps=5", "method.n_unroll=5"),
}
Run = Callable[[], Any]


class Hooked(StatefulOptimizer):
    """An optimizer whose step torch wraps with profiling and hooks, as it does by default."""

    def step(self, closure: Run) -> Any:
        return closure()


def show(name: str, unit: str, fast: list[float], public: list[float]) -> None:
    def summary(x: list[float]) -> str:
        return f"{median(x):.3g} ({min(x):.3g} to {max(x):.3g})"

    ratio = median(public) / median(fast)
    print(f"{name}: {summary(fast)} {unit}, public {summary(public)}, n = {len(fast)}, ratio {ratio:.2f}", flush=True)


def compare(name: str, fast: Run, public: Run, n: int, repetitions: int) -> None:
    """Print the processor time per call, in microseconds, of a fast path and of its public alternative.

    Blocks of n calls of the two alternate; the first block of each warms up and does not count.
    """
    found: dict[Run, list[float]] = {fast: [], public: []}
    for i in range(repetitions + 1):
        for run, times in found.items():
            start = time.process_time()
            for _ in range(n):
                run()
            if i > 0:
                times.append((time.process_time() - start) / n * 1e6)
    show(name, "us", *found.values())


def iteration(overrides: tuple[str, ...], compiled: bool, public: bool = False) -> tuple[Run, Any]:
    """Return a function that runs one iteration of a method, and the method itself.

    Each call uses the same points of the checkerboard and the same noise.
    """
    with tempfile.TemporaryDirectory() as folder, initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        parts = build(compose("config", [*overrides, "data=checkerboard", f"run_dir={folder}"]))
        parts.data.setup()
    method = parts.method
    v = parts.data.splits.train[:100]
    optimizers = dict(zip(method.groups, method.configure_optimizers(), strict=True))
    state = method.train_state(optimizers, {name: torch.tensor(1e-3) for name in optimizers})
    arguments = (state, v, method.draw_noise(v, torch.Generator().manual_seed(0)))
    if not compiled:
        return plain_autograd()(partial(method.run_iteration, *arguments)), method
    run = partial(method.run_iteration)
    step = torch.compile(run, fullgraph=True, dynamic=False) if public else fast_paths.compile_step(run)
    step(*arguments)
    return partial(step, *arguments), method


def compile_step(repetitions: int) -> None:
    for name, overrides in METHODS.items():
        fast, public = (iteration(overrides, True, public)[0] for public in (False, True))
        compare(f"compile_step, {name}", fast, public, 200, repetitions)


def without_hooks(repetitions: int) -> None:
    for name, overrides in METHODS.items():
        for compiled, n in ((True, 200), (False, 50)):
            run, method = iteration(overrides, compiled)
            fast, public = (
                partial(kind(dict(method.energy.named_parameters()), method.optimizer).step, closure=run)
                for kind in (StatefulOptimizer, Hooked)
            )
            compare(f"without_hooks, {name}, {'compiled' if compiled else 'eager'}", fast, public, n, repetitions)


CELLS = {cell.__name__: cell for cell in (compile_step, without_hooks)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fast_paths", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the names of the fast paths and run nothing")
    parser.add_argument("--only", choices=CELLS, help="measure one of them")
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, cell in CELLS.items():
        if options.list:
            print(name)
        elif options.only in (None, name):
            cell(options.repetitions)
