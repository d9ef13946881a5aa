"""Modules as pure functions of their parameters, and reductions over event dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

__all__ = [
    *(
        "Params",
        "at_least_float32",
        "bind",
        "buffers_of",
        "copy_tree",
        "clone_buffers",
        "params_of",
        "sum_event",
        "tree_map",
    ),
]

Params = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


def bind(module: Module, params: Mapping[str, Tensor]) -> Module:
    """See a module with explicit parameters: every method becomes a pure function of them.

    The view is a module of the same class that shares everything with ``module`` but the given tensors. Nothing is
    swapped in and out, as ``torch.func.functional_call`` does: the module itself is never touched, several views of it
    can be alive at once, any method can be called, and a call costs what a call of the module costs.

    Args:
        module: Any module; it is left as it is.
        params: Values that stand in for its parameters and buffers, by name; the others stay its own. A pass that moves
            buffers in place, as batch normalisation and spectral norms do, moves the given ones: see
            :func:`clone_buffers`.

    Returns:
        The view.

    Example:
        >>> import torch
        >>> line = nn.Linear(1, 1, bias=False)
        >>> bind(line, {"weight": torch.tensor([[3.0]])})(torch.ones(1, 1))
        tensor([[3.]])
    """
    return _view(module, params, "")


def _view(module: Module, params: Mapping[str, Tensor], prefix: str) -> Module:
    view = object.__new__(type(module))
    view.__dict__.update(module.__dict__)
    view.__dict__["_parameters"] = {name: params.get(prefix + name, p) for name, p in module._parameters.items()}
    view.__dict__["_buffers"] = {name: params.get(prefix + name, b) for name, b in module._buffers.items()}
    view.__dict__["_modules"] = {
        name: None if child is None else _view(child, params, f"{prefix}{name}.")
        for name, child in module._modules.items()
    }
    return view


def params_of(module: nn.Module) -> Params:
    """The module's trainable parameters, detached and sharing storage, by name."""
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def buffers_of(module: nn.Module) -> Params:
    """The module's buffers, by name: running statistics, vectors of power iterations, chains."""
    return {name: b.detach() for name, b in module.named_buffers()}


def clone_buffers(buffers: Mapping[str, Tensor]) -> Params:
    """Copies of buffers that a module may move in its passes while whoever owns the originals keeps them.

    To be made inside of the function that is differentiated, since ``torch.func`` lets nothing else be moved in place.

    Example:
        >>> import torch
        >>> norm, v = nn.BatchNorm1d(2), torch.ones(3, 2)
        >>> moved = clone_buffers(buffers_of(norm))
        >>> _ = bind(norm, {**params_of(norm), **moved})(v)
        >>> moved["running_mean"], norm.running_mean
        (tensor([0.1000, 0.1000]), tensor([0., 0.]))
    """
    return {name: b.clone() for name, b in buffers.items()}


def tree_map(fn: Callable[..., Tensor], first: Mapping[str, Tensor], *rest: Mapping[str, Tensor]) -> Params:
    """Apply ``fn`` to the values that several dictionaries hold under one key."""
    return {key: fn(value, *(other[key] for other in rest)) for key, value in first.items()}


def copy_tree(target: Mapping[str, Any], source: Mapping[str, Any]) -> None:
    """Copy tensors of one nested mapping into those of another with the same keys.

    Example:
        >>> target = {"a": {"b": torch.zeros(1)}}
        >>> copy_tree(target, {"a": {"b": torch.ones(1)}})
        >>> target
        {'a': {'b': tensor([1.])}}
    """
    for key, value in target.items():
        if isinstance(value, Tensor):
            value.copy_(source[key])
        else:
            copy_tree(value, source[key])


def at_least_float32(x: Tensor) -> Tensor:
    """What autocast computed in half precision, for what must not be: sums, squared norms and densities.

    Example:
        >>> [at_least_float32(torch.zeros(1, dtype=dtype)).dtype for dtype in (torch.bfloat16, torch.float64)]
        [torch.float32, torch.float64]
    """
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def sum_event(x: Tensor, batch_dims: int = 1) -> Tensor:
    """Sum over all event dimensions, whatever their number.

    Args:
        x: Shape (*batch, *event).
        batch_dims: How many leading dimensions are kept.

    Returns:
        Shape (*batch,).

    Example:
        >>> import torch
        >>> sum_event(torch.ones(2, 3, 4, 5)).tolist()
        [60.0, 60.0]
    """
    return x.flatten(batch_dims).sum(-1) if x.dim() > batch_dims else x
