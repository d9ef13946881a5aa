"""A name for what samples depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

__all__ = ["digest"]


def digest(*parts: object) -> str:
    """Sixteen hexadecimal digits that tell a list of things from any other.

    Args:
        parts: Modules (what they are made of, their settings and all their tensors), tensors (bit by bit), and what
            ``repr`` tells apart.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> before = digest(layer, 0)
        >>> _ = nn.init.constant_(layer.bias, 7)
        >>> digest(layer, 0) == before, len(before)
        (False, 16)
    """
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        for text, tensor in _pieces(part):
            found.update(text.encode())
            if tensor is not None:
                found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def _pieces(part: object) -> Iterator[tuple[str, Tensor | None]]:
    """Texts, and the tensors they announce: so that no two lists run together to the same bytes."""
    if isinstance(part, nn.Module):
        for name, module in part.named_modules():
            yield f"module {name} {type(module).__qualname__} {_settings(module)};", None
        for name, value in part.state_dict().items():
            yield f"{name} {tuple(value.shape)} {value.dtype};", value
    elif isinstance(part, Tensor):
        yield f"tensor {tuple(part.shape)} {part.dtype};", part
    else:
        yield f"{part!r};", None


def _settings(module: nn.Module) -> dict[str, object]:
    """A module's plain attributes: two models of equal tensors may still differ in these."""
    plain = bool, int, float, str, tuple
    return {k: v for k, v in sorted(vars(module).items()) if isinstance(v, plain) and k != "training"}
