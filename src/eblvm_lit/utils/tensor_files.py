"""Reading of files of tensors as plain data, whose sizes are checked before anything is built."""

from __future__ import annotations

import os
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["DTYPES", "check_tensors", "load_tensors"]

MAX_PICKLE = 1 << 23  # bytes; that of a model of a hundred tensors with Adam's states has 40,000
MAX_VALUES, MAX_DEPTH = 1_000_000, 100
# What a file of dense tensors names. Others that torch allows, such as bytearray, ask for memory without holding data.
NAMES = re.compile(r"torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter)|collections OrderedDict")
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
PLAIN = (str, int, float, bool, bytes, type(None))


def load_tensors(path: Path) -> Any:
    """Read nested containers of numbers, texts and dense tensors; nothing in the file is executed.

    Args:
        path: A regular file, written by ``torch.save``.

    Raises:
        ValueError: It holds something else, or announces more than it holds.
        Exception: What torch raises for a damaged file.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "a.pt"
        >>> torch.save({"w": torch.ones(2)}, file)
        >>> load_tensors(file)
        {'w': tensor([1., 1.])}
        >>> torch.save({"w": torch.ones(1).expand(10**9)}, file)
        >>> load_tensors(file)
        Traceback (most recent call last):
        ValueError: w repeats its numbers (shape (1000000000,), stride (0,))
    """
    _check_archive(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    check_tensors(content)
    return content


def _check_archive(path: Path) -> None:
    """Refuse an archive that unpacks to more than it is, or whose pickle names more than dense tensors."""
    if not zipfile.is_zipfile(path):
        raise ValueError("it is cut off, or no archive as torch.save writes it")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type for entry in entries) or sum(e.file_size for e in entries) > os.path.getsize(path):
            raise ValueError("its archive is packed, or announces more than it holds")
        pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE:
            raise ValueError(f"its archive holds no data.pkl of less than {MAX_PICKLE:,} bytes")
        content = archive.read(pickles[0])
    for operation, arg, _ in pickletools.genops(content):
        if operation.name == "GLOBAL" and not NAMES.fullmatch(str(arg)):
            raise ValueError(f"it holds more than data, such as {str(arg).replace(' ', '.')}")


def check_tensors(content: Any, dtypes: tuple[torch.dtype, ...] = DTYPES, on_cpu: bool = True) -> None:
    """Refuse what no file of ours holds: objects, numbers beyond 64 bits, and tensors that are not dense.

    Args:
        content: Nested containers.
        dtypes: The types of tensors that they may hold.
        on_cpu: Whether the tensors must be on the CPU, as those of files are.

    Raises:
        ValueError: Names the place.

    Example:
        >>> check_tensors({"state": [{"exp_avg": torch.zeros(2, dtype=torch.float16)}]})
        Traceback (most recent call last):
        ValueError: state.0.exp_avg is of type torch.float16, not torch.float32 or torch.float64
    """
    waiting: list[tuple[Any, Any, int]] = [(None, content, 0)]  # a place is a chain of keys, from its end
    for count in range(MAX_VALUES):
        if not waiting:
            return
        place, value, depth = waiting.pop()
        if type(value) in (Tensor, nn.Parameter):
            reason = _unfit(value, dtypes, on_cpu)
        elif isinstance(value, dict | list | tuple):
            if depth == MAX_DEPTH:
                raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            if count + len(waiting) + len(value) > MAX_VALUES:
                break
            waiting += [((place, key), inner, depth + 1) for key, inner in pairs]
            reason = _unfit_keys(value) if isinstance(value, dict) else None
        elif type(value) is int and not -(2**63) <= value < 2**63:
            reason = "is a number beyond 64 bits"
        else:
            reason = None if type(value) in PLAIN else f"is of type {type(value).__name__}, which is no data"
        if reason is not None:
            raise ValueError(f"{_name(place)} {reason}")
    raise ValueError(f"it holds more than {MAX_VALUES:,} values")


def _name(place: Any) -> str:
    """The keys that lead to a place, from the outside, without what would not be read."""
    keys: list[str] = []
    while place is not None:
        place, key = place
        keys.append(str(key) if type(key) in (str, int, bool) else type(key).__name__)
    return ".".join(reversed(keys))[:200] or "it"


def _unfit_keys(value: dict[Any, Any]) -> str | None:
    """Why a dictionary has keys that no file of ours has; None if it has not."""
    odd = next((key for key in value if type(key) not in PLAIN), None)
    return None if odd is None else f"has a key of type {type(odd).__name__}"


def _unfit(tensor: Tensor, dtypes: tuple[torch.dtype, ...], on_cpu: bool) -> str | None:
    """Why a tensor is not dense data; None if it is."""
    elsewhere = on_cpu and tensor.device.type != "cpu"
    if tensor.layout != torch.strided or elsewhere or tensor.is_quantized or tensor.is_nested:
        return "is no dense tensor"
    if tensor.dtype not in dtypes:
        return f"is of type {tensor.dtype}, not torch.float32 or torch.float64"
    span = 1  # of memory, in numbers
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < span:
            return f"repeats its numbers (shape {tuple(tensor.shape)}, stride {tensor.stride()})"
        span += (size - 1) * stride if size > 1 else 0
    held = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if tensor.numel() and span > held:
        return f"lies beyond its memory ({held} numbers for shape {tuple(tensor.shape)}, stride {tensor.stride()})"
    return None
