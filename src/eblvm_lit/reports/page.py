"""The report as one self-contained HTML page, without scripts and external files."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from eblvm_lit.reports.groups import Group
from eblvm_lit.reports.inline import Picture, inline
from eblvm_lit.reports.runs import Run
from eblvm_lit.reports.table import WORSE
from eblvm_lit.reports.time_and_hardware import time_and_hardware, total_time
from eblvm_lit.reports.unfinished import Unfinished
from eblvm_lit.utils.printing import printable

__all__ = ["render"]

WIDEST = {"chart": 2400, "thumbnail": 1200}
AT_VALIDATION = re.compile(r"_\d{6,}$")
MOST_GALLERIES, MOST_PICTURES = 24, 24  # more pictures make the page too large


def render(
    groups: Sequence[Group],
    unfinished: Sequence[Unfinished],
    tables: Mapping[str, Sequence[Sequence[str]]],
    notes: Sequence[str],
    charts: Mapping[str, Mapping[Path, str]],
) -> str:
    """Render the page as HTML.

    Args:
        groups: The finished runs.
        unfinished: The other runs.
        tables: A header and one row per group, by data set.
        notes: The notes below the tables.
        charts: The files of the figures with their captions, by heading.
    """
    runs = [run for group in groups for run in group.runs]
    root = Path(os.path.commonpath([entry.folder.parent for entry in (*runs, *unfinished)]))
    return _template().render(
        title=f"{_count(runs, 'run')} compared",
        sets=", ".join(dict.fromkeys(group.data for group in groups)),
        root=printable(root),
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        counts=_counts(runs, unfinished),
        total=total_time(runs, unfinished),
        jobs=[(printable(os.path.relpath(job.folder, root)), job) for job in unfinished],
        tables=[
            (data, table[0], [[(cell, WORSE in cell) for cell in line] for line in table[1:]])
            for data, table in tables.items()
        ],
        notes=notes,
        charts={heading: _charts(files) for heading, files in charts.items() if files},
        galleries=[gallery for group in groups if (gallery := _gallery(group))["pictures"]][:MOST_GALLERIES],
        n_groups=len(groups),
        time_and_hardware=time_and_hardware(groups, unfinished, root),
    )


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("eblvm_lit.reports", "."),
        autoescape=select_autoescape(["j2"]),  # run folders are untrusted input
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _count(things: Sequence[Any], name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def _counts(runs: Sequence[Run], unfinished: Sequence[Unfinished]) -> dict[str, int]:
    """The number of runs in each state."""
    states = ["finished"] * len(runs) + [job.state for job in unfinished]
    return {
        state: states.count(state)
        for state in ("finished", "failed", "interrupted", "unfinished", "unreadable")
        if state in states or state == "finished"
    }


def _charts(files: Mapping[Path, str]) -> list[Picture]:
    pictures = [inline(path, alt, WIDEST["chart"]) for path, alt in files.items() if path.suffix == ".png"]
    return [picture for picture in pictures if picture is not None]


def _gallery(group: Group) -> dict[str, Any]:
    """The figures of the first run of a group."""
    run = group.runs[0]
    label = f"{group.data}, {group.label}"
    # figures of validations, density_000600.png, are in the run's folder
    paths = [path for path in sorted((run.folder / "figures").glob("*.png")) if not AT_VALIDATION.search(path.stem)]
    named = [(printable(path.stem.replace("_", " ")), path) for path in paths[:MOST_PICTURES]]
    drawn = [(name, inline(path, f"{name} of {label}", WIDEST["thumbnail"])) for name, path in named]
    return {
        "label": label,
        "seed": printable(run.config.get("seed")),
        "n_more": max(len(paths) - MOST_PICTURES, 0),
        "pictures": [(name, picture) for name, picture in drawn if picture is not None],
    }
