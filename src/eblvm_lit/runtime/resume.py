"""Search for the checkpoint to resume from, as ``ckpt=`` specifies it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from eblvm_lit.callbacks.checkpoint_io import checkpoint_file
from eblvm_lit.errors import DataError
from eblvm_lit.utils.io import refuse_url

__all__ = ["find_checkpoint"]

# Keys that may differ between a run and its continuation.
INCIDENTAL = (
    *("ckpt", "run_dir", "outputs_dir", "cache_dir", "show_config", "summary", "allow_packages", "optimized_metric"),
    *("sweep", "logger", "callbacks", "trainer", "n_validations", "test_checkpoint", "eval_weights", "compile"),
)


def _essence(config: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    plain.get("method", {}).pop("compile", None)  # does not change results
    return {key: value for key, value in plain.items() if key not in INCIDENTAL}


def find_checkpoint(cfg: DictConfig) -> Path | None:
    """The checkpoint to resume from.

    ``ckpt=null`` starts a new run, and a path names a checkpoint or the folder of a run. ``ckpt=last`` means the newest
    ``last.ckpt`` of a run with the same method, data and seed, in the folder of this run or below ``outputs_dir``.

    Args:
        cfg: The configuration of the run.

    Raises:
        DataError: If there is no such file.
    """
    if cfg.ckpt is None:
        return None
    refuse_url("ckpt", cfg.ckpt)
    if cfg.ckpt != "last":
        if not Path(cfg.ckpt).exists():
            raise DataError(f"ckpt={cfg.ckpt}: there is no such file; ckpt=last finds the newest run of this kind.")
        return checkpoint_file(cfg.ckpt)
    own = Path(cfg.run_dir) / "checkpoints" / "last.ckpt"
    if own.is_file():
        return own
    essence = _essence(cfg)
    candidates = Path(cfg.outputs_dir).glob("**/checkpoints/last.ckpt")
    for path in sorted(candidates, key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            if _essence(OmegaConf.load(path.parent.parent / "config.yaml")) == essence:
                return path
        except (OSError, YAMLError, OmegaConfBaseException, AttributeError):
            continue  # not a run folder
    raise DataError(f"ckpt=last: no run with this method, data and seed was found under {cfg.outputs_dir}.")
