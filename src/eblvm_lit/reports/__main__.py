"""Compare runs: python -m eblvm_lit.reports DIR... [--out FOLDER] [--html FILE] [--metric NAME ...]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.reports.groups import Group, group_runs
from eblvm_lit.reports.published import direction
from eblvm_lit.reports.runs import read_runs
from eblvm_lit.reports.table import choose_metrics, footnotes, lines, summarise, to_csv, to_markdown
from eblvm_lit.reports.terminal import show
from eblvm_lit.reports.unfinished import sentences
from eblvm_lit.runtime.console import prepare_folder
from eblvm_lit.utils.io import write_text

__all__ = ["main", "report"]

OUT = "outputs/report"


def parser() -> argparse.ArgumentParser:
    """The command line.

    Example:
        >>> parser().parse_args(["outputs", "--metric", "test/fisher"]).metric
        ['test/fisher']
    """
    parser = argparse.ArgumentParser(
        "python -m eblvm_lit.reports", description="Compare runs, beside published values."
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", help="a run's folder, or one that holds some at any depth")
    parser.add_argument("--out", metavar="FOLDER", default=OUT, help=f"where the report is written (default: {OUT})")
    parser.add_argument("--html", metavar="FILE", help="also write all of it as one page that needs no other file")
    parser.add_argument(
        "--metric", metavar="NAME", nargs="+", default=[], help="columns of the table (default: test/...)"
    )
    return parser


def report(folders: Sequence[str], out: str, metrics: Sequence[str] = (), html: str | None = None) -> list[Path]:
    """Print the comparison of all runs below some folders, and write it as tables and figures.

    Args:
        folders: Run folders, or folders that hold some.
        out: Where to.
        metrics: Columns of the table; if none, see :func:`~eblvm_lit.reports.table.choose_metrics`.
        html: Where the page goes; None: nowhere.

    Returns:
        The files.

    Raises:
        EblvmError: For everything the user can mend.
    """
    runs, unfinished = read_runs(folders)
    groups = group_runs(runs)
    columns = choose_metrics(groups, metrics)
    summary = summarise(groups, columns)
    table, notes = lines(groups, summary), footnotes(groups, summary)
    told = notes + sentences(unfinished)
    folder = prepare_folder(out)
    try:
        paths = [folder / "table.md", folder / "table.csv"]
        paths[0].write_text(to_markdown(table, told), encoding="utf-8")
        paths[1].write_text(to_csv(summary), encoding="utf-8")
        show(table, told)
        charts = _draw(groups, [name for name in columns if name in metrics or direction(name)], folder)
        paths += [path for files in charts.values() for path in files]
        if html is not None:
            from eblvm_lit.reports.page import render

            prepare_folder(Path(html).parent)
            write_text(Path(html), render(groups, unfinished, table, notes, charts))
            paths.append(Path(html))
    except OSError as error:
        raise ConfigError(f"The report cannot be written to {folder} ({error.strerror}).") from None
    return paths


def _draw(groups: Sequence[Group], metrics: Sequence[str], folder: Path) -> dict[str, dict[Path, str]]:
    """All figures by heading, with what they show."""
    from eblvm_lit.reports.costs import draw_costs  # takes seconds, for which the table need not wait
    from eblvm_lit.reports.heat_maps import draw_heat_maps
    from eblvm_lit.reports.method_curves import draw_reports

    curves = {path: f"{_words(path)} by iteration" for path in draw_reports(groups, folder)}
    costs = {path: f"{_words(path)} against time and memory" for path in draw_costs(groups, folder)}
    return {"Heat maps": draw_heat_maps(groups, metrics, folder), "Curves": curves, "Cost": costs}


def _words(path: Path) -> str:
    return path.stem.removesuffix("_cost").replace("_", " ")


def main(argv: Sequence[str] | None = None) -> None:
    """Report; one sentence and exit code 1 for the user's errors."""
    given = parser().parse_args(argv)
    sys.stdout.reconfigure(errors="replace")  # terminals that lack a letter such as ±
    try:
        paths = report(given.folders, given.out, given.metric, given.html)
    except EblvmError as error:
        sys.exit(f"ERROR: {error}")
    print("\n".join(["", "Written:", *(f"  {path}" for path in paths)]))


if __name__ == "__main__":
    main()
