"""The settings in which a run differs from the checkpoint that it resumes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from eblvm_lit.utils.incidental import LENGTH_AND_TESTS, is_below, is_incidental

__all__ = ["changed_settings"]


def changed_settings(stored: Mapping[str, Any], cfg: DictConfig, allowed: Sequence[str] = ()) -> dict[str, str]:
    """The keys whose values differ and may not, with both values in words.

    A value that another key gives, as ``optimizer.lr`` gives the rates of both levels, is told once, under that key.

    Args:
        stored: The configuration in a checkpoint, resolved.
        cfg: The configuration of the run, with its interpolations.
        allowed: Keys that may differ, with all below them.

    Example:
        >>> cfg = OmegaConf.create({"seed": 2, "lr": 0.1, "method": {"lr": "${lr}"}, "threads": 2})
        >>> changed_settings({"seed": 1, "lr": 0.2, "method": {"lr": 0.2}, "threads": 1}, cfg)
        {'seed': '1, not 2', 'lr': '0.2, not 0.1'}
        >>> changed_settings({"seed": 1, "lr": 0.2, "method": {"lr": 0.2}}, cfg, ["seed", "lr"])
        {}
    """
    differing = dict(_differences(stored, OmegaConf.to_container(cfg, resolve=True)))
    raw = OmegaConf.to_container(cfg)

    def is_told(path: str) -> bool:
        if is_incidental(path, *LENGTH_AND_TESTS, *allowed):
            return False
        sources = _sources(raw, path.split("."))
        return not any(is_below(a, b) or is_below(b, a) for a in sources for b in differing)

    return {path: f"{before}, not {now}" for path, (before, now) in differing.items() if is_told(path)}


def _differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The differing values of two nested mappings, by path; a part of another class is one difference."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        before, now = (None if value == {} else value for value in (before, now))  # an empty part is none
        if before != now:
            yield path, (before, now)
    elif before.get("_target_") != now.get("_target_"):
        yield path, tuple(str(part.get("_target_")).rpartition(".")[2] for part in (before, now))
    else:
        for key in dict.fromkeys([*now, *before]):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))


def _sources(node: Any, keys: Sequence[str]) -> list[str]:
    """The paths that interpolations name on the way to a key."""
    for key in keys:
        if not isinstance(node, Mapping):
            break
        node = node.get(key)
    return re.findall(r"\$\{(\w[\w.]*)\}", str(node)) if not isinstance(node, Mapping) else []
