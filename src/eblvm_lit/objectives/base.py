"""The base class of objectives, which are functionals of the score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import grad
from eblvm_lit.core.minibatch import Minibatch
from eblvm_lit.errors import ConfigError

__all__ = ["Noise", "Objective", "ScoreFunction"]

Noise = dict[str, Tensor]
ScoreFunction = Callable[[Tensor], Tensor]
Module = TypeVar("Module", bound=nn.Module)


class Objective(ABC):
    """The base class of objectives: functionals of a score function, evaluated on data and noise.

    An iteration draws ``noise``, applies ``perturb`` to the data, estimates the score at the perturbed data and
    computes ``loss``. Noise may have leading dimensions, with one slice for each inner step; :meth:`perturb` and
    :meth:`loss` receive one slice.

    Attributes:
        words: The objective's name in words, for the line that a run prints first.
        pointwise: Whether the loss depends only on the score's values at the perturbed points; then :meth:`cotangent`
            returns the loss's derivative with respect to these values. False for a loss that differentiates the score.
        perturbs: Whether the score is matched at perturbed data; if so, the lower level also trains on perturbed data.
        lower_weight: A function that maps the noise to the weight of each example in the lower-level loss, shape (B,);
            None for equal weights.
    """

    words: str = "a user's own objective"
    pointwise: bool
    perturbs: bool = False
    lower_weight: Callable[[Noise], Tensor | float] | None = None

    @abstractmethod
    def noise(self, v: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Noise:
        """Draw all random tensors that one evaluation of the loss needs, each of shape (*shape, B, ...)."""

    def perturb(self, v: Tensor, noise: Noise) -> Tensor:
        """Return the points at which the score is matched, shape (B, *event)."""
        return v

    @abstractmethod
    def loss(self, score: ScoreFunction, v: Tensor, noise: Noise) -> Tensor:
        """Compute the loss of each example, shape (B,), at the perturbed v."""

    def of_data(self, network: Module) -> Module:
        """Return the network (energy or posterior) that metrics, figures and samplers use for unperturbed data v.

        It is the trained network itself, unless the objective trains a network of perturbed data and their noise level.
        """
        return network

    def float32_reason(self) -> str | None:
        """Return the reason why the objective needs float32, or None if mixed precision is accurate enough.

        A loss that differentiates the score takes second derivatives of E.
        """
        return None if self.pointwise else "as the objective takes second derivatives of the energy in v"

    def on_minibatch(self, minibatch: Minibatch) -> Objective:
        """Return the objective to use on one minibatch.

        It is the objective itself, or, if the loss couples examples, a copy that knows the minibatch.
        """
        return self

    def check_batch_size(self, n: int) -> None:  # noqa: B027 - most objectives allow every batch size
        """Raise a ConfigError if the loss is not defined for n examples."""

    def cotangent(self, s: Tensor, v: Tensor, noise: Noise) -> Tensor:
        """Compute the gradient of the summed loss with respect to the scores s at the perturbed v, shape (B, *event).

        The gradient is defined if the objective is ``pointwise``. This default uses autograd, which costs one pass more
        than a closed form.

        Raises:
            ConfigError: If the loss depends on more than the score's values.
        """
        if not self.pointwise:
            raise ConfigError(
                f"{type(self).__name__} depends on more than the score's values: use method=bism, or an objective that "
                "is pointwise."
            )
        return grad(lambda s: self.loss(lambda x: s, v, noise).sum())(s)  # noqa: ARG005
