"""A benchmark of the FLOPs of an iteration for networks of published sizes.

It compares the FLOPs that torch counts with the FLOPs that the mathematics needs.

Run it with python -m benchmarks.flops.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.run import ROOT
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.runs.instantiate import instantiate

__all__ = ["CELLS", "count", "necessary"]

# Each name has its overrides and a function of the number K of lower steps. The function returns the numbers of passes
# through the model (F) and through the posterior (Q) that the mathematics needs; None means that these passes were not
# counted. The unit is a forward pass. A gradient with respect to the input costs one more pass, and a gradient with
# respect to the parameters one more. A gradient with respect to theta of a score, which itself is a gradient with
# respect to v, costs 6 F in all.
CELLS: dict[str, tuple[tuple[str, ...], Callable[[int], tuple[int, int]] | None]] = {
    "mdsm": (("method=mdsm", "marginal_model.head=quadratic"), lambda _: (6, 0)),
    "bimdsm": (("method=bimdsm",), lambda k: (6 + k, 2 + 3 * k)),
    "bimdsm shared": (("method=bimdsm", "method.lower_noise=shared"), lambda k: (6, 2 + 3 * k)),
    "bimdsm N=2": (("method=bimdsm", "method.n_unroll=2"), None),
    "bimdsm N=2 shared": (("method=bimdsm", "method.n_unroll=2", "method.lower_noise=shared"), None),
    "bimdsm fixed point": (("method=bimdsm", "hypergradient=fixed_point"), None),
    "bimdsm fixed point shared": (
        ("method=bimdsm", "hypergradient=fixed_point", "method.lower_noise=shared"),
        None,
    ),
    "vages_mdsm": (("method=vages_mdsm",), lambda k: (7 + k, 1 + 3 * k)),
    "vages_mdsm shared": (("method=vages_mdsm", "method.lower_noise=shared"), lambda k: (7, 1 + 3 * k)),
    "bidvl": (("method=bidvl",), None),
}


class _Modules:
    """A substitute for the module tracker of torch's FLOP counter.

    The original tracker fails with ``torch.autograd.grad`` with respect to a leaf tensor.
    """

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def flops_of(run: Callable[[], Any]) -> int:
    """Count the FLOPs of the matrix products and convolutions in a call; a multiply-add counts as two."""
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _Modules()  # type: ignore[assignment]
    with counter:
        run()
    return counter.get_total_flops()


def method_of(data: str, overrides: tuple[str, ...]) -> Any:
    """Build a method from its configuration, without reading data."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", [f"data={data}", *overrides, "run_dir=build", "outputs_dir=build"])
    torch.manual_seed(0)
    return instantiate(cfg.method, "method")


def count(method: Any, rows: int) -> float:
    """Count the FLOPs of an eager iteration, per example of the minibatch."""
    optimizers = dict(zip(method.groups, method.configure_optimizers(), strict=True))
    state = method.train_state(optimizers, {name: torch.tensor(1e-4) for name in method.rates})
    v = torch.rand(rows, *method.event_shape)
    noise = method.draw_noise(v, keyed_generator(0))

    def iterate() -> None:
        with plain_autograd():
            method.run_iteration(state, v, noise)

    return flops_of(iterate) / rows


def passes(method: Any, rows: int) -> tuple[float, float]:
    """Count the FLOPs per example of a forward pass through the model's network and through the posterior."""
    v = torch.rand(rows, *method.event_shape)
    with torch.no_grad():
        model = flops_of(lambda: method.energy.network(v))
        posterior = getattr(method, "posterior", None)
        return model / rows, (0 if posterior is None else flops_of(lambda: posterior.distribution_params(v))) / rows


def necessary(method: Any, formula: Callable[[int], tuple[int, int]], rows: int) -> float:
    """Compute the FLOPs per example that the mathematics needs.

    The formula gives numbers of whole passes through the model's network, without its head, and through the posterior.
    """
    (model, posterior) = passes(method, rows)
    (n_model, n_posterior) = formula(getattr(method, "n_lower_steps", 0))
    return n_model * model + n_posterior * posterior


def measure(data: str, rows: int, only: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, (overrides, formula) in CELLS.items():
        if only not in name:
            continue
        method = method_of(data, overrides)
        model, posterior = passes(method, rows)
        found.append(
            {
                **{"name": name, "data": data, "counted": count(method, rows), "model": model, "posterior": posterior},
                "necessary": None if formula is None else necessary(method, formula, rows),
            }
        )
    return found


def show(rows: list[dict[str, Any]]) -> None:
    base = next((row["counted"] for row in rows if row["name"] == "mdsm"), None)
    table = Table("method", "data", "counted", "necessary", "ratio", "of mdsm's", title="GFLOP a row and iteration")
    for row in rows:
        counted = row["counted"]
        least = row["necessary"]
        table.add_row(
            *(row["name"], row["data"], f"{counted / 1e9:.2f}"),
            *("", "") if least is None else (f"{least / 1e9:.2f}", f"{counted / least:.2f}"),
            f"{counted / base:.2f}" if base else "",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flops", description=__doc__)
    parser.add_argument("--only", default="", help="pick methods by a part of their name")
    parser.add_argument("--data", default="mnist", help="whose published model: mnist or cifar10")
    parser.add_argument("--rows", type=int, default=2, help="rows of the minibatch; FLOPs are linear in them")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "bench" / "flops.json", help="the JSON file")
    chosen = parser.parse_args()
    rows = measure(chosen.data, chosen.rows, chosen.only)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
