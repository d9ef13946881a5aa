"""The gradient that a step of Langevin dynamics takes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eblvm_lit.core.autograd import grad, plain_autograd

__all__ = ["CapturedSlope", "slope"]

N_WARM_UP = 3  # calls before a graph is captured: libraries choose their kernels in the first ones


def slope(energy: Callable[..., Tensor], x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradient of a total energy in all its variables, of first order: by plain autograd, which leaves no graph.

    Args:
        energy: Maps the variables to a scalar.
        x: The variables.

    Example:
        >>> slope(lambda x, y: (x * x * y).sum(), (torch.tensor([3.0]), torch.tensor([2.0])))
        (tensor([12.]), tensor([9.]))
    """
    with plain_autograd():
        return grad(energy, argnums=tuple(range(len(x))))(*x)


class CapturedSlope:
    """:func:`slope` at variables of one shape, as a CUDA graph: its kernels are launched at once and not one by one.

    That saves time where kernels are short. What a call returns holds until the next call.

    Args:
        energy: Maps the variables to a scalar; its parameters must stay where they are.
        x: Variables of the shapes and types to come, on a GPU.
    """

    def __init__(self, energy: Callable[..., Tensor], x: tuple[Tensor, ...]) -> None:
        self.x = tuple(part.clone() for part in x)
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(N_WARM_UP):
                slope(energy, self.x)
        main.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.gradient = slope(energy, self.x)

    def __call__(self, energy: Callable[..., Tensor], x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # noqa: ARG002
        """The gradient of the energy that was captured, at x."""
        for place, part in zip(self.x, x, strict=True):
            place.copy_(part)
        self.graph.replay()
        return self.gradient
