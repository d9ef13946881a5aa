"""Printing of a report: one table per data set, with the columns for which the terminal is wide enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eblvm_lit.utils.printing import PLAIN

__all__ = ["fitting", "show"]

KEYS = 2  # method, n
PADDING = 3  # characters per column, including the gap
LONGEST_KEY = 40  # longer labels are folded before a metric is left out
MOST_LISTED = 10  # runs without results that are named


def show(tables: Mapping[str, Sequence[Sequence[str]]], notes: Iterable[str], folded: Sequence[str] = ()) -> None:
    """Print tables, their notes, and the beginning of a list.

    Args:
        tables: A header and rows by data set.
        notes: The notes, one sentence each.
        folded: The summary of the list, and its items, of which each has one line.
    """
    console = Console(**PLAIN)
    most = MOST_LISTED
    if not console.is_terminal:  # a file has no width limit
        console.width, most = 10**4, None
    left_out: dict[str, None] = {}
    for data, table in tables.items():
        columns = fitting(table, console.width)
        left_out |= dict.fromkeys(table[0][i] for i in range(len(table[0])) if i not in columns)
        shown = Table(title=Text(data, style="bold"), title_justify="left", box=SIMPLE_HEAD, show_edge=False)
        for i in columns:
            fold = {"overflow": "fold"} if i < 1 else {"justify": "right", "no_wrap": True}  # labels get what is left
            shown.add_column(Text(_header(table[0][i])), **fold)
        for line in table[1:]:
            shown.add_row(*(Text(line[i]) for i in columns))
        console.print(shown)
        console.print()
    left_out.pop("published", None)
    if left_out:
        names = ", ".join(left_out)
        notes = [*notes, f"For more columns, widen the terminal, or name them by --metric; table.md has all: {names}."]
    for note in notes:
        console.print(note, soft_wrap=True)
    for item in folded[: None if most is None else most + 1]:
        console.print(item, no_wrap=True, overflow="ellipsis")
    if most is not None and len(folded) > most + 1:
        console.print(f"... and {len(folded) - most - 1} more in table.md.")


def _header(name: str) -> str:
    return name.replace("/", "/\n", 1)


def fitting(table: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that fit, in order; a published number stays beside its metric.

    Args:
        table: A header and rows; the first metrics matter most.
        width: The available width in characters.

    Returns:
        Their indices: the first two, those of at least one metric, and of the next ones while there is room.

    Example:
        >>> header = ["method", "n", "test/fid", "published", "test/rmse"]
        >>> fitting([header], 80), fitting([header], 30)
        ([0, 1, 2, 3, 4], [0, 1, 2, 3])
    """
    columns = zip(*table, strict=True)
    widths = [max(cell_len(part) for cell in column for part in _header(cell).split("\n")) for column in columns]
    chosen = list(range(KEYS))
    room = width - sum(min(widths[i], LONGEST_KEY) + PADDING for i in chosen)
    for i in range(KEYS, len(widths)):
        if table[0][i] == "published":
            continue
        pair = [i, i + 1] if table[0][i + 1 : i + 2] == ["published"] else [i]
        room -= sum(widths[j] + PADDING for j in pair)
        if room < 0 and len(chosen) > KEYS:
            break
        chosen += pair
    return chosen
