"""The report as one HTML page that contains its figures, without scripts and external files."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import pandas as pd
from jinja2 import Environment, select_autoescape
from PIL import Image

from eblvm_lit.errors import escaped
from eblvm_lit.reports.runs import SECONDS, SPEED, Group

__all__ = ["render"]

AT_VALIDATION = re.compile(r"_\d{6,}$")  # the suffix of figures drawn at validations, which the page omits
RECORDED = {"iterations": "iteration", "seconds": SECONDS, "iterations/s": SPEED, "MiB": "train/peak_memory_mib"}
MACHINE = ("trainer.accelerator", "trainer.devices", "trainer.precision")
MOST_PICTURES = 12  # maximum number of pictures per group of runs: more would make the page too large


def render(
    groups: Sequence[Group],
    left_out: Mapping[Path, str],
    tables: Mapping[str, pd.DataFrame],
    notes: Sequence[str],
    charts: Mapping[str, Mapping[Path, str]],
) -> str:
    """Render the report's page as HTML.

    Args:
        groups: The groups of finished runs.
        left_out: The folders of runs that are not in the tables, with the reason for each.
        tables: The tables of texts by title.
        notes: The notes below the tables.
        charts: The PNG files of the figures with their captions, by heading.

    Returns:
        The HTML text.
    """
    root = os.path.commonpath([run.folder.parent for group in groups for run in group.runs])
    galleries = {f"{group.data}, {group.label}": _figures(group) for group in groups}
    environment = Environment(autoescape=select_autoescape(default_for_string=True))  # escapes HTML in names
    environment.filters["embedded"] = _embedded
    return environment.from_string((files(__package__) / "page.html.j2").read_text()).render(
        root=escaped(root),
        n_runs=sum(len(group.runs) for group in groups),
        tables=tables,
        notes=notes,
        left_out={escaped(os.path.relpath(folder, root)): reason for folder, reason in left_out.items()},
        charts=charts,
        galleries={label: pictures for label, pictures in galleries.items() if pictures},
        costs=_costs(groups, root),
    )


def _figures(group: Group) -> dict[str, str]:
    """Return the figures of the first run of a group, scaled down, as data URIs in a dict by the figure's name."""
    paths = [path for path in sorted(group.runs[0].folder.glob("figures/*.png")) if not AT_VALIDATION.search(path.stem)]
    found: dict[str, str] = {}
    for path in paths[:MOST_PICTURES]:
        found[escaped(path.stem.replace("_", " "))] = _embedded(path, 1200)
    return found


def _embedded(path: Path, widest: int) -> str:
    """Encode a PNG file as a WebP data URI, scaled down to a width of at most ``widest`` pixels.

    WebP takes half the space of PNG.
    """
    with Image.open(path, formats=["PNG"]) as image:
        image = image.convert("RGB")
        image.thumbnail((widest, 4 * widest))
        image.save(content := io.BytesIO(), "WEBP", lossless=True, quality=50, method=2)
    return f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}"


def _costs(groups: Sequence[Group], root: str) -> pd.DataFrame:
    """Return a table of the training time, the memory and the machine of each run, if the run recorded them."""
    rows = [
        {
            "run": escaped(os.path.relpath(run.folder, root)),
            "data": group.data,
            "method": group.label,
            "seed": run.config.get("seed"),
        }
        | {name: run.metrics.get(metric) for name, metric in RECORDED.items()}
        | {key.partition(".")[2]: run.config.get(key) for key in MACHINE}
        for group in groups
        for run in group.runs
    ]
    table = pd.DataFrame(rows).dropna(axis="columns", how="all").astype(object).fillna("")
    return table.map(lambda value: f"{value:,.5g}" if isinstance(value, float) else value)
