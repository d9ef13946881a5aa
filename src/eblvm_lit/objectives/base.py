"""The contract of objectives: functionals of the score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from eblvm_lit.core.functional import grad
from eblvm_lit.core.minibatch import Minibatch
from eblvm_lit.errors import ConfigError

__all__ = ["Noise", "Objective", "ScoreFunction"]

Noise = dict[str, Tensor]
ScoreFunction = Callable[[Tensor], Tensor]


class Objective(ABC):
    """A functional of a score function, evaluated at data and noise.

    One iteration is: draw ``noise``, ``perturb`` the data, estimate the score there, take ``loss``. Noise may have
    leading dimensions (one slice per inner step); :meth:`perturb` and :meth:`loss` see one slice.

    Attributes:
        words: Its name in words, for the first line of a run.
        pointwise: Whether the loss needs the score's values alone, at the perturbed points: then :meth:`cotangent` is
            its derivative by them. False for the losses that differentiate the score.
        perturbs: Whether the score is matched at perturbed data: the lower level then sees such data, too.
        lower_weight: Noise -> the weight of each example in the lower-level loss, shape (B,); None for equal weights.
    """

    words: str = "an objective of one's own"
    pointwise: bool
    perturbs: bool = False
    lower_weight: Callable[[Noise], Tensor | float] | None = None

    @abstractmethod
    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """All random numbers of one evaluation, each of shape (*shape, B, ...)."""

    def perturb(self, v: Tensor, noise: Noise) -> Tensor:
        """The points at which the score is matched, shape (B, *event)."""
        return v

    @abstractmethod
    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Loss per example, shape (B,), of the perturbed v."""

    def float32_reason(self) -> str | None:
        """Why mixed precision does not fit: a loss that differentiates the score takes second derivatives of E."""
        return None if self.pointwise else "as the objective takes second derivatives of the energy in v"

    def on_minibatch(self, minibatch: Minibatch) -> Objective:
        """The objective on one minibatch: itself, or a copy that knows the minibatch if its loss couples examples."""
        return self

    def check_batch_size(self, n: int) -> None:  # noqa: B027 - most take any
        """Refuse a number of examples that the loss is not defined for."""

    def cotangent(self, s: Tensor, v: Tensor, noise: Noise) -> Tensor:
        """d (sum of the losses) / d s, shape (B, *event), of the scores s at the perturbed v; if ``pointwise``.

        By autograd, which costs a pass more than a closed form.

        Raises:
            ConfigError: For a loss that needs more of the score than its values.
        """
        if not self.pointwise:
            raise ConfigError(
                f"{type(self).__name__} is not a function of the score's values alone: use method=bism, or an "
                "objective that is pointwise."
            )
        return grad(lambda s: self.loss(lambda x: s, v, noise).sum())(s)  # noqa: ARG005
