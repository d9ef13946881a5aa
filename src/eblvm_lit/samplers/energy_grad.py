"""The gradient of an energy, eagerly or as a captured CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eblvm_lit.core.functional import grad, plain_autograd

__all__ = ["CapturedGrad", "energy_grad"]

N_WARM_UP = 3  # calls before the capture: libraries choose their kernels in the first calls


def energy_grad(energy: Callable[..., Tensor], x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The first-order gradient of a total energy in each of its variables.

    Args:
        energy: Maps the variables to a scalar.
        x: The variables.

    Example:
        >>> energy_grad(lambda x, y: (x * x * y).sum(), (torch.tensor([3.0]), torch.tensor([2.0])))
        (tensor([12.]), tensor([9.]))
    """
    with plain_autograd():
        return grad(energy, argnums=tuple(range(len(x))))(*x)


class CapturedGrad:
    """:func:`energy_grad` as a CUDA graph, for variables of fixed shapes: one launch instead of one for each kernel.

    This saves time where kernels are short. The result of a call is overwritten by the next call.

    Args:
        energy: Maps the variables to a scalar; its parameters must stay at their addresses.
        x: Variables of the shapes and types of all calls, on a GPU.
    """

    def __init__(self, energy: Callable[..., Tensor], x: tuple[Tensor, ...]) -> None:
        self.x = tuple(part.clone() for part in x)
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(N_WARM_UP):
                energy_grad(energy, self.x)
        main.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.gradient = energy_grad(energy, self.x)

    def __call__(self, energy: Callable[..., Tensor], x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The gradient at x of the captured energy."""
        for place, part in zip(self.x, x, strict=True):
            place.copy_(part)
        self.graph.replay()
        return self.gradient
