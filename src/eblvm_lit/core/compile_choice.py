"""Whether a run compiles its iteration: ``method.compile``, and the costs by which ``auto`` chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple

import torch

from eblvm_lit.core.fast_paths import compiler_available
from eblvm_lit.errors import ConfigError

__all__ = ["Choice", "Measurement", "compiles", "costs"]

# Eager iterations that ``auto`` measures before it chooses; the first one warms up and is not counted.
N_MEASURED = 5
# The size of an iteration is its gradient evaluations times the parameter tensors, which tell a network's depth.
# Compilation takes BASE seconds, and PER_SIZE times the size. A compiled iteration saves OVERHEAD seconds times the
# size, and at least the part SAVED of the eager one. docs/concepts.md has the measurements.
BASE, PER_SIZE, OVERHEAD, SAVED = 11.0, 0.27, 1e-4, 0.15


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


def costs(n_iterations: int, eager_seconds: float, size: int) -> Choice:
    """Compile where that takes less time than it saves.

    Args:
        n_iterations: Iterations still to run.
        eager_seconds: Of one iteration, measured.
        size: Gradient evaluations of an iteration times the number of parameter tensors.

    Example:
        >>> costs(10_000, 0.007, 66).sentence
        'compile=auto: compiling, which takes about 29 s and saves about 63 s: 10,000 iterations to come, each of 7 ms.'
        >>> costs(100, 0.007, 66).compiled
        False
    """
    to_compile = BASE + PER_SIZE * size
    saved = n_iterations * max(SAVED * eager_seconds, min(0.9 * eager_seconds, OVERHEAD * size))
    rest = f"{n_iterations:,} iterations to come, each of {1e3 * eager_seconds:.2g} ms."
    if saved > to_compile:
        about = f"compile=auto: compiling, which takes about {to_compile:.0f} s and saves about {saved:.0f} s"
    else:
        about = f"compile=auto: running eagerly, compiling would take about {to_compile:.0f} s and save {saved:.0f} s"
    return Choice(saved > to_compile, f"{about}: {rest}")


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
        """Where a run begins.

        Args:
            kept: What a checkpoint kept, if it resumes one.
            start: Its first iteration.
            max_steps: Its last one.
        """
        if kept and kept["max_steps"] == max_steps and (kept["compiled"] is not None or kept["at"] > start):
            return cls(kept["at"], max_steps, kept["compiled"])
        return cls(start + N_MEASURED, max_steps)

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"at": self.at, "max_steps": self.max_steps, "compiled": self.compiled}

    def choose(self, size: int) -> Choice:
        """The choice for an iteration of a size, by the measured ones."""
        counted = self.seconds[1:] or self.seconds
        return costs(self.max_steps - self.at, median(counted), size)
