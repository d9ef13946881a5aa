"""Modules as pure functions of their parameters, and the gradients of such functions.

Gradients can be nested. By default they are computed by ``torch.func``, which composes with every transform, and whose
nested gradients are the only ones that ``torch.compile`` can trace. In eager mode ``torch.func`` takes twice as long as
plain autograd on small models, so :func:`plain_autograd` switches to plain autograd, except inside of other
``torch.func`` transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from eblvm_lit.core.tensors import Params, tree_map

__all__ = [
    "Params",
    "SharedFeatures",
    "bind",
    "buffers_of",
    "clone_buffers",
    "detached",
    "divergence",
    "grad",
    "grad_and_value",
    "inside_torch_func",
    "is_plain_first_order",
    "jacobian_diagonal",
    "params_of",
    "plain_autograd",
    "share_features",
    "vjp",
]

Module = TypeVar("Module", bound=nn.Module)


def bind(module: Module, params: Mapping[str, Tensor], prefix: str = "") -> Module:
    """Return a view of a module whose methods are pure functions of the given parameters.

    The view is a module of the same class that shares everything with ``module`` except the given tensors. Unlike
    ``torch.func.functional_call``, nothing is swapped in and out: the module itself is never changed, several views of
    it can exist at once, any method can be called, and a call costs as much as a call of the module.

    Args:
        module: Any module; it is not changed.
        params: Tensors that replace the module's parameters and buffers of these names; the view shares all other
            tensors with the module. A forward pass that updates buffers in place, as in batch normalisation and
            spectral norms, updates the given tensors; see :func:`clone_buffers`. If ``params`` is a
            :class:`SharedFeatures`, the view has it as its attribute ``shared_features``.
        prefix: The prefix of the names in ``params``, which precedes the module's own names.

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
    parameters = dict(own["_parameters"])
    buffers = dict(own["_buffers"])
    children = dict(own["_modules"])
    for tensors in (parameters, buffers):
        for name in tensors:
            if prefix + name in params:
                tensors[name] = params[prefix + name]
    for name, child in children.items():
        if child is not None:
            children[name] = bind(child, params, f"{prefix}{name}.")
    view.__dict__.update(own, _parameters=parameters, _buffers=buffers, _modules=children)
    if isinstance(params, SharedFeatures):
        view.__dict__["shared_features"] = params
    return view


def params_of(module: nn.Module) -> Params:
    """Return the module's trainable parameters by name, as detached tensors that share the module's memory."""
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def buffers_of(module: nn.Module) -> Params:
    """Return the module's buffers by name, such as running statistics or the states of Markov chains."""
    return {name: b.detach() for name, b in module.named_buffers()}


def clone_buffers(buffers: Mapping[str, Tensor]) -> Params:
    """Copy buffers, so that a module's forward passes can update the copies in place and leave the originals unchanged.

    Call this inside of the differentiated function: ``torch.func`` allows in-place updates only of tensors that are
    created inside it.

    Example:
        >>> import torch
        >>> norm, v = nn.BatchNorm1d(2), torch.ones(3, 2)
        >>> moved = clone_buffers(buffers_of(norm))
        >>> _ = bind(norm, {**params_of(norm), **moved})(v)
        >>> moved["running_mean"], norm.running_mean
        (tensor([0.1000, 0.1000]), tensor([0., 0.]))
    """
    return {name: b.clone() for name, b in buffers.items()}


# How many nested calls of ``grad`` the current code runs in, if torch.autograd computes the gradients; None if
# torch.func computes the gradients.
_depth: ContextVar[int | None] = ContextVar("depth", default=None)


@contextmanager
def plain_autograd() -> Iterator[None]:
    """Make :func:`grad` and :func:`grad_and_value` use ``torch.autograd.grad`` inside this context.

    The values of the gradients do not change.
    """
    if torch.compiler.is_compiling():  # in compiled graphs torch.func computes all gradients
        yield
        return
    token = _depth.set(0)
    try:
        with torch.enable_grad():
            yield
    finally:
        _depth.reset(token)


