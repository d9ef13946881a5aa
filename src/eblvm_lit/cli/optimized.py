"""The metric that a search optimizes, and the one that picks the best: checks of their names before training."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from omegaconf import DictConfig

from eblvm_lit.cli.build import Parts
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.checkpoint_weights import PREFIXES
from eblvm_lit.training.callbacks.checkpoints import Checkpoints
from eblvm_lit.training.callbacks.evaluation import Evaluation
from eblvm_lit.training.callbacks.log_curves import LogCurves
from eblvm_lit.training.results import COSTS, best_name

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
    """Refuse an ``optimized_metric`` that the run will not have, and a monitored one, before it trains.

    Args:
        cfg: The configuration of the run.
        parts: Its parts; the data are set up.

    Raises:
        ConfigError: Lists the metrics that the run will have.
    """
    known, unknown = _names(cfg, parts)
    for key, callback in parts.callbacks.items():
        if isinstance(callback, Checkpoints) and not unknown:  # else the first validation tells
            given = _validated(parts)
            if callback.monitor not in given:
                raise ConfigError(
                    f"callbacks.{key}.monitor={callback.monitor}: this run will have no such metric; validations will "
                    f"give {', '.join(sorted(given))}.{_hint(callback.monitor, known)}"
                )
    name = cfg.get("optimized_metric")
    if name is None or name in known:
        return
    if unknown:
        log.warning(
            "Only the end of the run shows whether it has optimized_metric=%s, because %s may add metrics.",
            name,
            ", ".join(unknown),
        )
        return
    raise ConfigError(
        f"optimized_metric={name}: this run will have no such metric; it will have {', '.join(sorted(known))}."
        f"{_hint(str(name), known)}"
    )


def _hint(name: str, known: set[str]) -> str:
    """Where validation metrics are named, for one that only the end of the run computes."""
    split, _, metric = name.partition("/")
    if split != "val" or f"test/{metric}" not in known:
        return ""
    return " Validations compute the metrics that callbacks.evaluation.at_validation names."


def _validated(parts: Parts) -> set[str]:
    """The names of the numbers that some validation gives."""
    found = {"val/loss"}
    for callback in parts.callbacks.values():
        if isinstance(callback, Evaluation):
            names = callback.names(parts.method, parts.data)
            found |= {f"val/{name}" for metric in callback.at_validation for name in names[metric] or ()}
    return found


def _names(cfg: DictConfig, parts: Parts) -> tuple[set[str], list[str]]:
    """The names of the final metrics, and what may add others whose names are not known before the run."""
    known, unknown = set(ALWAYS), []
    if not type(parts.method).__module__.startswith("eblvm_lit."):  # it may log what it likes
        unknown.append("the method")
    spaced: set[str] = set()  # validation metrics that the best checkpoint may lack
    monitored = {callback.monitor for callback in parts.callbacks.values() if isinstance(callback, Checkpoints)}
    for key, callback in parts.callbacks.items():
        if not type(callback).__module__.startswith("eblvm_lit."):
            unknown.append(f"callbacks.{key}")
        if not isinstance(callback, Evaluation):
            continue
        for metric, names in callback.names(parts.method, parts.data).items():
            if names is None:
                unknown.append(f"callbacks.{key}.metrics.{metric}")
            validated = {f"val/{name}" for name in names or () if metric in callback.at_validation}
            if metric in callback.intervals and not validated & monitored:
                spaced |= validated
            known |= validated
            known |= {f"{split}/{name}" for split in PREFIXES[cfg.eval_weights].values() for name in names or ()}
    if cfg.test_checkpoint == "best":
        known -= spaced
    if cfg.test_checkpoint == "both":
        known |= {best_name(name) for name in known - spaced}
    if any(isinstance(callback, LogCurves) for callback in parts.callbacks.values()):
        known |= set(COSTS)
    return known, unknown
