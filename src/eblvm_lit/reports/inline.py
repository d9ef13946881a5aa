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
        path: A file that Pillow can read.
        alt: What it shows.
        widest: In pixels.

    Returns:
        The picture as PNG; None if the file is damaged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "wide.png"
        >>> Image.new("L", (40, 20)).save(path)
        >>> small = inline(path, "grey", widest=10)
        >>> small.source[:22], small.width, small.height
        ('data:image/png;base64,', 10, 5)
    """
    try:
        content = path.read_bytes()
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            image.load()  # all of it: a damaged file says so here
            size = image.size
            if image.width > widest:
                small = image.convert("RGB") if image.mode in ("RGBA", "P") else image
                small = small.resize((widest, max(1, round(image.height * widest / image.width))), Image.LANCZOS)
                file, size = io.BytesIO(), small.size
                small.save(file, "PNG")
                content = file.getvalue()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return Picture(f"data:image/png;base64,{base64.b64encode(content).decode()}", *size, alt)