_PROBE = torch.empty(0)


def inside_torch_func() -> bool:
    """Return whether the caller runs inside a ``torch.func`` transform, where tensors cannot become leaves of autograd.

    Example:
        >>> inside = []
        >>> _ = torch.func.grad(lambda x: inside.append(inside_torch_func()) or x)(torch.tensor(1.0))
        >>> inside, inside_torch_func()
        ([True], False)
    """
    try:
        _PROBE.detach().requires_grad_()
    except RuntimeError:
        return True
    return False


def is_plain_first_order() -> bool:
    """Return whether the caller's computation is differentiated at most once, and only by plain autograd.

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
    """Return a function that computes the gradient and the value of ``fn``, like ``torch.func.grad_and_value``.

    The returned function computes (gradient, value) or, with ``has_aux``, (gradient, (value, aux)).

    Args:
        fn: A function that returns a scalar, or (scalar, aux).
        argnums: The positions of the arguments (tensors or dictionaries of tensors) that are differentiated.
        has_aux: Whether ``fn`` returns (scalar, aux).

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
    """Return a function that computes the gradient of ``fn``, like ``torch.func.grad``.

    With ``has_aux`` the returned function computes (gradient, aux).

    Example:
        >>> grad(lambda x: x**3)(torch.tensor(2.0))
        tensor(12.)
    """
    if torch.compiler.is_compiling() or _depth.get() is None:
        return torch.func.grad(fn, argnums=argnums, has_aux=has_aux)
    return partial(_plain, fn, argnums, has_aux, False)


def _plain(fn: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool, with_value: bool, *args: Any) -> Any:
    """Compute the gradient by ``torch.autograd.grad``, with the value and the auxiliary output if requested.

    The differentiated arguments are replaced by aliases, so that only uses of them inside ``fn`` contribute. Outside of
    all other gradients an alias starts a new graph; inside of another gradient it stays connected to the outer graph.
    Transforms of ``torch.func`` cannot see such graphs, so inside of a transform ``torch.func`` computes the gradient.

    As with ``torch.func``, the gradient is also computed under ``torch.no_grad``, and is then a constant of the outer
    gradient.
    """
    if inside_torch_func():
        transform = torch.func.grad_and_value if with_value else torch.func.grad
        return transform(fn, argnums=argnums, has_aux=has_aux)(*args)
    outer = bool(_depth.get()) and torch.is_grad_enabled()  # whether another gradient differentiates this one
    which = (argnums,) if isinstance(argnums, int) else argnums
    leaves: list[Tensor] = []
    aliased = list(args)
    retain = outer
    for i in which:
        # The shared features were computed from these tensors, and do not depend on aliases of them.
        if isinstance(args[i], SharedFeatures):
            leaves += args[i].values()
            retain = True
            continue
        named = args[i] if isinstance(args[i], dict) else {"": args[i]}
        alias = {
            name: x.view_as(x) if x.requires_grad and outer else x.detach().requires_grad_()
            for name, x in named.items()
        }
        leaves += alias.values()
        aliased[i] = alias if isinstance(args[i], dict) else alias[""]
    token = _depth.set((_depth.get() or 0) + 1)
    try:
        out = torch.enable_grad()(fn)(*aliased)
    finally:
        _depth.reset(token)
    value, aux = out if has_aux else (out, None)
    if value.requires_grad:
        found = torch.autograd.grad(value, leaves, create_graph=outer, retain_graph=retain, materialize_grads=True)
        flat = iter(found)
    else:  # value is a constant: its gradients are zero, but torch.autograd would raise an error
        flat = map(torch.zeros_like, leaves)
    grads = [dict(zip(aliased[i], flat, strict=False)) if isinstance(args[i], dict) else next(flat) for i in which]
    found = grads[0] if isinstance(argnums, int) else tuple(grads)
    if not outer:
        value = value.detach()
        aux = tree_map(Tensor.detach, aux) if has_aux else None
    if not with_value:
        return (found, aux) if has_aux else found
    return found, (value, aux) if has_aux else value


