"""Whether a run compiles its iteration: ``method.compile``, and the costs by which ``auto`` chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple

import torch

from eblvm_lit.core.fast_paths import compiler_available
from eblvm_lit.errors import ConfigError

__all__ = ["Choice", "Measurement", "compile_seconds", "compiles", "costs"]

# Eager iterations that ``auto`` measures before it chooses; the first one warms up and is not counted.
N_MEASURED = 5
# Compilation takes BASE seconds and PER_STEP for each gradient evaluation of an iteration and each parameter tensor.
BASE, PER_STEP = 20.0, 0.6
# The part of an eager iteration that a compiled one saves at least, where its time is overhead.
SAVED = 0.5


class Choice(NamedTuple):
    """Whether to compile, and a sentence that gives the reason.

    Attributes:
        compiled: None where ``auto`` measures before it chooses.
        sentence: Says which setting led to it.
    """

    compiled: bool | None
    sentence: str


def compiles(mode: bool | Literal["auto"], device: torch.device) -> Choice:
    """What ``method.compile`` says before the first iteration.

    Args:
        mode: ``method.compile``.
        device: Where the run is.

    Raises:
        ConfigError: Where ``mode`` is true, and there is no compiler.

    Example:
        >>> compiles(False, torch.device("cpu"))
        Choice(compiled=False, sentence='compile=false: running eagerly.')
    """
    if mode is False:
        return Choice(False, "compile=false: running eagerly.")
    compiler = compiler_available(device)
    if mode is True and compiler is None:
        raise ConfigError(
            f"method.compile=true, but no compiler for {device.type} was found: use method.compile=auto or false."
        )
    if mode is True:
        return Choice(True, f"compile=true: compiling the whole iteration with {compiler}.")
    if compiler is None:
        return Choice(False, f"compile=auto: running eagerly, no compiler for {device.type} was found.")
    return Choice(None, f"compile=auto: chosen after {N_MEASURED} eager iterations; {compiler} was found.")


def compile_seconds(n_inner_steps: int, n_tensors: int) -> float:
    """An estimate of the time that compiling an iteration takes.

    Args:
        n_inner_steps: Gradient evaluations in the iteration, unrolled ones included.
        n_tensors: Parameter tensors of all networks: what a network's depth is known by.

    Example:
        >>> compile_seconds(1, 3) < compile_seconds(10, 3) < compile_seconds(10, 60)
        True
    """
    return BASE + PER_STEP * n_inner_steps * n_tensors


def costs(n_iterations: int, eager_seconds: float, to_compile: float) -> Choice:
    """Compile where that takes less time than it saves.

    Args:
        n_iterations: Iterations still to run.
        eager_seconds: Of one iteration, measured.
        to_compile: Seconds.

    Example:
        >>> costs(10_000, 0.02, 40.0).sentence
        'compile=auto: compiling (about 40 s): the other 10,000 iterations would take 200 s eagerly, 20 ms each.'
        >>> costs(100, 0.02, 40.0).compiled
        False
    """
    rest = n_iterations * eager_seconds
    told = f"the other {n_iterations:,} iterations would take {rest:.3g} s eagerly, {1e3 * eager_seconds:.3g} ms each."
    if SAVED * rest > to_compile:
        return Choice(True, f"compile=auto: compiling (about {to_compile:.2g} s): {told}")
    return Choice(False, f"compile=auto: running eagerly: {told[:-1]}, and compiling about {to_compile:.2g} s.")


@dataclass
class Measurement:
    """The eager iterations by which ``auto`` chooses, and what it chose; a checkpoint keeps it.

    A resumed run goes on with the choice, because eager and compiled iterations differ in their last digits. A run that
    is made longer or shorter chooses anew.

    Attributes:
        at: The iteration before which the choice is made.
        max_steps: The iterations of the run.
        compiled: The choice; None before it is made.
        seconds: Of the iterations so far.

    Example:
        >>> kept = Measurement(at=5, max_steps=1000, compiled=True).kept()
        >>> Measurement.of(kept, start=700, max_steps=1000).compiled, Measurement.of(kept, start=700, max_steps=2000).at
        (True, 705)
    """

    at: int
    max_steps: int
    compiled: bool | None = None
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, kept: dict[str, Any] | None, start: int, max_steps: int) -> Measurement:
        """Where a run begins that starts with an iteration, and goes on from what a checkpoint kept, if there is one."""
        if kept and kept["max_steps"] == max_steps and (kept["compiled"] is not None or kept["at"] > start):
            return cls(kept["at"], max_steps, kept["compiled"])
        return cls(start + N_MEASURED, max_steps)

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"at": self.at, "max_steps": self.max_steps, "compiled": self.compiled}

    def choose(self, to_compile: float) -> Choice:
        """The choice by the measured iterations."""
        counted = self.seconds[1:] or self.seconds
        return costs(self.max_steps - self.at, median(counted), to_compile)
