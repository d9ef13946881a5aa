"""Convergence of chains, judged by the energies along them."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import torch
from arviz_stats.base.array import array_stats
from torch import Tensor

__all__ = ["ChainTrace"]

log = logging.getLogger(__name__)

N_DRAWS = 100  # of each chain, at most
MIN_DRAWS = 8
LIMIT = 1.1


class ChainTrace:
    r"""Energies of chains at some of their steps, and what they say about convergence.

    Split R-hat compares the variance between halves of chains with that within them; the effective sample sizes are
    those of the bulk and of the tails, after rank normalisation, by ArviZ. R-hat is 1 for chains that have converged.
    It sees how the energy mixes: chains in modes of equal energy that they never leave look converged to it.
    Reference: Vehtari et al. 2021, arXiv 1903.08008.

    Example:
        >>> trace, g = ChainTrace(), torch.Generator().manual_seed(0)
        >>> for _ in range(100):
        ...     trace.add(torch.randn(4, generator=g))
        >>> record = trace.close()
        >>> sorted(record), 0.99 < record["r_hat"] < 1.05
        (['ess_bulk', 'ess_tail', 'r_hat'], True)
    """

    def __init__(self) -> None:
        self._batch: list[Tensor] = []
        self._batches: list[np.ndarray] = []

    @staticmethod
    def steps_of(stationary: range) -> set[int]:
        """At most 100 of some steps, at equal distances; none of too few."""
        return set(stationary[:: math.ceil(len(stationary) / N_DRAWS)]) if len(stationary) >= MIN_DRAWS else set()

    def add(self, energies: Tensor) -> None:
        """Take the energies (B,) of the present batch of chains."""
        self._batch.append(energies.detach())

    def next_batch(self) -> None:
        """Begin with other chains, which run as long."""
        if self._batch:
            self._batches.append(torch.stack(self._batch, 1).double().cpu().numpy())
        self._batch = []

    def close(self) -> dict[str, float]:
        """R-hat and effective sizes of at least two chains; nothing where all energies are equal or some are NaN.

        The log has a warning where R-hat is above 1.1, and where equal energies say nothing of convergence.
        """
        self.next_batch()
        draws = np.concatenate(self._batches) if self._batches else np.empty((0, 0))
        if len(draws) < 2:
            return {}
        if not draws.min() < draws.max():  # also of NaN
            log.warning(
                "Whether the chains have converged is not known: their energies are all equal or not finite. Use a "
                "smaller step_size if the chains do not move."
            )
            return {}
        stats: Any = array_stats  # its annotations allow other results
        record = {
            "r_hat": float(stats.rhat(draws)),
            "ess_bulk": float(stats.ess(draws, method="bulk")),
            "ess_tail": float(stats.ess(draws, method="tail", prob=(0.05, 0.95))),
        }
        if record["r_hat"] > LIMIT:
            log.warning("The chains have not converged: split R-hat of their energies is %.2f.", record["r_hat"])
        return record