def vjp(fn: Callable[[Any], tuple[Tensor, Any]], primal: Any) -> tuple[Tensor, Callable[[Tensor], Any], Any]:
    """Run the function once. Return its value, its pullback (the vector-Jacobian product), and its auxiliary output.

    With plain autograd the pullback frees the graph, so it can be called only once, and cannot be differentiated.

    Args:
        fn: A function that maps a tensor or a dictionary of tensors to (tensor, aux), where aux consists of tensors.
        primal: The point at which ``fn`` is evaluated.

    Returns:
        The value, which is a constant in later gradients; the pullback, which maps a cotangent of the value's shape to
        a cotangent in the form of ``primal``; and aux.

    Example:
        >>> value, pull, _ = vjp(lambda x: (x**2, {}), torch.tensor([1.0, 3.0]))
        >>> value, pull(torch.ones(2))
        (tensor([1., 9.]), tensor([2., 6.]))
    """
    depth = _depth.get()
    if torch.compiler.is_compiling() or depth is None or inside_torch_func():
        found = torch.func.vjp(fn, primal, has_aux=True)
        return found[0], lambda cotangent: found[1](cotangent)[0], found[-1]
    named = primal if isinstance(primal, dict) else {"": primal}
    leaf = {name: x.detach().requires_grad_() for name, x in named.items()}
    token = _depth.set(depth + 1)
    try:
        value, aux = torch.enable_grad()(fn)(leaf if isinstance(primal, dict) else leaf[""])
    finally:
        _depth.reset(token)

    def pull(cotangent: Tensor) -> Any:
        found = torch.autograd.grad(value, list(leaf.values()), cotangent, materialize_grads=True)
        return dict(zip(leaf, found, strict=True)) if isinstance(primal, dict) else found[0]

    return value.detach(), pull, tree_map(Tensor.detach, aux)


class SharedFeatures(Params):
    r"""Parameters bundled with the features of some points, which are computed once and reused in all later gradients.

    :func:`share_features` makes one for each iteration. :func:`grad` differentiates with respect to these parameter
    tensors themselves, and not to aliases of them, because f depends on these tensors.

    Attributes:
        points: The points x.
        value: The features f = g(x), connected to the parameters by autograd, or a constant after :func:`detached`.
    """

    def __init__(self, params: Mapping[str, Tensor], points: Tensor, value: Tensor | None = None) -> None:
        super().__init__(params)
        self.points = points
        self.value: Any = value
        self._start = points.detach().requires_grad_()
        self._pulled: tuple[Tensor, Tensor] | None = None

    def pull(self, cotangent: Tensor) -> Tensor:
        r"""Compute the product :math:`J^\top c` of a cotangent c and the Jacobian J of the features at the points x.

        The cotangent has the shape of the features f. The result has the shape of x and is differentiable.
        """
        leaf = cotangent if cotangent.requires_grad else cotangent.detach().requires_grad_()
        pulled = torch.autograd.grad(self.value, self._start, leaf, create_graph=True, materialize_grads=True)[0]
        self._pulled = leaf, pulled
        return pulled

    def push(self, tangent: Tensor) -> Tensor:
        """Compute the product J t of a tangent t and the Jacobian J of the features at the points x.

        The tangent has the shape of x. The result has the shape of the features f and is differentiable. It is computed
        as a derivative of the last :meth:`pull`, which is linear in its cotangent.
        """
        if self._pulled is None:
            self.pull(torch.zeros_like(self.value))
        leaf, pulled = cast(tuple[Tensor, Tensor], self._pulled)
        return torch.autograd.grad(pulled, leaf, tangent, create_graph=True, materialize_grads=True)[0]


