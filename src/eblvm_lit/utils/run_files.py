"""Readers of the files in a run folder; each names a damaged file in its error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eblvm_lit.errors import DataError

__all__ = ["flatten", "read_curves", "read_metrics", "read_yaml"]


def flatten(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a nested configuration by dotted path, without null and empty ones; lists are leaves.

    Example:
        >>> flatten({"method": {"n_unroll": 5, "hypergradient": None}, "betas": [0.9, 0.95], "callbacks": {}})
        {'method.n_unroll': 5, 'betas': '[0.9,0.95]'}
    """
    flat: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            flat[f"{prefix}{key}"] = json.dumps(value, separators=(",", ":"))
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; None if the file does not exist."""
    try:
        return OmegaConf.to_container(OmegaConf.load(path))
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged or cannot be read ({_first_line(error)}).") from None


def read_metrics(path: Path) -> dict[str, float]:
    """The final metrics by name; a value that is not finite is an error."""
    try:
        metrics = json.loads(path.read_text())
        if not isinstance(metrics, dict):
            raise ValueError("it is not a mapping from names to numbers")
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}, not a finite number")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged or cannot be read ({_first_line(error)}).") from None
    return {name: float(value) for name, value in metrics.items()}


def read_curves(path: Path) -> pd.DataFrame:
    """One column per metric, indexed by iteration in order; NaN where a value is missing or not finite.

    The table is empty if there is no such file, as with another logger.
    """
    if not path.exists():
        return pd.DataFrame()
    try:
        rows = pd.read_csv(path, dtype=float, float_precision="round_trip")
        if not isinstance(rows.index, pd.RangeIndex):  # pandas takes surplus cells for an index
            raise ValueError("a row has more cells than the header")
        curves = rows.astype({"iteration": int}).groupby("iteration").last()
    except KeyError:
        raise DataError(f"{path} is damaged: it has no column 'iteration'.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged or cannot be read ({_first_line(error)}).") from None
    return curves.where(np.isfinite(curves))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
