"""Tables show their cells unchanged."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from farm.cli.tables import LONGEST_NAME_SHOWN, short_name, size, text_table

NUMBERS = ("done", "7", "1234")
STATES = ("state", "busy", "None")


def test_no_cell_changes_the_terminal() -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    cells = ["\x1b[31mred", "\u202eabc\n", "\N{GREEK SMALL LETTER ETA} \\n"]
    console.print(text_table(["a", "b", "c"], [cells]))
    shown = console.export_text().splitlines()[1].split(maxsplit=2)
    assert [cell.strip() for cell in shown] == [r"\x1b[31mred", r"\u202eabc\n", "\u03b7 \\n"]


def test_a_long_name_is_cut() -> None:
    assert short_name("x" * LONGEST_NAME_SHOWN) == "x" * LONGEST_NAME_SHOWN
    assert short_name("x" * 1000) == "x" * (LONGEST_NAME_SHOWN - 1) + "\N{HORIZONTAL ELLIPSIS}"


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


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1 KiB"),
        (2.5 * 2**30, "2.5 GiB"),
        (3 * 2**40, "3 TiB"),
    ],
)
def test_sizes_have_units_that_suit_them(count: float, text: str) -> None:
    assert size(count) == text