def share_features(fn: Callable[[Params, Tensor], Tensor], params: Params, points: Tensor) -> Params:
    """Compute features of the points once and bundle them with the parameters, if :func:`plain_autograd` is active.

    In other contexts the parameters are returned unchanged: ``torch.func`` cannot start a gradient before the function
    that is differentiated, and a compiler merges equal computations anyway. The results of later gradients are the
    same.

    Args:
        fn: A function that maps the parameters and points x (B, *event) to a tensor of features.
        params: The parameters; they are not changed.
        points: The points x.

    Example:
        >>> with plain_autograd():
        ...     theta = share_features(lambda p, x: p["w"] * x**2, {"w": torch.tensor(2.0)}, torch.tensor([3.0]))
        ...     detached(theta).value, theta.pull(torch.ones(1)).detach(), grad(lambda p: p.value.sum())(theta)
        (tensor([18.]), tensor([12.]), {'w': tensor(9.)})
    """
    depth = _depth.get() if not torch.compiler.is_compiling() else None
    if depth is None or inside_torch_func():
        return params
    shared = SharedFeatures({name: p.detach().requires_grad_() for name, p in params.items()}, points)
    # The depth counts two more calls of ``grad``, because the features will be differentiated twice.
    token = _depth.set(depth + 2)
    try:
        shared.value = fn(shared, shared._start)
    finally:
        _depth.reset(token)
    return shared


def detached(params: Params) -> Params:
    """Detach the parameters and the features of a :class:`SharedFeatures`; return any other ``params`` unchanged.

    Example:
        >>> with plain_autograd():
        ...     theta = share_features(lambda p, x: p["w"] * x**2, {"w": torch.tensor(2.0)}, torch.tensor([3.0]))
        ...     detached(theta).value
        tensor([18.])
    """
    if not isinstance(params, SharedFeatures):
        return params
    return SharedFeatures({name: p.detach() for name, p in params.items()}, params.points, params.value.detach())


def jacobian_diagonal(field: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    r"""Compute the exact diagonal of a vector field's Jacobian by one Jacobian-vector product per dimension.

    .. math:: \partial f_i(v) / \partial v_i

    Args:
        field: A function that maps (B, *event) to (B, *event), each example separately.
        v: Points, shape (B, *event).

    Returns:
        The diagonal, shape (B, number of dimensions).

    Example:
        >>> jacobian_diagonal(lambda v: v**2, torch.tensor([[1.0, 2.0]]))
        tensor([[2., 4.]])
    """
    basis = torch.eye(v[0].numel(), dtype=v.dtype, device=v.device).view(-1, *v.shape[1:])

    def diagonal_entry(e: Tensor) -> Tensor:
        direction = e.expand_as(v)
        slope = torch.func.jvp(field, (v,), (direction,))[1]
        return (slope * direction).flatten(1).sum(-1)

    def entry_by_reverse_mode(e: Tensor) -> Tensor:
        direction = e.expand_as(v)
        return (torch.func.grad(lambda x: (field(x) * direction).sum())(v) * direction).flatten(1).sum(-1)

    # The compiler cannot trace ContextVars, and for some fields it cannot trace forward-mode derivatives. Compiled code
    # therefore uses reverse mode.
    if torch.compiler.is_compiling():
        return torch.func.vmap(entry_by_reverse_mode)(basis).T
    token = _depth.set(None)  # torch.func must compute gradients inside vmap and jvp
    try:
        return torch.func.vmap(diagonal_entry)(basis).T
    finally:
        _depth.reset(token)


def divergence(field: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    r"""Compute the exact divergence of a vector field, shape (B,), by summing its :func:`jacobian_diagonal`.

    .. math:: \sum_i \partial f_i(v) / \partial v_i

    Example:
        >>> divergence(lambda v: v**2, torch.tensor([[1.0, 2.0]]))
        tensor([6.])
    """
    return jacobian_diagonal(field, v).sum(-1)
