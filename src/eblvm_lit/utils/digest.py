"""Hashes of modules, tensors and settings, used as names of cached files."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from types import FunctionType

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


def _settings(part: object) -> dict[str, object]:
    """Return the attributes of a module that a hash of its tensors misses.

    They are numbers, texts and tuples, functions, and objects of this package with such attributes. A function without
    an importable name never has the same digest twice, because its code does not say which values it uses.
    """
    found: dict[str, object] = {}
    for name, value in sorted(vars(part).items()):
        if isinstance(value, bool | int | float | str | tuple) and name != "training":
            found[name] = value
        elif isinstance(value, FunctionType):
            path = f"{value.__module__}.{value.__qualname__}"
            found[name] = path if "<" not in path else uuid.uuid4().hex
        elif type(value).__module__.startswith("eblvm_lit.") and not isinstance(value, nn.Module):
            tensors = {key: digest(x) for key, x in vars(value).items() if isinstance(x, Tensor)}
            lists = {key: x for key, x in vars(value).items() if isinstance(x, list)} | tensors
            found[name] = {**lists, **_settings(value)}
    return found
