"""The report: a self-contained page for a sweep in every state, with all text escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from farm.sweep.design.errors import SweepError
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.report.report import write_report
from tests.sweep.samples import done, failed, plan_of

PLAN = plan_of(
    "sobol:32",
    {"load": "0:1"},
    fixes={"E": 1},
    title="a <b> & c",
    provenance={"notes": "<script>alert(1)</script>"},
)


class Balanced(HTMLParser):
    """A parser that fails on unbalanced tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "!doctype"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def write(path: Path, *, finished: int, close: bool = True, fail: bool = True) -> Store:
    store = Store.create(path, PLAN)
    for point in range(finished):
        bad = fail and point % 4 == 3
        store.add(failed(point, error="<i>oops</i>") if bad else done(PLAN, point))
    if close:
        store.close(COMPLETE, {})
    return store


def report(path: Path, **options: str) -> str:
    out = path.with_suffix(".html")
    write_report(path, out, **options)
    return out.read_text()


def test_it_needs_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "s.h5", finished=32)
    text = report(tmp_path / "s.h5")
    page = Balanced()
    page.feed(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "i"} & page.seen
    assert not re.search(r"(src|href)=\"(?!#)[^\"]*\"", text.replace("xlink:href", "href"))
    assert text.count("<svg") == 6


def test_what_users_wrote_is_text(tmp_path: Path) -> None:
    write(tmp_path / "s.h5", finished=32)
    text = report(tmp_path / "s.h5")
    assert "<title>a &lt;b&gt; &amp; c</title>" in text
    assert "&lt;i&gt;oops&lt;/i&gt;" in text
    assert "&lt;script&gt;" in text


def test_a_sweep_without_failures_says_so(tmp_path: Path) -> None:
    write(tmp_path / "s.h5", finished=32, fail=False)
    text = report(tmp_path / "s.h5")
    assert "No point failed." in text
    assert text.count("<svg") == 5


@pytest.mark.slow
@pytest.mark.parametrize("finished", [0, 7])
def test_a_sweep_that_runs_can_be_reported(tmp_path: Path, finished: int) -> None:
    store = write(tmp_path / "s.h5", finished=finished, close=False)
    assert f"{32 - finished} pending" in report(tmp_path / "s.h5")
    store.abandon()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "shown"),
    [(None, "mean of u"), ("mass", "mass"), ("u[3]", "u[3]"), ("u", "mean of u")],
)
def test_the_output_wanted_is_shown(tmp_path: Path, output: str | None, shown: str) -> None:
    write(tmp_path / "s.h5", finished=32)
    options = {} if output is None else {"colour_by": output}
    assert f"Height: {shown}." in report(tmp_path / "s.h5", **options)


def test_of_several_parameters_the_output_is_a_colour(tmp_path: Path) -> None:
    plan = plan_of("random:6")
    store = Store.create(tmp_path / "s.h5", plan)
    store.add(done(plan, 0))
    store.close(COMPLETE, {})
    assert "Colour: mean of u." in report(tmp_path / "s.h5")


@pytest.mark.parametrize("output", ["v", "u[4]", "u[x]", "u[-1]"])
def test_an_output_that_is_not_there_is_told(tmp_path: Path, output: str) -> None:
    write(tmp_path / "s.h5", finished=32)
    with pytest.raises(SweepError, match="output"):
        report(tmp_path / "s.h5", colour_by=output)
