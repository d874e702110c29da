"""Tables show their cells unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from farm.cli.status import Bar
from farm.cli.tables import LONGEST_NAME_SHOWN, short_name, size, text_table
from tests.cli.conftest import rendered

NUMBERS = ("done", "7", "1234")
STATES = ("state", "busy", "None")


def lines_of(columns: list[str], *rows: list[Any], width: int = 60) -> list[str]:
    return rendered(text_table(columns, list(rows)), width=width).splitlines()


def test_no_cell_changes_the_terminal() -> None:
    cells = ["\x1b[31mred", "\u202eabc\n", "\N{GREEK SMALL LETTER ETA} \\n"]
    shown = lines_of(["a", "b", "c"], cells)[1].split(maxsplit=2)
    assert [cell.strip() for cell in shown] == [r"\x1b[31mred", r"\u202eabc\n", "\u03b7 \\n"]


def test_a_long_name_is_cut() -> None:
    assert short_name("x" * LONGEST_NAME_SHOWN) == "x" * LONGEST_NAME_SHOWN
    assert short_name("x" * 1000) == "x" * (LONGEST_NAME_SHOWN - 1) + "\N{HORIZONTAL ELLIPSIS}"


def test_cells_are_text_below_their_columns() -> None:
    rows = [["[b]beam[/b]", 7, "busy"], ["x", 1234, None]]
    lines = lines_of(["model", ">done", "state"], *rows)
    assert [line.split() for line in lines] == [
        ["model", "done", "state"],
        ["[b]beam[/b]", "7", "busy"],
        ["x", "1234", "None"],
    ]
    ends = [line.index(word) + len(word) for line, word in zip(lines, NUMBERS, strict=True)]
    assert len(set(ends)) == 1, "aligned to the right"
    starts = [line.index(word) for line, word in zip(lines, STATES, strict=True)]
    assert len(set(starts)) == 1


@pytest.mark.parametrize("name", ["anna@login1, mcmc.py 812", "posterior-of-beam", "x" * 40])
def test_a_narrow_terminal_shows_all_heads_and_numbers(name: str) -> None:
    heads = ["callers", "queued", "running", "done", "failed", "calls/s", "share", "last"]
    row = [name, 64, 1200, 64, 123456, 7, "12.5", "100.0%", "306 ms"]
    lines = lines_of(["client", *(f">{head}" for head in heads)], row, width=80)
    assert lines[0].split() == ["client", *heads]
    assert " ".join(lines[1].split()).endswith("64 1200 64 123456 7 12.5 100.0% 306 ms")
    shown = "".join(lines[1].split()[:-9]) + "".join("".join(line.split()) for line in lines[2:])
    assert shown == name.replace(" ", "")
    assert max(map(len, lines)) <= 80


def test_what_is_drawn_leaves_room_for_texts() -> None:
    row = ["sweep", "a survey of beams", Bar(0.5), "in about 12 minutes"]
    shown = "\n".join(lines_of(["progress of", "name", "", "ends"], row))
    assert shown.splitlines()[0].split() == ["progress", "of", "name", "ends"]
    assert "50%" in shown
    assert {"survey", "about", "minutes"} <= set(shown.split())


def test_columns_that_say_nothing_may_be_left_out() -> None:
    columns = ["name", "?>queued", "?>failed", "?device", "?unit", ">done"]
    lines = lines_of(columns, ["a", 0, 1, "", "N", 0], ["b", 0, 0, "", "", 0])
    assert lines[0].split() == ["name", "failed", "unit", "done"]


def test_sizes_have_units_that_suit_them() -> None:
    counts = (0, 999, 1024, 2.5 * 2**30, 3 * 2**40)
    assert [size(count) for count in counts] == ["0 B", "999 B", "1 KiB", "2.5 GiB", "3 TiB"]
