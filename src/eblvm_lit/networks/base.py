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
            """Shape of one v."""
            ...

        @property
        def out_dim(self) -> int:
            """Number of features."""
            ...

        def __call__(self, v: Tensor, /) -> Tensor:
            """The features of v."""
            ...

    class GeneratorNetwork(Protocol):
        """A module that maps h (B, h_dim) to v (B, *event)."""

        @property
        def event_shape(self) -> tuple[int, ...]:
            """Shape of one v."""
            ...

        @property
        def h_dim(self) -> int:
            """Number of latents."""
            ...

        def __call__(self, h: Tensor, /) -> Tensor:
            """The v of h."""
            ...

else:  # any module at run time, which cannot tell such modules from others before they are built
    FeatureNetwork = GeneratorNetwork = nn.Module
