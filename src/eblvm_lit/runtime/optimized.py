"""The metric that a search optimizes: a check of its name before training, and its value afterwards."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from omegaconf import DictConfig

from eblvm_lit.callbacks.evaluation import Evaluation
from eblvm_lit.callbacks.log_curves import LogCurves
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.checkpoint_weights import PREFIXES
from eblvm_lit.runtime.build import Parts
from eblvm_lit.runtime.results import COSTS, best_name

__all__ = ["check_optimized", "optimized_value"]

log = logging.getLogger(__name__)

ALWAYS = ("iteration", "val/loss")


def optimized_value(metrics: Mapping[str, float], name: str | None) -> float | None:
    """The value that a sweeper reads; None without a name.

    Raises:
        ConfigError: If there is no such metric.

    Example:
        >>> optimized_value({"val/loss": 2.0}, "val/loss")
        2.0
    """
    if name is not None and name not in metrics:
        raise ConfigError(f"optimized_metric={name}: this run has no such metric; it has {', '.join(metrics)}.")
    return None if name is None else metrics[name]


def check_optimized(cfg: DictConfig, parts: Parts) -> None:
    """Refuse an ``optimized_metric`` that the run will not have, before it trains.

    Args:
        cfg: The configuration of the run.
        parts: Its parts; the data are set up.

    Raises:
        ConfigError: Lists the metrics that the run will have.
    """
    name = cfg.get("optimized_metric")
    if name is None or name in ALWAYS:
        return
    known, unknown = _names(cfg, parts)
    if name in known:
        return
    if unknown:
        log.warning(
            "Only the end of the run shows whether it has optimized_metric=%s, because %s may add metrics.",
            name,
            ", ".join(unknown),
        )
        return
    split, _, metric = str(name).partition("/")
    hint = ""
    if split == "val" and f"test/{metric}" in known:
        hint = " Validations compute the metrics that callbacks.evaluation.at_validation names."
    raise ConfigError(
        f"optimized_metric={name}: this run will have no such metric; it will have {', '.join(sorted(known))}.{hint}"
    )


def _names(cfg: DictConfig, parts: Parts) -> tuple[set[str], list[str]]:
    """The names of the final metrics, and the metrics and callbacks whose names are not known before the run."""
    known, unknown = set(ALWAYS), []
    between = cfg.trainer.max_steps // cfg.n_validations
    last_validation = cfg.trainer.max_steps // between * between
    for key, callback in parts.callbacks.items():
        if not type(callback).__module__.startswith("eblvm_lit."):
            unknown.append(f"callbacks.{key}")
        if not isinstance(callback, Evaluation):
            continue
        for metric, names in callback.names(parts.method, parts.data).items():
            splits = list(PREFIXES[cfg.eval_weights].values())
            if metric in callback.at_validation and callback.intervals.get(metric, 1) <= last_validation:
                splits.append("val")
            if names is None:
                unknown.append(f"callbacks.{key}.metrics.{metric}")
            known |= {f"{split}/{name}" for split in splits for name in names or ()}
    if cfg.test_checkpoint == "both":
        known |= {best_name(name) for name in known}
    if any(isinstance(callback, LogCurves) for callback in parts.callbacks.values()):
        known |= set(COSTS)
    return known, unknown
