"""Pictures embedded in an HTML page as data URIs."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from eblvm_lit.errors import DataError
from eblvm_lit.utils.plain_files import open_regular

__all__ = ["Picture", "inline"]

MOST_BYTES, MOST_PIXELS = 10**8, 5 * 10**7  # a picture of a few kB can unpack to gigabytes


@dataclass(frozen=True)
class Picture:
    """An embedded picture.

    Attributes:
        source: The data URI.
        width: In pixels.
        height: In pixels.
        alt: The text alternative.
    """

    source: str
    width: int
    height: int
    alt: str


def inline(path: Path, alt: str, widest: int) -> Picture | None:
    """Read a picture, and scale it down if it is too wide.

    Args:
        path: A PNG file.
        alt: The text alternative.
        widest: The largest width in pixels.

    Returns:
        The picture, encoded without loss; None if the file is damaged or too large.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "wide.png"
        >>> Image.new("L", (40, 20)).save(path)
        >>> small = inline(path, "grey", widest=10)
        >>> small.source[:23], small.width, small.height
        ('data:image/webp;base64,', 10, 5)
    """
    try:
        with open_regular(path, MOST_BYTES) as source, Image.open(source, formats=["PNG"]) as image:
            if image.width * image.height > MOST_PIXELS:
                return None
            image = image.convert("RGB") if image.mode not in ("L", "RGB") else image
            if image.width > widest:
                image = image.resize((widest, max(1, round(image.height * widest / image.width))), Image.LANCZOS)
            file = io.BytesIO()
            image.save(file, "WEBP", lossless=True, quality=50, method=2)  # half the size of PNG
            size = image.size
    except (DataError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return Picture(f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}", *size, alt)
