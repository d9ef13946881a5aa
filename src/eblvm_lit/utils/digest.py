"""Hashes of modules, tensors and settings, used as names of cached files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

__all__ = ["digest"]


def digest(*parts: object) -> str:
    """Return sixteen hexadecimal digits that identify a list of values.

    Args:
        parts: The values: modules (hashed by structure, settings and state), tensors (hashed bit by bit), and others
            (hashed by ``repr``).

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
                found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _pieces(part: object) -> Iterator[tuple[str, Tensor | None]]:
    """Yield the parts of a value that are hashed: pairs of a header text and a tensor, or of a text and None.

    The headers ensure that different lists of values never give the same bytes.
    """
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
    """Return the attributes of a module that are numbers, texts or tuples, because a hash of tensors misses them."""
    plain = bool, int, float, str, tuple
    return {k: v for k, v in sorted(vars(module).items()) if isinstance(v, plain) and k != "training"}
