"""Where a configuration may point: at files of this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eblvm_lit.errors import ConfigError

__all__ = ["refuse_url", "refuse_urls"]

# Keys that name files or folders, at any depth of a configuration.
PLACES = ("ckpt", "root", "path", "weights", "folder", "save_dir", "cache_dir", "run_dir", "outputs_dir", "data_root")


def refuse_url(name: str, value: Any) -> None:
    """Refuse an address where a file or folder is wanted: what comes from elsewhere is fetched by hand, and looked at.

    Args:
        name: The key, for the message.
        value: What it is set to.

    Raises:
        ConfigError: If it is an address.

    Example:
        >>> refuse_url("data.path", "s3://bucket/images")
        Traceback (most recent call last):
        eblvm_lit.errors.ConfigError: data.path=s3://bucket/images is an address, ...
    """
    if re.match(r"\s*[A-Za-z][A-Za-z0-9+.-]*:/", str(value)):  # a Path has made one slash of two
        raise ConfigError(
            f"{name}={value} is an address, and only files of this machine are read and written: download it, and name "
            "the file."
        )


def refuse_urls(node: Any, path: str = "") -> None:
    """Refuse addresses in all keys that name files or folders.

    Args:
        node: Plain containers.
        path: Where they stand, for the message.

    Raises:
        ConfigError: Names the first one.

    Example:
        >>> refuse_urls({"data": {"root": "data"}, "title": "see https://example.org"})
    """
    if isinstance(node, Mapping):
        for key, value in node.items():
            here = f"{path}.{key}" if path else str(key)
            if key in PLACES and isinstance(value, str):
                refuse_url(here, value)
            refuse_urls(value, here)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            refuse_urls(value, f"{path}[{index}]")
