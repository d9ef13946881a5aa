"""Search for the checkpoint to resume from, as ``ckpt=`` specifies it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from eblvm_lit.callbacks.checkpoint_io import checkpoint_file
from eblvm_lit.errors import DataError
from eblvm_lit.utils.io import refuse_url
from eblvm_lit.utils.run_files import read_yaml

__all__ = ["find_checkpoint"]

# Keys that may differ between a run and its continuation.
INCIDENTAL = (
    *("ckpt", "run_dir", "outputs_dir", "cache_dir", "show_config", "summary", "allow_packages", "optimized_metric"),
    *("sweep", "logger", "callbacks", "trainer", "n_validations", "test_checkpoint", "eval_weights", "compile"),
)


def _essence(plain: Any) -> dict[str, Any]:
    essence = {key: value for key, value in plain.items() if key not in INCIDENTAL}
    without = {key: value for key, value in plain["method"].items() if key != "compile"}  # does not change results
    return essence | {"method": without}


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
    essence = _essence(OmegaConf.to_container(cfg, resolve=True))
    candidates = [path for path in Path(cfg.outputs_dir).glob("**/checkpoints/last.ckpt") if path.is_file()]
    for path in sorted(candidates, key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            if _essence(read_yaml(path.parent.parent / "config.yaml")) == essence:  # interpolations stay text
                return path
        except (DataError, AttributeError, KeyError):
            continue  # not a run folder
    raise DataError(f"ckpt=last: no run with this method, data and seed was found under {cfg.outputs_dir}.")
