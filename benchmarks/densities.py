"""A benchmark of densities of tables: energies beside a spline flow, a kernel density and mixtures of Gaussians.

Run it with python -m benchmarks.densities --seeds 0,1,2. Each row of its table is one method on one data set, and its
value is the mean test log-likelihood in nats, in the units of the file. A seed determines the splits, the noise that is
added to columns of whole numbers, and the training. Rows are appended to a file of JSON lines, and a row in the file is
not measured again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from scipy.io import loadmat
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from benchmarks.density_models import METHODS, Table

Row = dict[str, Any]
OUTPUT = Path("outputs/densities")
FACES = "frey_rawface.mat"


def faces() -> np.ndarray:
    """Return the Frey faces, shape (1965, 560), from the folder of data sets."""
    return loadmat(Path(os.environ.get("EBLVM_DATA", "data")) / FACES)["ff"].T


SETS: dict[str, Callable[[], np.ndarray]] = {
    "wine": lambda: load_wine().data,
    "breast_cancer": lambda: load_breast_cancer().data,
    "digits": lambda: load_digits().data,
    "frey_face": faces,
}


def measured(name: str, method: str, seed: int) -> Row:
    """Fit one method to one data set, and return its log-likelihoods and the seconds of processor time."""
    path = OUTPUT / f"{name}.npy"
    if not path.is_file():
        np.save(path, SETS[name]())
    table = Table.of_file(path, seed)
    begin = time.process_time()
    row: Row = {"data": name, "method": method, "seed": seed}
    row |= METHODS[method](table, OUTPUT / f"{name}_{method}_{seed}", seed)
    return row | {"seconds": time.process_time() - begin}


def rows_of(file: Path) -> list[Row]:
    """Read the rows of earlier measurements from a file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def cell(values: list[float], digits: str = ".2f") -> str:
    """Return the mean of values and, if there are several, its standard error, as text."""
    some = f" ± {stdev(values) / len(values) ** 0.5:{digits}}" if len(values) > 1 else ""
    return f"{mean(values):{digits}}{some}".replace("-", "−") if values else ""


def table_of(rows: list[Row]) -> str:
    """Return a Markdown table of the means over seeds, also of the difference from the mixture of the same split."""
    keys = ("log-likelihood", "minus Gaussian mixture", "own log Z", "error of the own log Z", "s")
    lines = [f"| data | method | {' | '.join(keys)} | n |", "|---|---|" + "---:|" * (len(keys) + 1)]
    base = {(row["data"], row["seed"]): row["log_likelihood"] for row in rows if row["method"] == "gaussian_mixture"}
    for name in dict.fromkeys(row["data"] for row in rows):
        for method in METHODS:
            found = [row for row in rows if (row["data"], row["method"]) == (name, method)]
            same = [row for row in found if (name, row["seed"]) in base]
            values = [
                cell([row["log_likelihood"] for row in found]),
                cell([row["log_likelihood"] - base[name, row["seed"]] for row in same]),
                *(cell([row[k] for row in found if k in row]) for k in ("own_log_likelihood", "own_log_z_error")),
                cell([row["seconds"] for row in found], ".0f").split(" ")[0],
            ]
            if found:
                lines.append(f"| {name} | {method} | {' | '.join(values)} | {len(found)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the rows that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0", help="seeds, separated by commas")
    parser.add_argument("--data", default=",".join(SETS), help="data sets, separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="methods, separated by commas")
    parser.add_argument("--list", action="store_true", help="only name the rows")
    given = parser.parse_args()
    names = given.data.split(",")
    if "frey_face" in names and not (Path(os.environ.get("EBLVM_DATA", "data")) / FACES).is_file():
        print(f"frey_face is left out: there is no {FACES} in the folder of the variable EBLVM_DATA.")
        names.remove("frey_face")
    methods = given.methods.split(",")
    wanted = [(name, method, int(seed)) for name in names for seed in given.seeds.split(",") for method in methods]
    if given.list:
        print(*wanted, sep="\n")
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # mixtures with few rows warn that they have not converged
    logging.getLogger("eblvm_lit").setLevel(logging.ERROR)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    file = OUTPUT / "rows.jsonl"
    known = {(row["data"], row["method"], row["seed"]) for row in rows_of(file)}
    for name, method, seed in wanted:
        if (name, method, seed) not in known:
            row = measured(name, method, seed)
            with file.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
    print(table_of(rows_of(file)))


if __name__ == "__main__":
    main()
