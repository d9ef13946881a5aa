"""Gradients of functions, nested at will, by ``torch.func`` or by plain autograd.

``torch.func`` composes with everything and is the only kind ``torch.compile`` can nest, so it is the default. Run
eagerly it costs twice the time of plain autograd on small models; :func:`plain_autograd` switches to that for a
computation which contains no other ``torch.func`` transform outside of these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eblvm_lit.core.fast_paths import inside_torch_func
from eblvm_lit.core.functional import tree_map

__all__ = ["divergence", "grad", "grad_and_value", "is_plain_first_order", "plain_autograd", "vjp"]

# How deep in nested gradients a plain-autograd computation is; None where torch.func is in charge.
_depth: ContextVar[int | None] = ContextVar("depth", default=None)


@contextmanager
def plain_autograd() -> Iterator[None]:
    """Inside, :func:`grad` and :func:`grad_and_value` use ``torch.autograd.grad``; the values are the same."""
    token = _depth.set(0)
    try:
        with torch.enable_grad():
            yield
    finally:
        _depth.reset(token)


def is_plain_first_order() -> bool:
    """Whether what is computed here and now is differentiated at most once, and that by plain autograd.

    Example:
        >>> orders = []
        >>> def f(x):
        ...     orders.append(is_plain_first_order())
        ...     return x**3
        >>> with plain_autograd():
        ...     _ = grad(f)(torch.tensor(2.0)), grad(grad(f))(torch.tensor(2.0))
        >>> _ = grad(f)(torch.tensor(2.0))
        >>> orders
        [True, False, False]
    """
    if torch.compiler.is_compiling() or inside_torch_func():
        return False
    return (_depth.get() or 0) <= 1


def grad_and_value(fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable:
    """As ``torch.func.grad_and_value``: maps the arguments to (gradient, value), or (gradient, (value, aux)).

    Args:
        fn: Returns a scalar, or (scalar, aux).
        argnums: Which arguments (tensors or dictionaries of tensors) are differentiated.
        has_aux: Whether ``fn`` returns something beside the scalar.

    Example:
        >>> grad_and_value(lambda x: x**3)(torch.tensor(2.0))
        (tensor(12.), tensor(8.))
        >>> with plain_autograd():
        ...     grad(grad(lambda x: x**3))(torch.tensor(2.0))
        tensor(12.)
    """
    if torch.compiler.is_compiling() or _depth.get() is None:
        return torch.func.grad_and_value(fn, argnums=argnums, has_aux=has_aux)
    return partial(_plain, fn, argnums, has_aux, True)


def grad(fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable:
    """As ``torch.func.grad``: maps the arguments to the gradient, or to (gradient, aux).

    Example:
        >>> grad(lambda x: x**3)(torch.tensor(2.0))
        tensor(12.)
    """
    if torch.compiler.is_compiling() or _depth.get() is None:
        return torch.func.grad(fn, argnums=argnums, has_aux=has_aux)
    return partial(_plain, fn, argnums, has_aux, False)


def _plain(fn: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool, with_value: bool, *args: Any) -> Any:
    """The gradient by ``torch.autograd.grad``, with value and aux where they are asked for.

    The arguments are replaced by aliases, so that only this function's own use of them counts. Outside of all other
    gradients an alias starts a new graph; inside of one it belongs to the graph that is there.
    """
    depth = _depth.get()
    which = (argnums,) if isinstance(argnums, int) else argnums
    leaves: list[Tensor] = []
    aliased = list(args)
    for i in which:
        named = args[i] if isinstance(args[i], dict) else {"": args[i]}
        alias = {}
        for name, x in named.items():
            alias[name] = x.view_as(x) if x.requires_grad and depth else x.detach().requires_grad_()
        leaves += alias.values()
        aliased[i] = alias if isinstance(args[i], dict) else alias[""]
    token = _depth.set(depth + 1)
    try:
        out = fn(*aliased)
    finally:
        _depth.reset(token)
    value, aux = out if has_aux else (out, None)
    if value.requires_grad:
        flat = iter(torch.autograd.grad(value, leaves, create_graph=depth > 0, materialize_grads=True))
    else:  # a constant, of which torch.autograd has no gradient and torch.func says zero
        flat = map(torch.zeros_like, leaves)
    grads = []
    for i in which:
        grads.append(dict(zip(aliased[i], flat, strict=False)) if isinstance(args[i], dict) else next(flat))
    found = grads[0] if isinstance(argnums, int) else tuple(grads)
    if depth == 0:
        value, aux = value.detach(), tree_map(Tensor.detach, aux) if has_aux else None
    if not with_value:
        return (found, aux) if has_aux else found
    return found, (value, aux) if has_aux else value


def vjp(fn: Callable[[Any], tuple[Tensor, Any]], primal: Any) -> tuple[Tensor, Callable[[Tensor], Any], Any]:
    """As ``torch.func.vjp`` with ``has_aux``: value, pullback and aux of one pass that others can be made to share.

    By plain autograd the pullback frees the graph: it is called once, and is no function to be differentiated.

    Args:
        fn: Maps tensors (a tensor or a dictionary) to (tensor, aux), aux being tensors, too.
        primal: Where.

    Returns:
        The value, a constant to gradients taken later; (a cotangent of its shape) -> what it is in ``primal``; aux.

    Example:
        >>> value, pull, _ = vjp(lambda x: (x**2, {}), torch.tensor([1.0, 3.0]))
        >>> value, pull(torch.ones(2))
        (tensor([1., 9.]), tensor([2., 6.]))
    """
    if torch.compiler.is_compiling() or _depth.get() is None:
        value, pull, aux = torch.func.vjp(fn, primal, has_aux=True)
        return value, lambda cotangent: pull(cotangent)[0], aux
    leaf = tree_map(_leaf, primal)
    token = _depth.set(_depth.get() + 1)
    try:
        value, aux = fn(leaf)
    finally:
        _depth.reset(token)

    def pull(cotangent: Tensor) -> Any:
        leaves = [leaf] if isinstance(leaf, Tensor) else list(leaf.values())
        found = torch.autograd.grad(value, leaves, cotangent, materialize_grads=True)
        return found[0] if isinstance(leaf, Tensor) else dict(zip(leaf, found, strict=True))

    return value.detach(), pull, tree_map(Tensor.detach, aux)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def divergence(field: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    r"""Exact divergence of a vector field, one Jacobian-vector product per dimension.

    .. math:: \sum_i \partial f_i(v) / \partial v_i

    Args:
        field: Maps (B, *event) to (B, *event), row by row.
        v: Points, shape (B, *event).

    Returns:
        Shape (B,).

    Example:
        >>> divergence(lambda v: v**2, torch.tensor([[1.0, 2.0]]))
        tensor([6.])
    """
    basis = torch.eye(v[0].numel(), dtype=v.dtype, device=v.device).view(-1, *v.shape[1:])

    def diagonal_entry(e: Tensor) -> Tensor:
        direction = e.expand_as(v)
        slope = torch.func.jvp(field, (v,), (direction,))[1]
        return (slope * direction).flatten(1).sum(-1)

    token = _depth.set(None)  # gradients inside of vmap and jvp must be torch.func's
    try:
        return torch.func.vmap(diagonal_entry)(basis).sum(0)
    finally:
        _depth.reset(token)
