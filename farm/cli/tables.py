"""Tables for the terminal, in the style that all commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table


def text_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table with a header row. Cells are plain text: rich's markup is escaped.

    A column whose name begins with ">" is right-aligned; the ">" is not shown.
    """
    table = Table(box=None, header_style="dim")
    for column in columns:
        is_right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if is_right else "left")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table
