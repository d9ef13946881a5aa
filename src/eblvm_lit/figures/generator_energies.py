"""A figure of the energies of data, of a generator's samples and of reconstructions."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.draws.base import ImageSource
from eblvm_lit.draws.reconstructions import reconstruct, reconstructs
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.figures.base import Picture, new_figure
from eblvm_lit.figures.energies import free_energies, histograms
from eblvm_lit.methods.base import Method

__all__ = ["GeneratedEnergies"]


class GeneratedEnergies(Picture):
    """Histograms of E'(v) for test data, samples of the generator and reconstructions of the test data.

    Samples below the data mean that the energy lags behind the generator; reconstructions above the data mean that the
    energy responds to details that the latents miss. Reference: Kan et al. 2022.

    Args:
        images: The source of the samples.
        n: Number of examples of each kind at most.

    Example:
        >>> from types import SimpleNamespace
        >>> from torch import nn
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
        >>> from eblvm_lit.draws.generator import GeneratedImages
        >>> data, q = Digits(), LinearGaussianPosterior(v_dim=64, h_dim=3)
        >>> data.setup()
        >>> parts = MethodParts(energy=GRBM(v_dim=64, h_dim=3), posterior=q, generator=nn.Linear(3, 64))
        >>> method = SimpleNamespace(parts=parts, seed=0, h_dim=3, device="cpu", dtype=torch.float32)
        >>> figure = GeneratedEnergies(images=GeneratedImages(), n=20).draw(method, data, torch.Generator())
        >>> [panel.get_title() for panel in figure.axes]
        ['data, samples and reconstructions']
    """

    name = "energies"

    def __init__(self, *, images: ImageSource, n: PositiveInt = 2000) -> None:
        self.images = images
        self.n = n

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Whether the figure can be drawn: for marginal energies beside a generator of images."""
        return isinstance(method.parts.energy, MarginalEnergy) and self.images.supports(method, data)

    def draw(self, method: Method, data: ArrayDataModule, generator: torch.Generator) -> Figure | None:
        """Draw it; see :meth:`Picture.draw`."""
        found = free_energies(method, None, self._examples(method, data), generator)
        if found is None:
            return None
        figure = new_figure(4.6, 3.1)
        panel = figure.subplots()
        histograms(panel, found, "data, samples and reconstructions", "$E(v)$")
        panel.set_ylabel("share of examples")
        return figure

    def _examples(self, method: Method, data: ArrayDataModule) -> dict[str, Tensor]:
        """Examples of each kind, shape (n, *event), on the method's device."""
        options = {"device": method.device, "dtype": method.dtype}
        v = data.as_float(data.splits.test[: self.n]).to(**options)
        made = data.as_float(self.images.images(method, data, self.n)).to(**options).view(-1, *v.shape[1:])
        examples = {"test data": v, "samples": made}
        return {**examples, "reconstructions": reconstruct(method.parts, v)} if reconstructs(method.parts) else examples
