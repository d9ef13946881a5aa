"""The list of measurements of benchmarks.run, and the times of the authors' code with which they are compared."""

from __future__ import annotations

from dataclasses import dataclass

CITATION = "papers' released code, 2-core machine, batch 100"
# Seconds per 100 iterations of the authors' code, by data and method.
REFERENCE = {
    "checkerboard": {"dsm": 0.086, "bidsm N=0": 0.58, "bidsm N=5": 1.59, "vages_dsm L=2": 0.55},
    "frey_face": {
        **{"dsm": 0.35, "bidsm N=0": 3.45, "bidsm N=1": 5.43, "bidsm N=5": 9.68, "bidsm N=10": 14.3},
        "vages_dsm L=2": 4.8,
    },
    "cifar10": {"bidvl": 360.0},
}

DATA = ("checkerboard", "frey_face")
ONE_GRADIENT = ("sm", "ssm", "dsm", "mdsm", "ksd", "cd", "nce")  # methods with one gradient per iteration
MEMORY_ITERATIONS = 20
QUICK_ITERATIONS = 30
MEMORY_TERMS = (1, 5, 20, 40)


@dataclass(frozen=True)
class Cell:
    """One measurement: a training run in its own process."""

    series: str
    data: str
    method: str
    compiled: bool
    iterations: int
    overrides: tuple[str, ...]
    script: str = "measure"  # the module in benchmarks/ that runs this measurement
    unit: str = "iterations"

    @property
    def mode(self) -> str:
        return "compiled" if self.compiled else "eager"

    @property
    def name(self) -> str:
        """Return the name of the measurement, by which the option --only selects it."""
        return f"{self.series}/{self.data}/{self.method}/{self.mode}"

    @property
    def reference(self) -> float | None:
        return REFERENCE.get(self.data, {}).get(self.method)


def unrolled(method: str, n: int) -> tuple[str, ...]:
    return (f"method={method}", "method.n_lower_steps=5", f"method.n_unroll={n}")


def implicit(n_terms: int) -> tuple[str, ...]:
    parts = ("method=bidsm", "hypergradient=implicit")
    return (*parts, "method.n_lower_steps=5", f"hypergradient.n_terms={n_terms}")


# All methods with a lower level take K = 5 steps of it in each iteration.
METHODS = {
    **{name: (f"method={name}",) for name in ("sm", "ssm", "dsm", "mdsm", "ksd", "cd", "nce", "vnce")},
    "bissm N=5": unrolled("bissm", 5),
    "bimdsm N=5": unrolled("bimdsm", 5),
    **{f"bidsm N={n}": unrolled("bidsm", n) for n in (0, 1, 2, 5, 10)},
    **{f"{name} L=2": (f"method={name}",) for name in ("vages_dsm", "vages_mdsm", "vages_ksd")},
    **{f"bidsm implicit {n}": implicit(n) for n in (5, 20)},
}


def length(data: str, method: str, compiled: bool) -> int:
    """Return a number of iterations that takes several seconds.

    In a shorter run, a short disturbance of the machine would change the result.
    """
    if data == "checkerboard":
        return 20_000 if compiled else 1_100
    return 1_000 if method in ONE_GRADIENT else 250


def cells(iterations: int | None = None) -> list[Cell]:
    """List all measurements of speed and of memory.

    Args:
        iterations: The number of iterations of each run; None chooses a suitable one for each.
    """
    speed = [
        Cell("speed", data, method, compiled, iterations or length(data, method, compiled), overrides)
        for data in DATA
        for method, overrides in METHODS.items()
        for compiled in (False, True)
    ]
    memory = [
        Cell("memory", "frey_face", f"bidsm {kind}{n}", False, iterations or MEMORY_ITERATIONS, overrides)
        for n in MEMORY_TERMS
        for kind, overrides in (("implicit ", implicit(n)), ("N=", unrolled("bidsm", n)))
    ]
    return speed + memory
