"""The command-line wrapper of train and evaluate: error messages, exit codes, and results for sweepers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from omegaconf import DictConfig

from eblvm_lit.cli.hints import refuse_unread
from eblvm_lit.cli.sweeps import worst_value
from eblvm_lit.data.files import look_for_folder
from eblvm_lit.errors import ConfigError, EblvmError, InterruptedRunError, NonFiniteError
from eblvm_lit.runs.instantiate import to_plain
from eblvm_lit.utils.command_line import in_sweep

__all__ = ["main"]

log = logging.getLogger(__name__)


def main(function: Callable[[DictConfig], dict[str, float]], cfg: DictConfig) -> float | None:
    """Run ``train`` or ``evaluate``; a user error ends with one message and a non-zero exit code.

    Returns:
        The metric ``cfg.optimized_metric``, for sweepers.
    """
    try:
        if HydraConfig.initialized() and "method" in cfg:
            refuse_unread(cfg, HydraConfig.get().overrides.task)
            look_for_folder(to_plain(cfg.data, "data"))
        metrics = function(cfg)
        if (name := cfg.get("optimized_metric")) is not None and name not in metrics:
            raise ConfigError(f"optimized_metric={name}: this run has no such metric; it has {', '.join(metrics)}.")
        return None if name is None else metrics[name]
    except InterruptedRunError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)
    except EblvmError as error:
        log.error("%s", error)
        if not in_sweep():
            sys.exit(1)
        if _in_grid(cfg):
            return None
        if isinstance(error, NonFiniteError) and (worst := worst_value()) is not None:
            return worst
        raise CompactHydraException(str(error)) from None  # the sweeper handles it
    except Exception:
        if not _in_grid(cfg):
            raise
        log.exception("The job has failed; the other jobs of the sweep still run.")
        return None


def _in_grid(cfg: DictConfig) -> bool:
    """Whether this is a job of a plain grid sweep, which reports failed jobs at its end instead of stopping."""
    return in_sweep() and "sweep" in cfg and cfg.get("optimized_metric") is None
