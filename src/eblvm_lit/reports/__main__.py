"""The command line of reports: python -m eblvm_lit.reports DIR... [--out FOLDER] [--html FILE] [--metric NAME ...]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eblvm_lit.cli.console import prepare_folder
from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.reports.groups import Group, group_runs
from eblvm_lit.reports.outlier_table import outlier_tables
from eblvm_lit.reports.published import direction
from eblvm_lit.reports.runs import read_runs
from eblvm_lit.reports.table import choose_metrics, footnotes, summarise, tables, to_csv, to_markdown
from eblvm_lit.reports.terminal import show
from eblvm_lit.reports.unfinished import unfinished_notes
from eblvm_lit.utils.io import write_text
from eblvm_lit.utils.printing import printable

__all__ = ["main", "report"]

# Where runs and sweeps are written by default.
FOLDERS = ("outputs", "multirun")
OUT = "outputs/report"
MOST_COLUMNS = 100  # more metrics make a table that nobody reads


def parser() -> argparse.ArgumentParser:
    """The parser of the command line.

    Example:
        >>> parser().parse_args(["outputs", "--metric", "test/fisher"]).metric
        ['test/fisher']
    """
    parser = argparse.ArgumentParser(
        "python -m eblvm_lit.reports", description="Compare runs with each other and with published values."
    )
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="*",
        help="run folder, or folder that contains run folders (default: outputs and multirun)",
    )
    parser.add_argument("--out", metavar="FOLDER", default=OUT, help=f"output folder (default: {OUT})")
    parser.add_argument("--html", metavar="FILE", help="also write the report as one self-contained HTML page")
    parser.add_argument(
        "--metric", metavar="NAME", nargs="+", default=[], help="metrics to show (default: all test metrics)"
    )
    return parser


def report(folders: Sequence[str], out: str, metrics: Sequence[str] = (), html: str | None = None) -> list[Path]:
    """Print a comparison of all runs below some folders, and write it as tables and figures.

    Args:
        folders: Run folders, or folders that contain run folders at any depth; if none, those of :data:`FOLDERS`.
        out: The output folder.
        metrics: The metrics to show; if none, see :func:`~eblvm_lit.reports.table.choose_metrics`.
        html: The file for the HTML page; None writes no page.

    Returns:
        The written files.

    Raises:
        EblvmError: For everything the user can correct.
    """
    runs, unfinished = read_runs(folders or _existing())
    groups = group_runs(runs)
    columns, left_out = columns_of(groups, metrics)
    summary = summarise(groups, columns)
    by_data, notes = tables(groups, summary), footnotes(groups, summary) + left_out
    missing = unfinished_notes(unfinished)
    by_data |= outlier_tables(groups, summary)
    folder = prepare_folder(out)
    try:
        paths = [folder / "table.md", folder / "table.csv"]
        write_text(paths[0], to_markdown(by_data, notes, missing))
        write_text(paths[1], to_csv(summary))
        show(by_data, notes, missing)
        charts = _draw(groups, [name for name in columns if name in metrics or direction(name)], folder)
        paths += [path for files in charts.values() for path in files]
        if html is not None:
            from eblvm_lit.reports.page import render

            prepare_folder(Path(html).parent)
            write_text(Path(html), render(groups, unfinished, by_data, notes, charts))
            paths.append(Path(html))
    except OSError as error:
        raise ConfigError(f"The report cannot be written to {folder} ({error.strerror}).") from None
    return paths


def columns_of(groups: Sequence[Group], metrics: Sequence[str]) -> tuple[list[str], list[str]]:
    """The metrics of the tables, and a note on those that are left out because nobody could read them."""
    chosen = choose_metrics(groups, metrics)
    if metrics or len(chosen) <= MOST_COLUMNS:
        return chosen, []
    return chosen[:MOST_COLUMNS], [
        f"The first {MOST_COLUMNS} of {len(chosen):,} metrics: --metric NAME ... shows others."
    ]


def _existing() -> list[str]:
    """Those of :data:`FOLDERS` that are there.

    Raises:
        ConfigError: If there is none.
    """
    found = [folder for folder in FOLDERS if Path(folder).is_dir()]
    if not found:
        raise ConfigError(f"There is no folder {' or '.join(FOLDERS)} here: name the folders of the runs.")
    return found


def _draw(groups: Sequence[Group], metrics: Sequence[str], folder: Path) -> dict[str, dict[Path, str]]:
    """The files of all figures with their captions, by heading."""
    from eblvm_lit.reports.costs import draw_costs  # matplotlib takes seconds to import: the table is printed before
    from eblvm_lit.reports.heat_maps import draw_heat_maps
    from eblvm_lit.reports.method_curves import draw_reports

    curves = {path: f"{_words(path)} by iteration" for path in draw_reports(groups, folder)}
    costs = {path: f"{_words(path)} against time and memory" for path in draw_costs(groups, folder)}
    return {"Heat maps": draw_heat_maps(groups, metrics, folder), "Curves": curves, "Cost": costs}


def _words(path: Path) -> str:
    return path.stem.removesuffix("_cost").replace("_", " ")


def _contents(paths: Sequence[Path]) -> str:
    """The files of a report in a few words.

    Example:
        >>> _contents([Path("table.md"), Path("table.csv"), Path("a.png"), Path("a.pdf")])
        'table.md, table.csv and 1 figure as PNG and PDF'
    """
    n = sum(path.suffix == ".png" for path in paths)
    return f"table.md, table.csv and {n} figure{'s' * (n != 1)} as PNG and PDF" if n else "table.md and table.csv"


def main(argv: Sequence[str] | None = None) -> None:
    """Write the report; a user error ends with its message and exit code 1."""
    given = parser().parse_args(argv)
    sys.stdout.reconfigure(errors="replace")  # for terminals without characters such as ±
    try:
        paths = report(given.folders, given.out, given.metric, given.html)
    except EblvmError as error:
        sys.exit(f"ERROR: {printable(error, 2000)}")
    print(f"\nWritten to {given.out}: {_contents(paths)}.")
    if given.html is not None:
        print(f"The report as one page: {given.html}")


if __name__ == "__main__":
    main()
