"""Words of a command line that Hydra and a shell read as they are meant."""

from __future__ import annotations

import shlex

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

__all__ = ["override", "pasteable"]


def override(key: str, value: str) -> str:
    """KEY=VALUE as Hydra reads it, with quotes where its grammar needs them, as for a path with ``=``.

    Example:
        >>> print(override("ckpt", "outputs/a"), override("ckpt", "lr=0.1/last.ckpt"))
        ckpt=outputs/a ckpt="lr=0.1/last.ckpt"
    """
    plain = f"{key}={value}"
    try:
        if OverridesParser.create().parse_override(plain).value() == value:
            return plain
    except HydraException:
        pass
    return '{}="{}"'.format(key, value.replace('"', r"\""))


def pasteable(key: str, value: str) -> str:
    """KEY=VALUE as it is pasted into a shell.

    Example:
        >>> print(pasteable("ckpt", "lr=0.1/last.ckpt"))
        'ckpt="lr=0.1/last.ckpt"'
    """
    return shlex.quote(override(key, value))
