"""Readers of the files in a run folder; each names a damaged file in its error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from eblvm_lit.errors import DataError
from eblvm_lit.utils.plain_files import damaged, open_regular, parse_yaml, read_json, read_text
from eblvm_lit.utils.printing import printable

__all__ = ["flatten", "read_curves", "read_metrics", "read_overrides", "read_yaml"]

# Of one run: names of metrics and their length, and the size of its curves; these are a million rows of ten columns.
MOST_NAMES, LONGEST_NAME = 1000, 200
MOST_CELLS, MOST_BYTES = 10**7, 2 * 10**8
LAST_ITERATION = 2**53  # beyond it, the floats of pandas skip integers


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
    """The content of a YAML file, interpolations as text; None if the file does not exist.

    Raises:
        DataError: If it is damaged, or is no mapping and no list.
    """
    try:
        content = parse_yaml(read_text(path))
        if not isinstance(content, dict | list | None):
            raise ValueError("it is neither a mapping nor a list")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise damaged(path, error) from None
    return {} if content is None else content


def read_overrides(folder: Path) -> tuple[str, ...]:
    """The overrides of a run's command line; none if Hydra has not written them.

    Raises:
        DataError: If the file is damaged.
    """
    path = folder / ".hydra" / "overrides.yaml"
    overrides = read_yaml(path) or []
    if not isinstance(overrides, list):
        raise DataError(f"{path} is damaged (it is not a list).")
    return tuple(map(printable, overrides))


def read_metrics(path: Path) -> dict[str, float]:
    """The final metrics by name; a value that is not finite is an error.

    Raises:
        DataError: If the file is missing or damaged.
    """
    try:
        metrics = read_json(path)
        if not isinstance(metrics, dict):
            raise ValueError("it is not a mapping from names to numbers")
        _check_names(list(metrics))
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}, not a finite number")
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None
    return {name: float(value) for name, value in metrics.items()}


def _check_names(names: list[str]) -> None:
    """Refuse names that neither a table nor a figure can show."""
    if len(names) > MOST_NAMES:
        raise ValueError(f"it has {len(names):,} names, and {MOST_NAMES:,} are read at most")
    for name in names:
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise ValueError(f"the name {name[:40]!a} is too long or cannot be printed")


def read_curves(path: Path) -> pd.DataFrame:
    """One column per metric, indexed by iteration in order; NaN where a value is missing or not finite.

    The table is empty if there is no such file, as with another logger.

    Raises:
        DataError: If the file is damaged, or too large.
    """
    try:
        with open_regular(path, MOST_BYTES) as file:
            _check_cells(file)
            rows = pd.read_csv(file, dtype=float, float_precision="round_trip")
        _check_names([str(name) for name in rows])
        if not isinstance(rows.index, pd.RangeIndex):  # pandas takes surplus cells for an index
            raise ValueError("a row has more cells than the header")
        at = rows["iteration"].to_numpy()
        if not np.all((at >= 0) & (at <= LAST_ITERATION) & (at == np.floor(at))):
            raise ValueError("an iteration is not a whole number from 0 on")
        curves = rows.astype({"iteration": int}).groupby("iteration").last()
    except FileNotFoundError:
        return pd.DataFrame()
    except KeyError:
        raise DataError(f"{path} is damaged: it has no column 'iteration'.") from None
    except (OSError, ValueError, OverflowError) as error:
        raise damaged(path, error) from None
    return curves.where(np.isfinite(curves))


def _check_cells(file: BinaryIO) -> None:
    """Refuse a table that would not fit the memory, before it is built; the file is at its beginning again."""
    header = file.readline(MOST_NAMES * (LONGEST_NAME + 3))
    n_names = header.count(b",") + 1
    if n_names > MOST_NAMES or header.count(b'"') % 2:  # an open quotation hides further names in the next lines
        raise ValueError(f"its header has more than {MOST_NAMES:,} names, or is not one line")
    ends = [(chunk.count(b"\n"), chunk.count(b"\r")) for chunk in iter(lambda: file.read(2**20), b"")]
    n_rows = max(map(sum, zip(*ends, strict=True)), default=0)
    if n_rows * n_names > MOST_CELLS:
        raise ValueError(f"it has {n_rows:,} rows of {n_names:,} cells, and {MOST_CELLS:,} cells are read at most")
    file.seek(0)
