"""The callback that refuses methods that would train wrongly without an error, at the start of the training."""

from __future__ import annotations

import copy
import logging
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor

from eblvm_lit.core.shards import check_shared
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.state import TrainState
from eblvm_lit.networks.layers import local_batch_norms

__all__ = ["StartChecks", "refuse_processes"]

N_CHECKED = 1000  # the number of examples that are looked at

log = logging.getLogger(__name__)


class StartChecks(pl.Callback):
    """Checks the minibatch sizes, the batch normalisation, the shape of energies, and that each parameter is trained.

    After three iterations it also checks that gradients are not zero. In the first iteration some gradients may be
    zero: the gradients of a network that is followed by a layer initialised with zeros, and the gradients of BiDVL's
    generator.

    Raises:
        ConfigError: When training starts, if a check fails; after three iterations, if all gradients of a group are
            zero.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Check everything that can be checked before the first iteration."""
        data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        for n in data.batch_sizes():
            pl_module.check_batch_size(n)
        refuse_processes(pl_module, data, trainer.world_size)
        refuse_unmoved(pl_module)
        if pl_module.parts.energy is not None:
            refuse_grey(pl_module.parts.energy, data)
            refuse_shape(pl_module.parts.energy, data.as_float(data.splits.train[:1]).to(pl_module.device))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Method, *args: object) -> None:  # noqa: ARG002
        """Check the gradients once, after three iterations."""
        if 3 in pl_module.records:
            refuse_still(pl_module)


def refuse_processes(method: Method, data: ArrayDataModule, size: int) -> None:
    """Raise an error if the minibatches or the method cannot be divided among several processes.

    A run also checks this before it starts the other processes, because starting them takes a minute. Only the last
    minibatch of an epoch may be too small to be divided; if all minibatches were too small, all processes would do the
    same work.

    Args:
        method: The method.
        data: The data set, set up.
        size: The number of processes.
    """
    if size > 1:
        check_shared(max(data.train_batch_sizes()), size)
        method.check_processes(size)
        for n in data.train_batch_sizes():
            method.check_shared_batch(n, size)
        refuse_local_statistics(method)


def refuse_local_statistics(method: Method) -> None:
    """Raise an error for torch's batch normalisation, because each process would compute its own statistics."""
    for name, part in local_batch_norms(method).items():
        raise ConfigError(
            f"{name} is torch's {type(part).__name__}, whose statistics would be those of one device: use "
            "eblvm_lit.networks.layers.BatchNorm2d, or trainer.devices=1."
        )


def refuse_unmoved(method: Method) -> None:
    """Raise an error for trainable parameters that belong neither to a parameter group nor to a fixed network."""
    networks = method.networks()
    known = {id(p) for name in method.fixed for p in networks[name].parameters()}
    for group in method.groups.values():
        known |= {id(p) for p in group.of(dict(networks[group.network].named_parameters())).values()}
    for name, p in method.named_parameters():
        if p.requires_grad and id(p) not in known:
            raise ConfigError(
                f"{name} is a parameter of {type(method).__name__} that no group trains: give its module to networks() "
                "and param_groups(), or call its requires_grad_(False)."
            )


def refuse_still(method: Method) -> None:
    """Raise an error for a parameter group whose gradients were exactly zero in all recorded iterations.

    Single tensors without a gradient are only named in the log. A tensor has had no gradient if the moving means of its
    optimizer are zero. Tensors with one element are not named, because the additive constant of an energy cancels in
    scores and in differences of energies. A group that was not optimized has no record.
    """
    state = cast(TrainState, method.current_state)
    for name, group in method.groups.items():
        norms = [record[key] for record in method.records.values() if (key := f"{name}_grad_norm") in record]
        means = [state.optimizers[name][slot] for slot in group.optimizer.slots]
        own = group.of(state.params[group.network])
        still = [key for key, p in own.items() if means and p.numel() > 1 and not any(x[key].any() for x in means)]
        if norms and not any(norms):
            raise ConfigError(
                f"The gradients of all parameters of the group {name} ({', '.join(own)}) are exactly zero, so that it "
                f"learns nothing: the loss of {type(method).__name__} must be a function of the state's parameters, as "
                f"in bind(self.energy, state.theta), nothing on the way to it may be detached, and it may not saturate."
            )
        if norms and still:
            log.warning("Parameters of the group %s have no gradient and are not trained: %s.", name, ", ".join(still))


def refuse_grey(energy: Energy, data: ArrayDataModule) -> None:
    """Raise an error if the energy is one of binary v, and values of the first training examples are not 0 or 1."""
    v = data.as_float(data.splits.train[:N_CHECKED])
    if energy.binary_visible and not ((v == 0) | (v == 1)).all():
        raise ConfigError(
            f"The v of {type(energy).__name__} are bits, and the data have other values: set data.binarize=stochastic "
            "or threshold, for images with data.value_range=unit, or choose another model."
        )


def refuse_shape(energy: Energy, v: Tensor) -> None:
    """Raise an error unless an energy returns one value per example: broadcasting would silently change the loss.

    Args:
        energy: The energy.
        v: A training example, shape (1, *event), floats.
    """
    # choose a number of examples that differs from all other sizes, so that dimensions cannot be confused
    n = next(n for n in (5, 6, 7, 8) if n not in (*energy.event_shape, energy.h_dim))
    dtype = next((p.dtype for p in energy.parameters()), v.dtype)
    v = v.to(dtype).expand(n, *v.shape[1:])
    copied = copy.deepcopy(energy).eval()  # use a copy, because a forward pass may change buffers
    with torch.no_grad():
        found = {"energy(v, h)": copied.energy(v, v.new_zeros(n, energy.h_dim)).shape}
        if isinstance(copied, MarginalEnergy):
            found["free_energy(v)"] = copied.free_energy(v).shape
    for name, shape in found.items():
        if shape != (n,):
            raise ConfigError(
                f"{name} of {type(energy).__name__} has shape {tuple(shape)} for {n} examples, and must have ({n},): "
                "look for a dimension that is kept, or broadcast, or the wrong one to sum over."
            )
