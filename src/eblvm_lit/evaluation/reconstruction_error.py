"""The root mean squared error of reconstructions."""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.coding import reconstruct, reconstructs
from eblvm_lit.evaluation.base import ExampleMetric, mean_over_rows
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity

__all__ = ["ReconstructionError"]

ROWS = 100


class ReconstructionError(
    ExampleMetric,
    emits={"rmse": Quantity(-1, "", "the root mean squared error of reconstructions, per pixel, in the units of v")},
):
    r"""The root mean squared error ``rmse`` of reconstructions by a generator, over all examples and dimensions of v.

    .. math:: \sqrt{E_v \|G(\mu(v)) - v\|^2 / \dim v}

    The papers' values are for images in [-1, 1]. Reference: Kan et al. 2022, table 1, which does not state this range.

    Args:
        batch_statistics: Whether batch normalisation uses the statistics of the current 100 examples, as in the
            authors' code. If false, it uses its running statistics, and the error of an example does not depend on
            other examples.

    Example:
        >>> from types import SimpleNamespace
        >>> from torch import nn
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> parts = MethodParts(posterior=LinearGaussianPosterior(v_dim=2, h_dim=3), generator=nn.Linear(3, 2))
        >>> method = SimpleNamespace(parts=parts)
        >>> list(ReconstructionError().compute(method, torch.zeros(5, 2), torch.Generator()))
        ['rmse']
    """

    needs = "methods with an encoder and a generator"

    def __init__(self, *, batch_statistics: bool = False) -> None:
        self.batch_statistics = batch_statistics

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        return reconstructs(method.parts)  # true if the method has an encoder and a generator

    @torch.no_grad()
    def compute(self, method: Method, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        """Compute the error over the examples v; see :meth:`ExampleMetric.compute`."""
        if self.batch_statistics:  # use copies, because a forward pass in training mode changes the running statistics
            own = method.parts.encoding, method.parts.decoding
            q, g = (cast(Any, copy.deepcopy(part)).train() for part in own)

        def error(x: Tensor) -> dict[str, Tensor]:
            made = g(q(x)) if self.batch_statistics else reconstruct(method.parts, x)
            return {"mse": (made - x).square().flatten(1).mean(1)}

        # batch normalisation needs two rows
        rows = ROWS - 1 if self.batch_statistics and len(v) % ROWS == 1 else ROWS
        return {"rmse": math.sqrt(mean_over_rows(error, v, rows)["mse"])}
