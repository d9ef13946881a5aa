"""Printing of the table, split into parts that fit the width of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["blocks", "show"]

KEYS = 3  # data, method, n
PADDING = 3  # characters per column, including its border
LONGEST_KEY = 40


def show(table: Sequence[Sequence[str]], notes: Iterable[str]) -> None:
    """Print a table, in several parts if the terminal is narrow, followed by its notes.

    Args:
        table: A header and rows; each part repeats the first three columns.
        notes: The notes, one sentence each.
    """
    console = Console()
    longest = LONGEST_KEY
    if not console.is_terminal:  # a file has no width limit
        console.width, longest = 10**4, None
    for columns in blocks(table, console.width):
        part = Table()
        for i in columns:
            fold = {"overflow": "fold", "max_width": longest} if i < KEYS else {"justify": "right", "no_wrap": True}
            part.add_column(_header(escape(table[0][i])), **fold)
        for line in table[1:]:
            part.add_row(*(escape(line[i]) for i in columns))
        console.print(part)
    for note in notes:
        console.print(escape(note), highlight=False, soft_wrap=True)


def _header(name: str) -> str:
    return name.replace("/", "/\n", 1)


def blocks(table: Sequence[Sequence[str]], width: int) -> Iterator[list[int]]:
    """Split the columns into parts that fit; a published number stays beside its metric.

    Args:
        table: A header and rows.
        width: The available width in characters.

    Yields:
        The column indices of each part, which always include the first three.

    Example:
        >>> header = ["data", "method", "n", "test/fid", "published", "test/rmse"]
        >>> list(blocks([header], 80)), list(blocks([header], 45))
        ([[0, 1, 2, 3, 4, 5]], [[0, 1, 2, 3, 4], [0, 1, 2, 5]])
    """
    columns = zip(*table, strict=True)
    widths = [max(cell_len(part) for cell in column for part in _header(cell).split("\n")) for column in columns]
    keys = list(range(KEYS))
    room = width - 1 - sum(min(widths[i], LONGEST_KEY) + PADDING for i in keys)
    part, used = list(keys), 0
    for i in range(KEYS, len(widths)):
        if table[0][i] == "published":
            continue
        pair = [i, i + 1] if table[0][i + 1 : i + 2] == ["published"] else [i]
        needed = sum(widths[j] + PADDING for j in pair)
        if used and used + needed > room:
            yield part
            part, used = list(keys), 0
        part, used = part + pair, used + needed
    yield part
