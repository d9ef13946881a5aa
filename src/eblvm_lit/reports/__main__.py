"""The command line of reports: python -m eblvm_lit.reports DIR... [--out FOLDER] [--metric NAME ...]."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from eblvm_lit.errors import ConfigError, EblvmError, escaped
from eblvm_lit.reports.comparison import compare
from eblvm_lit.reports.runs import group_runs, read_runs
from eblvm_lit.reports.table import choose_metrics, footnotes, show, summarise, tables, to_markdown
from eblvm_lit.utils.io import write_text
from eblvm_lit.utils.quantities import direction

__all__ = ["main", "report"]

OUT = "outputs/report"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Example:
        >>> parser().parse_args(["outputs", "--metric", "test/fisher"]).metric
        ['test/fisher']
    """
    parser = argparse.ArgumentParser(
        "python -m eblvm_lit.reports", description="Compare runs with each other and with published values."
    )
    add = parser.add_argument
    add(
        "folders", metavar="DIR", nargs="*", help="folders that hold runs, at any depth (default: outputs and multirun)"
    )
    add("--out", metavar="FOLDER", default=OUT, help=f"output folder (default: {OUT})")
    add("--metric", metavar="NAME", nargs="+", default=[], help="metrics to show (default: all test metrics)")
    return parser


def report(folders: Sequence[str], out: str, metrics: Sequence[str] = ()) -> list[Path]:
    """Print a comparison of all runs below some folders, and write it as tables, figures and one HTML page.

    Args:
        folders: Folders that contain runs at any depth; if empty, ``outputs`` and ``multirun``.
        out: The output folder.
        metrics: The metrics to show; if empty, :func:`~eblvm_lit.reports.table.choose_metrics` chooses them.

    Returns:
        The paths of the written files.

    Raises:
        EblvmError: If something is wrong that the user can correct, such as a folder without runs.
    """
    folders = folders or [name for name in ("outputs", "multirun") if Path(name).is_dir()]
    if not folders:
        raise ConfigError("There is no folder outputs or multirun here: name the folders of the runs.")
    runs, left_out = read_runs(folders)
    groups = group_runs(runs)
    columns = choose_metrics(groups, metrics)
    summary = summarise(groups, columns)
    by_data = tables(groups, summary) | compare(groups, summary)
    notes = footnotes(groups, summary)
    lines = [escaped(f"{path}: {reason}.") for path, reason in left_out.items()]
    folder = Path(out)
    paths = [folder / name for name in ("table.md", "table.csv", "report.html")]
    write_text(paths[0], to_markdown(by_data, notes + lines))
    # Put an apostrophe before texts that begin like a formula, because spreadsheets would evaluate them.
    cells = summary.map(lambda cell: re.sub(r"^(?=[=+@-])", "'", cell) if isinstance(cell, str) else cell)
    write_text(paths[1], cells.drop(columns=["group", "text"]).to_csv(index=False))
    show(by_data, notes + lines)
    from eblvm_lit.reports.charts import draw  # imported after the table is printed, because matplotlib takes seconds
    from eblvm_lit.reports.page import render

    charts = draw(groups, [name for name in columns if name in metrics or direction(name)], folder)
    paths += [file for files in charts.values() for path in files for file in (path, path.with_suffix(".pdf"))]
    write_text(paths[2], render(groups, left_out, by_data, notes, charts))
    return paths


def main(argv: Sequence[str] | None = None) -> None:
    """Write the report; if the user can correct an error, print its message and exit with code 1."""
    given = parser().parse_args(argv)
    try:
        paths = report(given.folders, given.out, given.metric)
    except EblvmError as error:
        sys.exit(f"ERROR: {error}")
    n = sum(path.suffix == ".png" for path in paths)
    print(f"\nWritten to {escaped(given.out)}: report.html, table.md, table.csv and {n} figures as PNG and PDF.")


if __name__ == "__main__":
    main()
