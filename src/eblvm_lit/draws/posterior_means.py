"""Posterior means and raw pixels of examples, as arrays of features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.methods.base import Method

__all__ = ["flat_pixels", "posterior_means"]

ROWS = 500


@torch.no_grad()
def posterior_means(method: Method, data: ArrayDataModule, rows: Tensor) -> np.ndarray:
    """Compute the posterior means E_q[h|v] of examples v in chunks; without a posterior, compute the encoder's outputs.

    Args:
        method: A method with a posterior or an encoder, on any device.
        data: The data to which the examples belong.
        rows: Examples in the form in which the data's splits store them, shape (n, *event).

    Returns:
        The latents, float32, shape (n, H).

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> parts = MethodParts(posterior=BernoulliPosterior(v_dim=64, h_dim=3))
        >>> method = SimpleNamespace(parts=parts, device="cpu", dtype=torch.float32)
        >>> posterior_means(method, Digits(), torch.zeros(5, 64)).shape
        (5, 3)
    """
    parts = (data.as_float(part).to(device=method.device, dtype=method.dtype) for part in rows.split(ROWS))
    encoding = method.parts.encoding
    return torch.cat([encoding(v).float().cpu() for v in parts]).numpy()


def flat_pixels(data: ArrayDataModule, rows: Tensor) -> np.ndarray:
    """Flatten the examples to float32 vectors, shape (n, D), with the values that the models receive."""
    return torch.cat([data.as_float(part).flatten(1) for part in rows.split(ROWS)]).numpy()
