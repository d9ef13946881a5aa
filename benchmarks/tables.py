"""The tables of benchmarks.run, printed in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.cells import CITATION

Row = dict[str, Any]

LEGEND = (
    f"ref.: {CITATION}. bare: the same iteration in a plain loop; around: what Lightning, data, "
    "log and bar add to it. 1st: the first call of the loop, compilation included. MiB: peak memory."
)


def speed_table(title: str, rows: list[Row]) -> Table:
    """Make a table of speeds that fits into a terminal of 80 columns."""
    table = Table("method", title=f"{title}: seconds per 100 iterations", box=box.SIMPLE, title_justify="left")
    for column in ("s/100", "ref.", "gain", "bare", "around", "1st [s]", "MiB"):
        table.add_column(column.replace("[", r"\["), justify="right", no_wrap=True)
    for row in rows:
        seconds = row["seconds_per_100"]
        bare = row["bare_seconds_per_100"]
        reference = row["reference"]
        table.add_row(
            row["method"],
            f"{seconds:.3f}",
            f"{reference:.3g}" if reference else "",
            f"{reference / seconds:.1f}x" if reference else "",
            f"{bare:.3f}",
            f"{100 * (seconds / bare - 1):+.0f} %",
            f"{row['first_call_seconds']:.1f}",
            f"{row['peak_mib']:.0f}",
        )
    return table


def memory_table(title: str, rows: list[Row]) -> Table:
    table = Table("method", title=f"{title}: peak memory, MiB", box=box.SIMPLE, title_justify="left")
    for column in ("in all", "above the start of training"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row["method"], f"{row['peak_mib']:.0f}", f"{row['peak_mib_above_start']:.0f}")
    return table


def tables(rows: list[Row]) -> Iterator[Table | str]:
    """Make one table for each series, data set and mode, without failed measurements."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if "error" not in row:
            groups.setdefault((row["series"], f"{row['data']}, {row['mode']}"), []).append(row)
    for (series, title), group in groups.items():
        yield speed_table(title, group) if series == "speed" else memory_table(title, group)
    if any(series == "speed" for series, _ in groups):
        yield LEGEND
