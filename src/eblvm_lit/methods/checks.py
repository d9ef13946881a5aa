"""What is refused when training starts because it would train wrongly, or not at all, without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from eblvm_lit.core.functional import Params, grad, plain_autograd
from eblvm_lit.core.minibatch import WHOLE
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.networks.layers import statistics_over
from eblvm_lit.optimizers.base import Optimizer

if TYPE_CHECKING:
    from eblvm_lit.methods.base import Method, TrainState

__all__ = ["check_optimizer", "refuse_constant_losses", "refuse_shapes", "refuse_unmoved", "unfit_loss"]


def check_optimizer(optimizer: Any) -> None:
    """Refuse what is no rule of this package, as optimizers of torch are not.

    Raises:
        ConfigError: Saying what is one.
    """
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer)
        raise ConfigError(
            f"An optimizer is a rule such as eblvm_lit.Adam(lr=0.001), not {kind.__module__}.{kind.__qualname__}: "
            "derive one's own from eblvm_lit.optimizers.base.Optimizer."
        )


@contextmanager
def _undisturbed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, passes may move the module's buffers and torch's random numbers: both are as before afterwards."""
    kept = []
    for part in module.modules():
        kept += [(part, name, b, b.clone()) for name, b in part.named_buffers(recurse=False)]
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for part, name, b, before in kept:
                setattr(part, name, b.copy_(before))


def refuse_constant_losses(
    method: Method, state: TrainState, v: Tensor, generator: torch.Generator, record: dict[str, Tensor]
) -> None:
    """Refuse a loss given to ``descend`` that does not depend on its parameters, which would never move.

    A zero gradient may be right. Where an iteration has one, the iteration is repeated, and thrown away, to see whether
    there is a way from the parameters to the loss.

    Args:
        method: After its first iteration.
        state: The live state.
        v: The iteration's minibatch, shape (B, *event).
        generator: Of the iteration's noise.
        record: Of the iteration.

    Raises:
        ConfigError: Naming the step.
    """
    if all(record.get(f"{name}_grad_norm", 1.0) for name in method.groups):
        return
    descend, whole = method.descend, state.minibatch is WHOLE
    generator.manual_seed(generator.initial_seed())
    noise = method.draw_noise(v, generator) if whole else state.minibatch.draw(method.draw_noise, v, generator)

    def looking(state: TrainState, name: str, loss: Callable[[Params], Tensor]) -> TrainState:
        if not _depends(loss, state.params[method.groups[name].network]):
            raise ConfigError(
                f"The loss of the step {name!r} of {type(method).__name__} does not depend on the parameters it is "
                "given: compute it from bind(module, params), with the module bound to them, and detach nothing on "
                "the way."
            )
        return descend(state, name, loss)

    statistics = nullcontext() if whole else statistics_over(method, state.minibatch)
    vars(method)["descend"] = looking
    try:
        with _undisturbed(method, method.device), statistics, plain_autograd():
            method.iteration(state._replace(in_place=False), v, noise)
    finally:
        del vars(method)["descend"]


def _depends(loss: Callable[[Params], Tensor], params: Params) -> bool:
    """Whether there is a way from the parameters to the loss, by plain autograd."""
    found = []

    def look(params: Params) -> Tensor:
        value = loss(params).mean()
        if value.requires_grad:
            found.extend(torch.autograd.grad(value, list(params.values()), retain_graph=True, allow_unused=True))
        return value

    grad(look)(params)
    return any(g is not None for g in found)


def refuse_unmoved(method: Method) -> None:
    """Refuse a parameter that wants a gradient and is in no group, unless its network is fixed.

    Raises:
        ConfigError: Naming it.
    """
    networks = method.networks()
    known = {id(p) for name in method.fixed for p in networks[name].parameters()}
    for group in method.groups.values():
        known |= {id(p) for p in group.of(dict(networks[group.network].named_parameters())).values()}
    for name, p in method.named_parameters():
        if p.requires_grad and id(p) not in known:
            raise ConfigError(
                f"{name} is a parameter of {type(method).__name__} that no group moves: give its module to networks() "
                "and param_groups(), or call its requires_grad_(False)."
            )


def refuse_shapes(method: Method, energy: Energy, v: Tensor) -> None:
    """Refuse an energy that does not have one value for each example; nothing moves but this function's own numbers.

    Args:
        method: The method.
        energy: Its energy.
        v: A training example, shape (1, *event), floats.

    Raises:
        ConfigError: With the shape that it has, and the one that it must have.
    """
    sizes = {*energy.event_shape, energy.h_dim}
    n, n_particles = [n for n in range(4, 9) if n not in sizes][:2]  # no dimension is taken for another
    v = v.to(device=method.device, dtype=method.dtype).repeat(n, *[1] * (v.dim() - 1))
    h = v.new_zeros(n_particles, n, energy.h_dim)
    asked: list[tuple[str, Callable[[], Tensor], tuple[int, ...]]] = [
        ("energy(v, h)", lambda: energy.energy(v, h[0]), (n,)),
        ("energy(v, h)", lambda: energy.energy(v, h), (n_particles, n)),
    ]
    if isinstance(energy, MarginalEnergy):
        asked.append(("free_energy(v)", lambda: energy.free_energy(v), (n,)))
    for name, value, shape in asked:
        with _undisturbed(energy, method.device), torch.no_grad():
            try:
                found = tuple(value().shape)
            except Exception:  # where the method asks for it, the iteration says what is wrong
                continue
        if found != shape:
            raise ConfigError(
                f"{name} of {type(energy).__name__} has shape {found} for {n} examples"
                f"{f' with {n_particles} latents each' if len(shape) > 1 else ''}, and must have {shape}: look for a "
                "dimension that is kept, or broadcast, or the wrong one to sum over."
            )


def unfit_loss(method: Method, loss: Any, n: int | None = None) -> ConfigError:
    """What to raise for a loss that is neither one number for each of n examples nor one in all."""
    what = f"has shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"is a {type(loss).__name__}"
    return ConfigError(
        f"The loss of {type(method).__name__} {what}: return one number for each example, shape "
        f"({'B' if n is None else n},), or one number in all."
    )
