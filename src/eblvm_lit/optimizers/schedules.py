"""Learning-rate schedules as pure functions of the iteration, which have no state to save."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

__all__ = ["Constant", "Cosine", "Exponential", "Schedule", "Step", "Warmup"]


class Schedule(ABC):
    """The base class of learning-rate schedules, functions that compute the learning rate at an iteration."""

    @abstractmethod
    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """Compute the learning rate at an iteration.

        Args:
            lr: The initial learning rate.
            iteration: The iteration, counted from 0.
            total: The number of iterations of the run.
        """


class Constant(Schedule):
    """A schedule that keeps the learning rate constant.

    Example:
        >>> Constant()(0.1, 7, 10)
        0.1
    """

    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """Compute the learning rate; see :meth:`Schedule.__call__`."""
        return lr


class Cosine(Schedule):
    r"""A schedule that lowers the learning rate to a floor along half a cosine.

    .. math:: \mathrm{floor} + (\alpha - \mathrm{floor}) \tfrac12 (1 + \cos(\pi i / n))

    Args:
        floor: The learning rate at the end, 1e-6 for the deep models of BiSM and VaGES. With None, or with a floor
            above the initial rate, the rate is constant.

    Example:
        >>> [round(Cosine(floor=0.0)(1.0, i, 4), 3) for i in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    def __init__(self, *, floor: NonNegativeFloat | None = 1e-6) -> None:
        self.floor = floor

    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """Compute the learning rate; see :meth:`Schedule.__call__`."""
        floor = lr if self.floor is None else min(self.floor, lr)
        progress = min(iteration / max(total, 1), 1.0)
        return floor + (lr - floor) * 0.5 * (1 + math.cos(math.pi * progress))


class Step(Schedule):
    """A schedule like ``StepLR``: it multiplies the learning rate by a factor every ``total // n_stages`` iterations.

    Args:
        factor: The factor by which the rate is multiplied.
        n_stages: The number of stages of ``total // n_stages`` iterations, after each of which the rate is multiplied.
            If the division leaves a remainder, the rate of the remaining iterations is multiplied again, once or
            several times.

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
        """Compute the learning rate; see :meth:`Schedule.__call__`."""
        return lr * self.factor ** (iteration // max(total // self.n_stages, 1))


class Exponential(Schedule):
    """A schedule that multiplies the learning rate by a factor after every fixed number of iterations.

    Args:
        factor: The factor by which the rate is multiplied.
        every: The number of iterations between two multiplications (for BiDVL, those of one epoch).

    Example:
        >>> [round(Exponential(factor=0.5, every=2)(1.0, i, 6), 3) for i in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    def __init__(self, *, factor: PositiveFloat, every: PositiveInt = 1) -> None:
        self.factor = factor
        self.every = every

    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """Compute the learning rate; see :meth:`Schedule.__call__`."""
        return lr * self.factor ** (iteration // self.every)


class Warmup(Schedule):
    """A schedule that raises the learning rate linearly from almost zero to the value of another schedule.

    Without the rise, an energy with a high initial learning rate can change faster than its posterior follows, and the
    posterior's particles then diverge.

    Args:
        n_iterations: The number of iterations of the rise.
        schedule: The other schedule, which also starts at the first iteration.

    Example:
        >>> [round(Warmup(n_iterations=4, schedule=Constant())(1.0, i, 6), 3) for i in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    def __init__(self, *, n_iterations: PositiveInt, schedule: Schedule) -> None:
        self.n_iterations = n_iterations
        self.schedule = schedule

    def __call__(self, lr: float, iteration: int, total: int) -> float:
        """Compute the learning rate; see :meth:`Schedule.__call__`."""
        return self.schedule(lr, iteration, total) * min((iteration + 1) / self.n_iterations, 1.0)
