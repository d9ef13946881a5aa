"""Search for the folder of an earlier start of the same sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.run_files import read_yaml

__all__ = ["earlier_sweep", "settings"]


def settings(config: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The identity of a sweep: its command line without ``sweep.*``, and the parameters that an experiment sweeps.

    Args:
        config: The configuration in plain containers, including the node ``hydra``.

    Example:
        >>> hydra = {"overrides": {"task": ["seed=0,1", "sweep.resume=true"]}, "sweeper": {"params": None}}
        >>> settings({"hydra": hydra})
        (['seed=0,1'], {})
    """
    hydra = config["hydra"]
    asked = [text for text in hydra["overrides"]["task"] if not text.lstrip("+").startswith("sweep.")]
    return asked, dict(hydra["sweeper"].get("params") or {})


def earlier_sweep(config: DictConfig) -> Path:
    """The folder to resume in: that of ``hydra.sweep.dir=...``, or of the newest sweep with the same settings.

    Args:
        config: The configuration of the sweep, including the node ``hydra``.

    Raises:
        ConfigError: If there is none.
    """
    own = Path(config.hydra.sweep.dir)
    if any(text.startswith("hydra.sweep.dir=") for text in config.hydra.overrides.hydra):
        return own
    wanted = settings(cast(dict[str, Any], OmegaConf.to_container(config)))
    root = own.parent.parent  # the folders of sweeps are named DATE/TIME
    records = sorted(root.glob("*/*/multirun.yaml"), key=lambda path: path.parent.parts[-2:], reverse=True)
    for record in records:
        try:
            if settings(read_yaml(record)) == wanted:  # interpolations stay text
                return record.parent
        except (DataError, AttributeError, LookupError, TypeError, ValueError):
            continue  # not the record of a sweep
    raise ConfigError(
        f"sweep.resume=true: no sweep with these settings, in this order, was found in {root}: leave sweep.resume out "
        "to start one, or name its folder with hydra.sweep.dir=FOLDER."
    )
