"""Modules as pure functions of their parameters, and reductions over event dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Bound", "Params", "bind", "params_of", "sum_event", "tree_map"]

Params = dict[str, Tensor]


class _Dispatch(nn.Module):
    """Gives ``torch.func.functional_call``, which only knows ``forward``, every method of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, method: str, *args: Any) -> Any:
        return getattr(self.module, method)(*args)


class Bound:
    """A module seen with other parameters than its own; made by :func:`bind`."""

    def __init__(self, module: nn.Module, params: Mapping[str, Tensor]) -> None:
        self._dispatch = _Dispatch(module)
        self._params = {f"module.{name}": value for name, value in params.items()}

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return torch.func.functional_call(
                self._dispatch, self._params, (method, *args), tie_weights=False
            )

        return call


def bind(module: nn.Module, params: Mapping[str, Tensor]) -> Bound:
    """See a module with explicit parameters: every method becomes a pure function of them.

    Args:
        module: Any module; it is left as it is.
        params: Values that stand in for its parameters, by name.

    Returns:
        An object with the methods of ``module``.

    Example:
        >>> line = nn.Linear(1, 1, bias=False)
        >>> bind(line, {"weight": torch.tensor([[3.0]])}).forward(torch.ones(1, 1))
        tensor([[3.]])
    """
    return Bound(module, params)


def params_of(module: nn.Module) -> Params:
    """The module's trainable parameters, detached and sharing storage, by name."""
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def tree_map(fn: Callable[..., Tensor], first: Mapping[str, Tensor], *rest: Mapping[str, Tensor]) -> Params:
    """Apply ``fn`` to the values that several dictionaries hold under one key."""
    return {key: fn(value, *(other[key] for other in rest)) for key, value in first.items()}


def sum_event(x: Tensor, batch_dims: int = 1) -> Tensor:
    """Sum over all event dimensions, whatever their number.

    Args:
        x: Shape (*batch, *event).
        batch_dims: How many leading dimensions are kept.

    Returns:
        Shape (*batch,).

    Example:
        >>> sum_event(torch.ones(2, 3, 4, 5)).tolist()
        [60.0, 60.0]
    """
    return x.flatten(batch_dims).sum(-1) if x.dim() > batch_dims else x
