"""The settings in which a run differs from the checkpoint that it resumes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

__all__ = ["changed_settings"]

# What may differ without being asked: where a run reads and writes, what it prints and logs, how long it is, how it is
# tested, and on what it computes.
INCIDENTAL = (
    *("ckpt", "run_dir", "outputs_dir", "cache_dir", "show_config", "summary", "allow_packages", "optimized_metric"),
    *("sweep", "resume", "logger", "callbacks", "trainer", "n_validations", "test_checkpoint", "eval_weights"),
    *("compile", "method.compile", "iterations_per_batch", "threads", "tf32", "sampler"),
)
PLAIN = (bool, int, float, str, list, dict, type(None))  # what a configuration consists of
PLACES = ("root", "cache_dir", "save_dir")  # keys of folders, at any depth


def changed_settings(stored: Mapping[str, Any], cfg: DictConfig, allowed: Sequence[str] = ()) -> dict[str, str]:
    """The keys whose values differ and may not, with both values in words.

    A value that another key gives, as ``optimizer.lr`` gives the rates of both levels, is told once, under that key.
    A part of another class is one difference.

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
    own = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    differing = _differences(stored, own)
    sources = _sources(OmegaConf.to_container(cfg, resolve=False))
    told = {}
    for path, (before, now) in differing.items():
        free = any(_is_below(path, key) for key in (*INCIDENTAL, *allowed)) or path.rpartition(".")[2] in PLACES
        given = any(_is_below(path, node) for node, names in sources.items() if _changed_among(names, differing))
        if not free and not given:
            told[path] = f"{_words(before)}, not {_words(now)}"
    return told


def _differences(before: Any, now: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """The differing values of two nested containers by path; a part of another class is one of them."""
    mappings = isinstance(before, Mapping) and isinstance(now, Mapping)
    if not mappings or before.get("_target_") != now.get("_target_"):
        return {} if _equal(before, now) else {path: (before, now)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys([*now, *before]):  # null is as good as absent
        found |= _differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    return found


def _equal(before: Any, now: Any) -> bool:
    """Whether two values are the same; an empty part is as good as none."""
    before, now = (None if isinstance(value, Mapping) and not value else value for value in (before, now))
    return type(before) in PLAIN and type(now) in PLAIN and before == now


def _sources(node: Any, path: str = "") -> dict[str, list[str]]:
    """The paths that the interpolations below a node name, by the path of each; those in a list, by the list's."""
    if isinstance(node, str | list):
        names = re.findall(r"\$\{(\w[\w.]*)\}", str(node))
        return {path: names} if names else {}
    found: dict[str, list[str]] = {}
    for key, value in node.items() if isinstance(node, Mapping) else ():
        found |= _sources(value, f"{path}.{key}" if path else str(key))
    return found


def _changed_among(names: Sequence[str], differing: Mapping[str, Any]) -> bool:
    """Whether anything differs at or below one of some paths, or above it."""
    return any(_is_below(path, name) or _is_below(name, path) for name in names for path in differing)


def _is_below(path: str, other: str) -> bool:
    """Whether a path is another one, or below it."""
    return f"{path}.".startswith(f"{other}.")


def _words(value: Any) -> str:
    if isinstance(value, Mapping) and "_target_" in value:
        return str(value["_target_"]).rpartition(".")[2]
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
