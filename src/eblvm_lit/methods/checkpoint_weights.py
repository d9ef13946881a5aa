"""What a checkpoint holds for a method: whose it is, its parameters, and their averages over iterations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from eblvm_lit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from eblvm_lit.methods.base import Method

__all__ = [
    "AVERAGES",
    "PREFIXES",
    "NetworkParams",
    "averaged_of",
    "averages_of",
    "check_eval_weights",
    "check_resumable",
    "class_name",
    "count_in_batches",
    "is_statistic",
    "load_weights",
    "make_room",
    "parameters_of",
]

NetworkParams = dict[str, dict[str, Tensor]]

AVERAGES = "averages"  # where a checkpoint holds them
# What final metrics are of, in this order, and what stands before their names.
PREFIXES = {"raw": {"raw": "test"}, "ema": {"ema": "test"}, "both": {"ema": "test_ema", "raw": "test"}}


def check_eval_weights(weights: Any) -> None:
    """Refuse what names no weights.

    Example:
        >>> check_eval_weights("swa")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: eval_weights is raw, ema or both, not 'swa'.
    """
    if not isinstance(weights, str) or weights not in PREFIXES:
        raise ConfigError(f"eval_weights is raw, ema or both, not {weights!r}.")


def load_weights(method: Method, checkpoint: Mapping[str, Any], weights: str) -> None:
    """Give a method what a checkpoint holds: its buffers, and its parameters or their averages.

    With averages come those of the running statistics, which belong to them; a checkpoint of an earlier version holds
    none, and leaves the statistics of the parameters themselves.

    Args:
        method: The method.
        checkpoint: Of the same method and sizes.
        weights: ``raw`` or ``ema``.

    Raises:
        ConfigError: If averages are wanted of a checkpoint that holds none.
        DataError: If they are not this method's.
    """
    method.load_state_dict(checkpoint["state_dict"])
    if weights == "raw":
        return
    if AVERAGES not in checkpoint:
        raise ConfigError(
            "The checkpoint holds no averages of its parameters: train with callbacks=ema, or use eval_weights=raw."
        )
    averages = averages_of(checkpoint, method)
    with torch.no_grad():
        for name, values in averaged_of(method).items():
            for key in averages[name]:
                values[key].copy_(averages[name][key])


def parameters_of(method: Method) -> NetworkParams:
    """The parameters of each network by name, live."""
    return {name: dict(network.named_parameters()) for name, network in method.networks().items()}


def averaged_of(method: Method) -> NetworkParams:
    """What is averaged over iterations: the parameters of each network, and its running means and variances, live.

    Activations are normalised by the statistics of the parameters that they come from. Other buffers, such as
    persistent chains, counts and the vectors of power iterations, are no means that could be averaged.
    """
    found = parameters_of(method)
    for name, network in method.networks().items():
        found[name] |= {key: buffer for key, buffer in network.named_buffers() if is_statistic(key)}
    return found


def is_statistic(key: str) -> bool:
    """Whether a buffer is a running mean or variance, by the names that normalisations of torch give them.

    Example:
        >>> is_statistic("layers.1.running_var"), is_statistic("layers.1.num_batches_tracked")
        (True, False)
    """
    return key.rpartition(".")[2] in ("running_mean", "running_var")


def averages_of(checkpoint: Mapping[str, Any], method: Method) -> NetworkParams:
    """A checkpoint's averages, if they are of a method's parameters; earlier versions averaged no statistics."""
    found, known = checkpoint[AVERAGES], [_kinds(averaged_of(method)), _kinds(parameters_of(method))]
    try:
        fits = _kinds(found) in known
        places = [p.untyped_storage().data_ptr() for parameters in found.values() for p in parameters.values()]
        fits = fits and len(set(places)) == len(places)  # averages that share memory would overwrite each other
    except AttributeError:  # not even nested tensors
        fits = False
    if not fits:
        raise DataError("The checkpoint's averages are not of this method's parameters: use eval_weights=raw.")
    return found


def class_name(method: nn.Module) -> str:
    """What checkpoints call a method.

    Example:
        >>> class_name(nn.Linear(1, 1))
        'torch.nn.modules.linear.Linear'
    """
    return f"{type(method).__module__}.{type(method).__qualname__}"


def make_room(method: Method, checkpoint: Mapping[str, Any]) -> None:
    """Give a method room for as many training examples as a checkpoint holds something of.

    Args:
        method: Of the same kind or not, which :func:`check_resumable` tells.
        checkpoint: Its content.
    """
    kept = [checkpoint["state_dict"][name] for name in method.per_example if name in checkpoint["state_dict"]]
    if kept:
        method.keep_examples(len(kept[0]))


def check_resumable(method: nn.Module, checkpoint: Mapping[str, Any], path: Path) -> int:
    """Refuse a checkpoint of something else.

    Args:
        method: What would go on from it, or be evaluated with its parameters.
        checkpoint: Its content.
        path: Its file, for the sentence.

    Returns:
        The iteration it was written at.

    Raises:
        ConfigError: If method or parameters differ.

    Example:
        >>> small, large = nn.Linear(1, 1), nn.Linear(1, 2)
        >>> found = {"method": class_name(small), "iteration": 7}
        >>> checkpoint = {"eblvm_lit": found, "state_dict": small.state_dict()}
        >>> check_resumable(small, checkpoint, Path("last.ckpt"))
        7
        >>> check_resumable(large, checkpoint, Path("last.ckpt"))
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: last.ckpt holds a model of other sizes than this run's (bias, weight).
    """
    name, found = class_name(method), checkpoint["eblvm_lit"]
    if found["method"] != name:
        raise ConfigError(f"{path} was written by {found['method']}, but this run is a {name}.")
    kinds = {key: _kind(value) for key, value in method.state_dict().items()}
    stored = {key: _kind(value) for key, value in checkpoint["state_dict"].items()}
    if kinds != stored:
        differing = sorted(key for key in kinds.keys() | stored.keys() if kinds.get(key) != stored.get(key))
        raise ConfigError(f"{path} holds a model of other sizes than this run's ({', '.join(differing)}).")
    return found["iteration"]


def _kinds(networks: NetworkParams) -> dict[str, dict[str, Any]]:
    return {name: {key: _kind(value) for key, value in values.items()} for name, values in networks.items()}


def _kind(value: Tensor) -> tuple[tuple[int, ...], torch.dtype | bool]:
    """Shape and type, of floats of any precision: a run in float64 goes on in it."""
    return tuple(value.shape), value.is_floating_point() or value.dtype


def count_in_batches(checkpoint: dict[str, Any], iterations_per_batch: int) -> None:
    """Set Lightning's counts of calls to what they are with this number of iterations a call.

    A run with another number, or one that stopped in the middle of a call, has counted otherwise.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    done = checkpoint["eblvm_lit"]["iteration"] // iterations_per_batch
    for counts in (progress["total"], progress["current"]):
        later = counts["ready"] - done
        counts.update({name: counts[name] - later for name in ("ready", "started", "processed", "completed")})
