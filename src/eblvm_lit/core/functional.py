"""Modules as pure functions of their parameters, and reductions over event dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

__all__ = [
    *("Params", "at_least_float32", "bind", "buffers_of", "clip", "clone_buffers", "copy_tree", "norm"),
    *("params_of", "part", "prefixed", "sum_event", "tree_map"),
]

Params = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


def bind(module: Module, params: Mapping[str, Tensor], prefix: str = "") -> Module:
    """See a module with explicit parameters: every method becomes a pure function of them.

    The view is a module of the same class that shares everything with ``module`` but the given tensors. Nothing is
    swapped in and out, as ``torch.func.functional_call`` does: the module itself is never touched, several views of it
    can be alive at once, any method can be called, and a call costs what a call of the module costs.

    Args:
        module: Any module; it is left as it is.
        params: Values that stand in for its parameters and buffers, by name; the others stay its own. A pass that moves
            buffers in place, as batch normalisation and spectral norms do, moves the given ones: see
            :func:`clone_buffers`.
        prefix: What the names in ``params`` begin with, before the module's own.

    Returns:
        The view.

    Example:
        >>> import torch
        >>> line = nn.Linear(1, 1, bias=False)
        >>> bind(line, {"weight": torch.tensor([[3.0]])})(torch.ones(1, 1))
        tensor([[3.]])
    """
    own = module.__dict__
    view = object.__new__(type(module))
    parameters, buffers, children = dict(own["_parameters"]), dict(own["_buffers"]), dict(own["_modules"])
    for tensors in (parameters, buffers):
        for name in tensors:
            if prefix + name in params:
                tensors[name] = params[prefix + name]
    for name, child in children.items():
        if child is not None:
            children[name] = bind(child, params, f"{prefix}{name}.")
    view.__dict__.update(own, _parameters=parameters, _buffers=buffers, _modules=children)
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
    copies = {}
    for name, b in buffers.items():
        copies[name] = b.clone()
    return copies


def part(named: Mapping[str, Tensor], prefix: str) -> Params:
    """The tensors whose names begin with a prefix, without it.

    Example:
        >>> list(part({"encoder.weight": torch.zeros(1), "generator.weight": torch.zeros(1)}, "encoder."))
        ['weight']
    """
    found = {}
    for name, value in named.items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix)] = value
    return found


def prefixed(prefix: str, named: Mapping[str, Tensor]) -> Params:
    """The tensors with a prefix before their names.

    Example:
        >>> list(prefixed("encoder.", {"weight": torch.zeros(1)}))
        ['encoder.weight']
    """
    found = {}
    for name, value in named.items():
        found[prefix + name] = value
    return found


def tree_map(fn: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """Apply ``fn`` to the tensors at the same place of nested dicts, lists and tuples; other leaves stay as they are.

    Example:
        >>> tree_map(torch.add, {"a": torch.ones(1), "b": [torch.zeros(1)]}, {"a": torch.ones(1), "b": [torch.ones(1)]})
        {'a': tensor([2.]), 'b': [tensor([1.])]}
    """
    if isinstance(first, Tensor):
        return fn(first, *rest)
    if isinstance(first, Mapping):
        mapped = {}
        for key, value in first.items():
            others = map(itemgetter(key), rest)
            mapped[key] = fn(value, *others) if isinstance(value, Tensor) else tree_map(fn, value, *others)
        return mapped
    if isinstance(first, list | tuple):
        parts = []
        for values in zip(first, *rest, strict=True):
            parts.append(tree_map(fn, *values))
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first


def norm(tensors: Mapping[str, Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together.

    Example:
        >>> norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
        tensor(5.)
    """
    squares = []
    for x in tensors.values():
        squares.append(x.square().sum())
    return torch.stack(squares).sum().sqrt()


def clip(grads: Params, max_norm: float) -> Params:
    """The gradient, scaled down to ``max_norm`` where its norm is larger, as ``torch.nn.utils.clip_grad_norm_`` does.

    Example:
        >>> clip({"a": torch.tensor([3.0, 4.0])}, 1.0)
        {'a': tensor([0.6000, 0.8000])}
    """
    factor = (max_norm / (norm(grads) + 1e-6)).clamp(max=1.0)
    return tree_map(lambda g: g * factor, grads)


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
