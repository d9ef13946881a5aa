"""The interfaces of networks that compute features of v, denoised images and their features, or v from latents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

__all__ = ["DenoisingNetwork", "FeatureNetwork", "GeneratorNetwork"]

if TYPE_CHECKING:

    class _OfExamples(Protocol):
        @property
        def event_shape(self) -> tuple[int, ...]:
            """The shape of one example, without the batch dimension."""
            ...

    class FeatureNetwork(_OfExamples, Protocol):
        """A module that maps data v (B, *event) to features (B, out_dim)."""

        @property
        def out_dim(self) -> int:
            """The number of features."""
            ...

        def __call__(self, v: Tensor, /) -> Tensor:
            """Compute the features of v, shape (B, out_dim)."""
            ...

    class DenoisingNetwork(_OfExamples, Protocol):
        """A module that maps noised images and their levels (B, d + 1) to images (B, d) and features (B, out_dim)."""

        @property
        def out_dim(self) -> int:
            """The number of features."""
            ...

        def __call__(self, x: Tensor, /) -> tuple[Tensor, Tensor]:
            """Compute images (B, d) and features (B, out_dim) from noised images and their levels, x (B, d + 1)."""
            ...

    class GeneratorNetwork(_OfExamples, Protocol):
        """A module that maps latents h (B, h_dim) to data v (B, *event)."""

        @property
        def h_dim(self) -> int:
            """The number of latents."""
            ...

        def __call__(self, h: Tensor, /) -> Tensor:
            """Generate data v, shape (B, *event), from the latents h."""
            ...

else:  # at run time any module is accepted, because types are checked before the module has these attributes
    DenoisingNetwork = FeatureNetwork = GeneratorNetwork = nn.Module
