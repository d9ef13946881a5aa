"""Pictures inside of a page: as part of its text, so that it is one file."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

__all__ = ["Picture", "inline"]


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Attributes:
        source: Its data URI.
        width: In pixels.
        height: In pixels.
        alt: What it shows, for those who do not see it.
    """

    source: str
    width: int
    height: int
    alt: str


def inline(path: Path, alt: str, widest: int) -> Picture | None:
    """Read a picture, smaller if it is wider than a page needs it.

    Args:
        path: A PNG file.
        alt: What it shows.
        widest: In pixels.

    Returns:
        The picture, none of its pixels changed but by the scaling; None if the file is damaged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "wide.png"
        >>> Image.new("L", (40, 20)).save(path)
        >>> small = inline(path, "grey", widest=10)
        >>> small.source[:23], small.width, small.height
        ('data:image/webp;base64,', 10, 5)
    """
    try:
        with Image.open(path, formats=["PNG"]) as image:
            image = image.convert("RGB") if image.mode not in ("L", "RGB") else image
            if image.width > widest:
                image = image.resize((widest, max(1, round(image.height * widest / image.width))), Image.LANCZOS)
            file = io.BytesIO()
            image.save(file, "WEBP", lossless=True, quality=50, method=2)  # half of what PNG takes
            size = image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return Picture(f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}", *size, alt)
