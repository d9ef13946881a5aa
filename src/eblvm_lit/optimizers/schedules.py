"""Learning-rate schedules as pure functions of the iteration: nothing to save, nothing to step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

__all__ = ["Constant", "Cosine", "Exponential", "Schedule", "Step", "Warmup"]


class Schedule(ABC):
    """The learning rate at an iteration."""

    @abstractmethod
    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """Learning rate of iteration 0, 1, ... of ``total``, from the initial rate ``lr``."""


class Constant(Schedule):
    """The rate stays what it is.

    Example:
        >>> Constant()(0.1, 7, 10)
        0.1
    """

    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """See :class:`Schedule`."""
        return lr


class Cosine(Schedule):
    r"""Half a cosine from the rate to a floor.

    .. math:: \mathrm{floor} + (\alpha - \mathrm{floor}) \tfrac12 (1 + \cos(\pi i / n))

    Args:
        floor: Rate at the end; the deep models of BiSM and VaGES end at 1e-6. None, or a floor above the rate at the
            start: the rate stays what it is.

    Example:
        >>> [round(Cosine(floor=0.0)(1.0, i, 4), 3) for i in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    def __init__(self, *, floor: NonNegativeFloat | None = 1e-6) -> None:
        self.floor = floor

    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """See :class:`Schedule`."""
        floor = lr if self.floor is None else min(self.floor, lr)
        progress = min(iteration / max(total, 1), 1.0)
        return floor + (lr - floor) * 0.5 * (1 + math.cos(math.pi * progress))


class Step(Schedule):
    """The rate is multiplied by a factor at equal distances, as by torch's ``StepLR(optimizer, total // n_stages)``.

    Args:
        factor: What it is multiplied by.
        n_stages: The rate falls every ``total // n_stages`` iterations. What that leaves over at the end, fewer than
            n_stages iterations, has a further fall, or several.

    Example:
        >>> [round(Step(factor=0.1, n_stages=2)(1.0, i, 4), 3) for i in range(4)]
        [1.0, 1.0, 0.1, 0.1]
        >>> [round(Step(factor=0.1, n_stages=2)(1.0, i, 5), 3) for i in range(5)]
        [1.0, 1.0, 0.1, 0.1, 0.01]
    """

    def __init__(self, *, factor: PositiveFloat = 0.1, n_stages: PositiveInt = 6) -> None:
        self.factor = factor
        self.n_stages = n_stages

    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """See :class:`Schedule`."""
        return lr * self.factor ** (iteration // max(total // self.n_stages, 1))


class Exponential(Schedule):
    """The rate is multiplied by a factor every so many iterations.

    Args:
        factor: What it is multiplied by.
        every: After how many iterations (BiDVL: those of one epoch).

    Example:
        >>> [round(Exponential(factor=0.5, every=2)(1.0, i, 6), 3) for i in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    def __init__(self, *, factor: PositiveFloat, every: PositiveInt = 1) -> None:
        self.factor = factor
        self.every = every

    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """See :class:`Schedule`."""
        return lr * self.factor ** (iteration // self.every)


class Warmup(Schedule):
    """The rate rises on a line from nothing to what another schedule has it.

    An energy whose rate is high from the first iteration on can outrun its posterior, whose particles then diverge.

    Args:
        n_iterations: How many iterations it takes to rise.
        schedule: The other one, which starts at the first iteration, too.

    Example:
        >>> [round(Warmup(n_iterations=4, schedule=Constant())(1.0, i, 6), 3) for i in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    def __init__(self, *, n_iterations: PositiveInt, schedule: Schedule) -> None:
        self.n_iterations = n_iterations
        self.schedule = schedule

    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """See :class:`Schedule`."""
        return self.schedule(lr, iteration, total) * min((iteration + 1) / self.n_iterations, 1.0)
