"""The command-line wrapper of train and evaluate: error messages, exit codes, and results for sweepers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from omegaconf import DictConfig

from eblvm_lit.cli.composition import stop_raising
from eblvm_lit.cli.optimized import optimized_value
from eblvm_lit.cli.sweeps.launcher import in_sweep
from eblvm_lit.cli.sweeps.search import value_of_divergence
from eblvm_lit.cli.validate import refuse_unread
from eblvm_lit.errors import EblvmError
from eblvm_lit.training.callbacks.nonfinite import NonFiniteError
from eblvm_lit.training.callbacks.preemption import InterruptedRunError
from eblvm_lit.utils.interrupts import INTERRUPTED, Interruption, raise_interrupts
from eblvm_lit.utils.io import disk_errors

__all__ = ["main"]

log = logging.getLogger(__name__)


def main(function: Callable[[DictConfig], dict[str, float]], cfg: DictConfig) -> float | None:
    """Run ``train`` or ``evaluate``; a user error ends with one message and a non-zero exit code.

    Returns:
        The metric ``cfg.optimized_metric``, for sweepers.
    """
    logging.raiseExceptions = False  # no traceback if the log file cannot be written
    stop_raising()
    with raise_interrupts():
        return _main(function, cfg)


def _main(function: Callable[[DictConfig], dict[str, float]], cfg: DictConfig) -> float | None:
    try:
        if HydraConfig.initialized():
            refuse_unread(cfg, HydraConfig.get().overrides.task)
        with disk_errors():
            metrics = function(cfg)
        return optimized_value(metrics, cfg.get("optimized_metric"))
    except EblvmError as error:
        log.error("%s", error)
        if in_sweep() and not isinstance(error, InterruptedRunError):
            if _in_grid(cfg):
                return None
            if isinstance(error, NonFiniteError) and (worst := value_of_divergence()) is not None:
                return worst
            raise CompactHydraException(str(error)) from None  # the sweeper handles it
        _say_how_to_resume()
        sys.exit(getattr(error, "exit_code", 1))
    except Interruption as stop:  # outside of training, which handles signals itself
        last = Path(str(cfg.get("run_dir"))) / "checkpoints" / "last.ckpt"
        more = f" Resume with the same command and ckpt={last}." if last.is_file() else ""
        log.error("%s%s", stop, more)
        _say_how_to_resume()
        sys.exit(stop.code)
    except KeyboardInterrupt:  # in a thread, which handles no signals
        log.error("Interrupted.")
        sys.exit(INTERRUPTED)
    except Exception:
        if not _in_grid(cfg):
            raise
        log.exception("The job has failed; the other jobs of the sweep still run.")
        return None
    finally:
        _close_wandb()


def _say_how_to_resume() -> None:
    """Say how a sweep is resumed, if this is a job of one."""
    if in_sweep():
        log.error("Resume the sweep with the same command and sweep.resume=true.")


def _in_grid(cfg: DictConfig) -> bool:
    """Whether this is a job of a plain grid sweep, which reports failed jobs at its end instead of stopping."""
    return in_sweep() and "sweep" in cfg and cfg.get("optimized_metric") is None


def _close_wandb() -> None:
    """Close an open W&B run: otherwise the next job of a multirun in this process would log into it."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.finish()
