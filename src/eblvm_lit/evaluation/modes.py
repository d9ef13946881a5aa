"""How many modes of a mixture a model's samples find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.data.blobs import Blobs
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.methods.base import Method
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.utils.io import write_json

__all__ = ["Modes", "shares_of_modes"]


def shares_of_modes(samples: Tensor, centres: Tensor, stds: Tensor, n_stds: float = 3.0) -> Tensor:
    """The share of samples (n, 2) within some standard deviations of each of the centres (C, 2), shape (C,).

    Example:
        >>> v = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [2.0, 0.0]])
        >>> shares_of_modes(v, torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.tensor([0.1, 0.1])).tolist()
        [0.5, 0.25]
    """
    return (torch.cdist(samples, centres) <= n_stds * stds).to(samples.dtype).mean(0)


class Modes(Metric):
    r"""How many modes of a mixture of Gaussians are found by samples of the model, and how many samples are near one.

    A sample belongs to a mode if it is within 3 standard deviations of its centre. A mode counts as found if it has at
    least ``min_share`` of its fair share of the samples, so that samples all over the plane find none. Gives the number
    of ``modes`` found; ``samples_at_modes``, the share of samples that belong to any; and ``rarest_mode``, the smallest
    share of a mode times the number of modes, 0.989 in the data. ``modes.json`` has the share of each. Samples are
    drawn by Langevin dynamics from uniform points of the window. They rarely leave a narrow mode, so shares tell where
    the model has modes, not how much mass these have. Applies to :class:`~eblvm_lit.data.blobs.Blobs`.

    Args:
        n_samples: Number of samples.
        n_steps: Steps of Langevin dynamics.
        step_size: Their size; well below the square of the modes' standard deviation.
        min_share: Of 1 / C, for C modes, which a mode needs to count as found.
        save_dir: Folder of ``modes.json``; null writes none.

    Raises:
        ConfigError: For fewer than one sample, or a min_share outside of (0, 1].

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.blobs import TwoBlobs
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.base import MethodParts
        >>> data, method = TwoBlobs(), SimpleNamespace(parts=MethodParts(energy=GRBM(v_dim=2, h_dim=3)))
        >>> list(Modes(n_samples=50, n_steps=2).evaluate(method, data, "test", torch.Generator()))
        ['modes', 'samples_at_modes', 'rarest_mode']
    """

    def __init__(
        self,
        *,
        n_samples: int = 2500,
        n_steps: int = 1000,
        step_size: float = 1e-3,
        min_share: float = 0.1,
        save_dir: str | None = None,
    ) -> None:
        if n_samples < 1 or not 0 < min_share <= 1:
            raise ConfigError(f"Modes need n_samples >= 1 and min_share in (0, 1], not {n_samples} and {min_share}.")
        self.n_samples, self.min_share, self.save_dir = n_samples, min_share, save_dir
        self.langevin = Langevin(n_steps=n_steps, step_size=step_size)

    def names(self, method: Method, data: ArrayDataModule) -> Sequence[str]:
        """The names of the numbers; see :meth:`Metric.names`."""
        energy = method.parts.energy
        drawn = isinstance(energy, MarginalEnergy) or (isinstance(energy, Energy) and energy.continuous)
        return ["modes", "samples_at_modes", "rarest_mode"] if drawn and isinstance(data, Blobs) else []

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """The numbers; see :meth:`Metric.evaluate`."""
        if not self.names(method, data) or not isinstance(data, Blobs):
            return {}
        samples = self.samples(method, data, generator)
        centres, stds = (torch.tensor(x).to(samples) for x in (data.centres, data.stds))
        shares = shares_of_modes(samples, centres, stds)
        relative = (shares * len(centres)).tolist()
        if self.save_dir is not None:
            each = [{"centre": c, "share": s} for c, s in zip(centres.tolist(), shares.tolist(), strict=True)]
            write_json(Path(self.save_dir) / "modes.json", {"split": split, "n_samples": self.n_samples, "modes": each})
        n_found = sum(share >= self.min_share for share in relative)
        return {"modes": float(n_found), "samples_at_modes": float(shares.sum()), "rarest_mode": min(relative)}

    def samples(self, method: Method, data: Blobs, generator: torch.Generator) -> Tensor:
        """Samples of the model, shape (n_samples, 2)."""
        energy = method.parts.energy
        assert isinstance(energy, Energy)  # names() has asked
        low, high = (torch.tensor(ends).to(next(energy.parameters())) for ends in zip(*data.bounds, strict=True))
        return self.langevin.sample(energy, self.n_samples, generator, low=low, high=high)
