"""Pages escape all text that they are given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from farm.call import ModelInfo, TensorInfo
from farm.report.page import (
    MOST_ROWS,
    Html,
    facts,
    folded,
    preformatted,
    section,
    table,
    tensors,
    write_page,
)


def test_texts_are_escaped_and_blocks_are_not(tmp_path: Path) -> None:
    blocks = [
        section("<i>", "a & b", Html("<svg/>"), facts({"k<": "<v>"})),
        folded("<s>", preformatted("<p>\n  x")),
        table(["<c>"], [["<d>"]]),
    ]
    write_page(tmp_path / "p.html", title="a < b", note="x & y", blocks=blocks)
    text = (tmp_path / "p.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "<title>a &lt; b</title>" in text
    assert "<h1>a &lt; b</h1>" in text
    assert "<h2>&lt;i&gt;</h2>" in text
    assert '<p class="note">a &amp; b</p><svg/>' in text
    assert "<th>k&lt;</th><td>&lt;v&gt;</td>" in text
    assert "<summary>&lt;s&gt;</summary><pre>&lt;p&gt;\n  x</pre>" in text
    assert "<th>&lt;c&gt;</th></tr><tr><td>&lt;d&gt;</td>" in text


def test_the_note_says_when_the_page_was_written(tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", title="t", note="x & y", blocks=[])
    text = (tmp_path / "p.html").read_text("utf-8")
    assert re.search(r"x &amp; y; report of \d{4}-\d\d-\d\d \d\d:\d\d</p>", text)


def test_numbers_of_a_table_are_rounded_and_aligned() -> None:
    text = table(["point", "load", "error"], [[1234567, 0.123456789, "lost"]])
    assert '<th class="n">point</th><th class="n">load</th><th>error</th>' in text
    assert '<td class="n">1234567</td><td class="n">0.12346</td><td>lost</td>' in text


@pytest.mark.parametrize(
    ("rows", "shown", "more"),
    [
        (0, 0, None),
        (MOST_ROWS, MOST_ROWS, None),
        (MOST_ROWS + 2, MOST_ROWS, "and 2 more"),
    ],
)
def test_a_long_table_says_how_many_rows_it_leaves_out(
    rows: int, shown: int, more: str | None
) -> None:
    text = table(["n"], [[number] for number in range(rows)])
    assert text.count("<td") == shown
    assert ("more" in text) == (more is not None)
    assert (more or "") in text


def test_a_model_has_columns_of_units_if_it_states_any() -> None:
    plain = ModelInfo("beam", (TensorInfo("E", (3,)),), (TensorInfo("u", ()),))
    assert "<th>shape</th><th>type</th></tr>" in tensors(plain)
    stated = replace(plain, outputs=(TensorInfo("u", (), unit="<m>", description="at the end"),))
    shown = tensors(stated)
    assert "<th>unit</th><th>description</th>" in shown
    assert "<td>input</td><td>E</td><td>(3,)</td><td>float64</td><td></td><td></td>" in shown
    assert "<td>&lt;m&gt;</td><td>at the end</td>" in shown


def test_a_page_runs_no_script_and_loads_nothing(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", title="t", note="", blocks=[])
    text = (tmp_path / "page.html").read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["script-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
