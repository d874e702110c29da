"""Tables for the terminal, in the style that all commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table

LONGEST_NAME_SHOWN = 40
"""Longest name that a client chose, in characters, which a table shows."""


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

    Characters that could change the terminal, and rich's markup, are escaped.
    A column whose name begins with ">" is right-aligned; the ">" is not shown.
    """
    table = Table(box=None, header_style="dim")
    for column in columns:
        is_right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if is_right else "left")
    for row in rows:
        table.add_row(
            *(c if hasattr(c, "__rich_console__") else escape(printable(str(c))) for c in row)
        )
    return table


def whole_names(table: Table, *columns: str) -> None:
    """Let a table that is too wide shorten other columns than these: people type such names."""
    table.pad_edge = False
    for column in table.columns:
        column.no_wrap = column.header in columns
