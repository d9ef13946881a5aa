"""The root mean squared error of reconstructions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eblvm_lit.evaluation.base import ExampleMetric, mean_over_rows
from eblvm_lit.generation.reconstructions import reconstruct, reconstructs
from eblvm_lit.methods.base import Method

__all__ = ["ReconstructionError"]

ROWS = 100


class ReconstructionError(ExampleMetric):
    r"""The root mean squared error of a generator's reconstructions, ``rmse``, per value of v.

    .. math:: \sqrt{E_v \|G(\mu(v)) - v\|^2 / \dim v}

    Batch normalisation is in evaluation mode; the released code leaves it in training mode. The papers' values are of
    images in [-1, 1]. Reference: Kan et al. 2022, table 1; the scale is not said there.

    Example:
        >>> from types import SimpleNamespace
        >>> from torch import nn
        >>> from eblvm_lit.methods.base import MethodParts
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> parts = MethodParts(posterior=LinearGaussianPosterior(v_dim=2, h_dim=3), generator=nn.Linear(3, 2))
        >>> method = SimpleNamespace(parts=parts)
        >>> list(ReconstructionError().compute(method, torch.zeros(5, 2), torch.Generator()))
        ['rmse']
    """

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:  # noqa: ARG002
        """The error at v; see :meth:`ExampleMetric.compute`. Nothing without an encoder and a generator."""
        if not reconstructs(method.parts):
            return {}
        found = mean_over_rows(
            lambda x: {"mse": (reconstruct(method.parts, x) - x).square().flatten(1).mean(1)}, v, ROWS
        )
        return {"rmse": math.sqrt(found["mse"])}
