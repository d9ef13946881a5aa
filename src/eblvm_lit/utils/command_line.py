"""Helpers for command lines: quoting for Hydra and shells, a search for similar names, and the command of this run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

__all__ = ["config_folders", "in_sweep", "nearest", "override", "pasteable", "typed_command"]

LEAST_LIKENESS = 0.6  # names are similar if difflib's ratio is above this value; lower ratios arise by chance


def override(key: str, value: str) -> str:
    """Write KEY=VALUE for Hydra, with quotes around a value such as a path that contains ``=``.

    Example:
        >>> print(override("ckpt", "outputs/a"), override("ckpt", "lr=0.1/last.ckpt"))
        ckpt=outputs/a ckpt="lr=0.1/last.ckpt"
    """
    if re.fullmatch(r"[A-Za-z/][\w./-]*", value, re.ASCII):
        return f"{key}={value}"
    return '{}="{}"'.format(key, value.replace('"', r"\""))


def pasteable(key: str, value: str) -> str:
    """Write KEY=VALUE in a form that can be pasted into a shell.

    Example:
        >>> print(pasteable("ckpt", "lr=0.1/last.ckpt"))
        'ckpt="lr=0.1/last.ckpt"'
    """
    return shlex.quote(override(key, value))


def nearest(name: str, names: Collection[str]) -> str | None:
    """Return the known name that is most similar to a given name, or None if no known name is similar enough.

    Names are compared first by their last words, such as ``lr`` in ``method.lr``, and then as a whole.

    Args:
        name: The given name, such as a key with a typing error.
        names: The known names.

    Example:
        >>> nearest("n_lower_steps", ["method.n_lower_steps", "n_validations"])
        'method.n_lower_steps'
        >>> nearest("trainer.max_step", ["trainer.max_steps", "trainer.devices"])
        'trainer.max_steps'
        >>> nearest("dsn", ["dsm", "snl"]), nearest("test", ["threads"]), nearest("trainer.foo", ["schedule.floor"])
        ('dsm', None, None)
    """

    def likeness(known: str) -> tuple[float, float, bool]:
        pairs = ((known.rpartition(".")[2], name.rpartition(".")[2]), (known, name))
        word, whole = (SequenceMatcher(a=a, b=b).ratio() for a, b in pairs)
        return word, whole, known[:2] == name[:2]

    found = {known: likeness(known) for known in names}
    like = [known for known, (word, whole, _) in found.items() if word == 1 or min(word, whole) > LEAST_LIKENESS]
    return max(like, key=found.__getitem__, default=None)


def in_sweep() -> bool:
    """Return whether this process runs a job of a sweep (``-m``).

    Example:
        >>> in_sweep()
        False
    """
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def typed_command() -> dict[str, Any]:
    """Return the command line of this run, in the same form as :func:`~eblvm_lit.utils.run_files.read_command`.

    The result is empty if the run was not started by Hydra.

    Example:
        >>> typed_command()
        {}
    """
    if not HydraConfig.initialized():
        return {}
    return {"overrides": [*HydraConfig.get().overrides.task], "choices": {**HydraConfig.get().runtime.choices}}


def config_folders() -> list[Path]:
    """Return the configuration folders that the command line names in addition to this package's conf/."""
    if not HydraConfig.initialized():
        return []
    sources = HydraConfig.get().runtime.config_sources
    chosen = (source for source in sources if source.provider not in ("main", "hydra", "schema"))
    return [Path(source.path) for source in chosen if source.schema == "file"]
