"""Tables for the terminal, in the style that all commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from rich.console import ConsoleRenderable
from rich.markup import escape
from rich.table import Table

LONGEST_WORD = 24
"""Longest word of a text, in characters, that stays whole in a narrow terminal."""

NARROW, SHORTEST_WORD = 80, 8
"""Columns of a narrow terminal, where longer words than this are cut in two before a number is."""

GAP = 2
"""Columns between two columns of a table."""

LONGEST_NAME_SHOWN = 40
"""Longest name that a client chose, in characters, which a table shows."""

Columns = dict[str, str | Callable[[Mapping[str, Any]], object]]
"""Columns of a table by their heads: the key of a row's cell, or a function of the row."""


def short_name(name: str) -> str:
    """Return a name that a client chose, cut to a length that leaves room for other columns."""
    return name if len(name) <= LONGEST_NAME_SHOWN else name[: LONGEST_NAME_SHOWN - 1] + "\u2026"


def printable(text: str) -> str:
    """Return the text with control and other invisible characters as escapes, such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def size(count: float) -> str:
    """Return a number of bytes with two or three digits and a unit."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1000 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.{3 if count >= 100 else 2}g} {units[0]}"


def text_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table with a header row. Cells are one line of plain text, or made for rich.

    Characters that could change the terminal, and rich's markup, are escaped. In a narrow terminal
    texts wrap, between words if that suffices; numbers and their heads stay whole. A column whose
    name begins with ">" has numbers, right-aligned; one that begins with "?" is left out if all its
    cells are empty or 0. Both marks may stand together, as in "?>failed"; they are not shown.
    """
    cells = [list(row) for row in rows]
    table = Table(box=None, header_style="dim", pad_edge=False)
    kept = []
    left = NARROW + GAP  # there is none behind the last column
    for i, column in enumerate(columns):
        if not column.startswith("?") or any(row[i] not in ("", 0) for row in cells):
            kept.append(i)
            name = column.removeprefix("?").removeprefix(">")
            texts = [name, *(str(row[i]) for row in cells if not _is_drawn(row[i]))]
            if column.removeprefix("?").startswith(">"):
                longest = max(map(len, texts))
                table.add_column(name, justify="right", no_wrap=True, min_width=longest)
            else:
                words = " ".join(texts).split()
                longest = min(max(map(len, words), default=0), LONGEST_WORD)
                table.add_column(name, overflow="fold", min_width=longest)
            left -= longest + GAP
    while left < 0:
        widest = max(
            (column for column in table.columns if not column.no_wrap),
            key=lambda column: column.min_width or 0,
            default=None,
        )
        if widest is None or widest.min_width is None or widest.min_width <= SHORTEST_WORD:
            break
        widest.min_width -= 1
        left += 1
    for row in cells:
        table.add_row(
            *(
                cell if _is_drawn(cell) else escape(printable(str(cell)))
                for cell in (row[i] for i in kept)
            )
        )
    return table


def rows_table(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return a `text_table` of rows of a farm's answer; a cell is "" if the row has no such key."""
    cells = [
        [row.get(of, "") if isinstance(of, str) else of(row) for of in columns.values()]
        for row in rows
    ]
    return text_table(list(columns), cells)


def _is_drawn(cell: object) -> TypeGuard[ConsoleRenderable]:
    return hasattr(cell, "__rich_console__")
