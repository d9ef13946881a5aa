"""How far reconstructions are from the data."""

from __future__ import annotations

import math

import torch
from pytorch_lightning import LightningModule
from torch import Tensor

from eblvm_lit.evaluation.base import ExampleMetric, mean_over_rows
from eblvm_lit.generation.reconstructions import reconstruct, reconstructs

__all__ = ["ReconstructionError"]

ROWS = 100


class ReconstructionError(ExampleMetric):
    r"""The root mean squared error of a generator's reconstructions, ``rmse``, per value of v.

    .. math:: \sqrt{E_v \|G(\mu(v)) - v\|^2 / \dim v}

    Batch normalisation is in evaluation mode; the released code leaves it in training mode. The papers' values are of
    images in [-1, 1]. Reference: Kan et al. 2022, table 1; the scale is not said there.

    Example:
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> from torch import nn
        >>> method = LightningModule()
        >>> method.posterior, method.generator = LinearGaussianPosterior(v_dim=2, h_dim=3), nn.Linear(3, 2)
        >>> list(ReconstructionError().compute(method, torch.zeros(5, 2), torch.Generator()))
        ['rmse']
    """

    @torch.no_grad()
    def compute(self, method: LightningModule, v: Tensor, generator: torch.Generator) -> dict[str, float]:  # noqa: ARG002
        """The error at v; see :meth:`ExampleMetric.compute`. Nothing without an encoder and a generator."""
        if not reconstructs(method):
            return {}
        found = mean_over_rows(lambda x: {"mse": (reconstruct(method, x) - x).square().flatten(1).mean(1)}, v, ROWS)
        return {"rmse": math.sqrt(found["mse"])}
