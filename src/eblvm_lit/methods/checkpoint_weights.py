"""Which weights are evaluated: the parameters of a checkpoint, or their averages over iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.methods.base import Method

__all__ = ["AVERAGES", "PREFIXES", "Players", "averages_of", "check_eval_weights", "load_weights", "parameters_of"]

Players = dict[str, dict[str, Tensor]]

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
        for name, parameters in parameters_of(method).items():
            for key, parameter in parameters.items():
                parameter.copy_(averages[name][key])


def parameters_of(method: Method) -> Players:
    """The parameters of each player by name, live."""
    return {name: dict(player.named_parameters()) for name, player in method.players().items()}


def averages_of(checkpoint: Mapping[str, Any], method: Method) -> Players:
    """A checkpoint's averages, if they are of a method's parameters."""
    found, own = checkpoint[AVERAGES], parameters_of(method)
    shapes = {name: {k: p.shape for k, p in parameters.items()} for name, parameters in own.items()}
    try:
        fits = {name: {k: p.shape for k, p in parameters.items()} for name, parameters in found.items()} == shapes
    except AttributeError:  # not even nested tensors
        fits = False
    if not fits:
        raise DataError("The checkpoint's averages are not of this method's parameters: use eval_weights=raw.")
    return found
