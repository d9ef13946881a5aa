"""Number types with ranges for constructor arguments, used to validate the values of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import Field, PositiveInt

__all__ = [
    "AtLeastTwo",
    "Decay",
    "EventShape",
    "Fraction",
    "ImageShape",
    "Pair",
    "Seed",
    "Share",
    "Sizes",
    "Temperature",
]

AtLeastTwo: TypeAlias = Annotated[int, Field(ge=2)]
Decay: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Fraction: TypeAlias = Annotated[float, Field(gt=0, lt=1)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Temperature: TypeAlias = Annotated[float, Field(ge=1)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**32)]
Pair: TypeAlias = Annotated[Sequence[float], Field(min_length=2, max_length=2)]
Sizes: TypeAlias = Annotated[Sequence[PositiveInt], Field(min_length=1)]
if TYPE_CHECKING:
    Side: TypeAlias = int
else:
    Side = PositiveInt | None
# The channels, height and width of images. None stands for a size that varies, as in a folder of images that are not
# resized. If a network's constructor has an argument of this type, the network is recognised as a network for images.
ImageShape: TypeAlias = Annotated[Sequence[Side], Field(min_length=3, max_length=3)]
# The shape of an example, which may be a vector or an image.
EventShape: TypeAlias = Annotated[Sequence[Side], Field(min_length=1)]
