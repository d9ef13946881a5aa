"""Convergence diagnostics of Markov chains, computed from the energies along the chains."""

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

N_DRAWS = 100  # the maximum number of energies recorded per chain
MIN_DRAWS = 8
LIMIT = 1.1


class ChainTrace:
    r"""A record of the chains' energies at selected steps, from which R-hat and effective sample sizes are computed.

    Split R-hat compares the variance between halves of chains with the variance within them, and is 1 for converged
    chains. The effective sample sizes are those of the bulk and of the tails. ArviZ computes all of them, after rank
    normalisation. They only show how the energy mixes: chains that never leave their modes look converged if the modes
    have equal energies. Reference: Vehtari et al. 2021, arXiv 1903.08008.

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
        """Choose at most 100 equally spaced steps from the given steps, or none if fewer than 8 are given."""
        return set(stationary[:: math.ceil(len(stationary) / N_DRAWS)]) if len(stationary) >= MIN_DRAWS else set()

    def add(self, energies: Tensor) -> None:
        """Record the energies (B,) of the current batch of chains at one step."""
        self._batch.append(energies.detach())

    def next_batch(self) -> None:
        """Start recording the next batch of chains, which must have the same number of steps."""
        if self._batch:
            self._batches.append(torch.stack(self._batch, 1).double().cpu().numpy())
        self._batch = []

    def close(self) -> dict[str, float]:
        """Compute R-hat and the effective sample sizes from all recorded energies.

        A warning is logged if R-hat is above 1.1, or if all energies are equal or some are NaN.

        Returns:
            The values by name; empty for fewer than two chains, and for energies that are all equal or contain NaN.
        """
        self.next_batch()
        draws = np.concatenate(self._batches) if self._batches else np.empty((0, 0))
        if len(draws) < 2:
            return {}
        if not draws.min() < draws.max():  # true if all energies are equal or one is NaN
            log.warning(
                "Whether the chains have converged is not known: their energies are all equal or not finite. Use a "
                "smaller step_size if the chains do not move."
            )
            return {}
        stats: Any = array_stats  # ArviZ's type annotations also allow results that are not numbers
        record = {
            "r_hat": float(stats.rhat(draws)),
            "ess_bulk": float(stats.ess(draws, method="bulk")),
            "ess_tail": float(stats.ess(draws, method="tail", prob=(0.05, 0.95))),
        }
        if record["r_hat"] > LIMIT:
            log.warning("The chains have not converged: split R-hat of their energies is %.2f.", record["r_hat"])
        return record
