"""Functions that read the files in the folder of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eblvm_lit.utils.untrusted import read_yaml

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COMMAND", "flatten", "read_command", "read_curves"]

COMMAND = "command.yaml"


def flatten(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested configuration to a dict by dotted path; lists become texts, null and empty values are dropped.

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


def read_command(folder: Path) -> dict[str, Any]:
    """Read the command line of a run: the list ``overrides``, and the dict ``choices`` with the option of each group.

    A run that was started from Python has no choices. For a folder without this file the result is empty.

    Example:
        >>> read_command(Path("nowhere"))
        {}
    """
    file = folder / COMMAND
    return read_yaml(file) if file.is_file() else {}


def read_curves(path: Path) -> pd.DataFrame:
    """Read learning curves, with one column per metric, indexed by iteration; empty if there is no file.

    Missing and infinite values are NaN.
    """
    # imported here, because the import takes a second and errors in the command should appear earlier
    import pandas as pd

    if not path.is_file():
        return pd.DataFrame()
    curves = pd.read_csv(path, float_precision="round_trip").groupby("iteration").last()
    return curves.replace([math.inf, -math.inf], math.nan)
