"""The interfaces of networks: features of v, and generators of v."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

__all__ = ["FeatureNetwork", "GeneratorNetwork"]

if TYPE_CHECKING:

    class FeatureNetwork(Protocol):
        """A module that maps v (B, *event) to features (B, out_dim)."""

        @property
        def event_shape(self) -> tuple[int, ...]:
            """The shape of one example v."""
            ...

        @property
        def out_dim(self) -> int:
            """The number of features."""
            ...

        def __call__(self, v: Tensor, /) -> Tensor:
            """Compute the features of v, shape (B, out_dim)."""
            ...

    class GeneratorNetwork(Protocol):
        """A module that maps h (B, h_dim) to v (B, *event)."""

        @property
        def event_shape(self) -> tuple[int, ...]:
            """The shape of one example v."""
            ...

        @property
        def h_dim(self) -> int:
            """The number of latents."""
            ...

        def __call__(self, h: Tensor, /) -> Tensor:
            """Generate v, shape (B, *event), from the latents h."""
            ...

else:  # at run time any module is accepted, because its attributes cannot be checked before it is built
    FeatureNetwork = GeneratorNetwork = nn.Module
