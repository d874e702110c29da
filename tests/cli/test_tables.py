"""Tables show their cells unchanged."""

from __future__ import annotations

import io

from rich.console import Console

from farm.cli.tables import text_table

NUMBERS = ("done", "7", "1234")
STATES = ("state", "busy", "None")


def test_cells_are_text_below_their_columns() -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    rows = [["[b]beam[/b]", 7, "busy"], ["x", 1234, None]]
    console.print(text_table(["model", ">done", "state"], rows))
    lines = console.export_text().splitlines()
    assert [line.split() for line in lines] == [
        ["model", "done", "state"],
        ["[b]beam[/b]", "7", "busy"],
        ["x", "1234", "None"],
    ]
    ends = [line.index(word) + len(word) for line, word in zip(lines, NUMBERS, strict=True)]
    assert len(set(ends)) == 1, "aligned to the right"
    starts = [line.index(word) for line, word in zip(lines, STATES, strict=True)]
    assert len(set(starts)) == 1
