"""Reports in headless Chromium: all figures drawn, selections, no error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from farm.call import Array, ModelInfo, TensorInfo
from farm.sweep.design.plan import Plan
from tests.support.browser import ESCAPE, LEFT, RIGHT, Browser
from tests.sweep.report.reports import Outcome, every, every_fourth_fails, made, report
from tests.sweep.samples import done, failed, plan_of, values_of

pytestmark = pytest.mark.browser

EVIL = "</script><script>window.evil=1</script><img src=x onerror=window.evil=1>"

AGAINST = "#against .canvas"
WHERE = """
const figure = document.querySelector(arguments[0]).figure
const { places, x, y } = figure.marks()
const k = places.indexOf(arguments[1])
return [x[k], y[k]]"""
"""Where a point is in a figure, in pixels."""

SERIES = """
const { series } = document.querySelector(arguments[0]).figure.chart.getOption()
return series.find((s) => s.id === arguments[1]).data.length"""
"""How many items a part of a figure has."""

PLAN = plan_of("sobol:64", title="beam")


def outcome(point: int) -> Mapping[str, Any]:
    if point % 8 == 3:
        return {"error": f"ModelFailed: step {point % 16}", "traceback": "line 7 of beam.py"}
    return {}


def opened(browser: Browser, path: Path) -> None:
    browser.open(path.with_suffix(".html").as_uri())
    browser.until("return document.body.dataset.ready")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "s.h5"
    made(path, PLAN, outcome)
    report(path)
    return path


@pytest.fixture
def page(browser: Browser, sweep: Path) -> Browser:
    opened(browser, sweep)
    return browser


def row(browser: Browser) -> str:
    return browser.text("#row")


def test_a_click_on_a_point_shows_its_row_and_marks_it_in_every_figure(page: Browser) -> None:
    assert "No point selected" in row(page)
    page.drag(AGAINST, tuple(page.run(WHERE, AGAINST, 5)))
    shown = page.until_text("#row", "Point 5")
    assert "done" in shown
    load = PLAN.theta[5, 3]
    assert f"load\t{float(load)!r}" in shown
    assert "mass\t5.004" in shown
    assert "worker\tnode1/2" in shown
    assert "run time\t500 ms" in shown
    count = page.run("return document.querySelectorAll('#against .canvas').length")
    assert count == 4
    for number in range(count):
        marked = """return document.querySelectorAll('#against .canvas')[arguments[0]].figure
            .chart.getOption().series.find((s) => s.id === 'one').data.length"""
        assert page.run(marked, number) == 1
    assert page.run(SERIES, "#distributions .canvas", "set") == 1


def test_a_failed_point_shows_its_error_and_traceback(page: Browser) -> None:
    page.drag(AGAINST, tuple(page.run(WHERE, AGAINST, 11)))
    shown = page.until_text("#row", "Point 11")
    assert "failed" in shown
    assert "ModelFailed: step 11" in shown
    assert "Outputs" not in shown
    page.click("#row summary")
    page.until_text("#row", "line 7 of beam.py")


def test_the_pointer_over_a_point_shows_its_numbers(page: Browser) -> None:
    page.hover(AGAINST, tuple(page.run(WHERE, AGAINST, 3)))
    assert "ModelFailed: step 3" in page.until_text("#tip", "point 3: failed")
    page.hover(AGAINST, tuple(page.run(WHERE, AGAINST, 9)))
    assert "mean of u = 9.0" in page.until_text("#tip", "point 9\n")


@pytest.mark.parametrize("mode", ["box", "lasso"])
def test_a_drag_selects_points_in_all_figures(page: Browser, mode: str) -> None:
    page.click(f"[data-mode={mode}]")
    box = page.run(f"return document.querySelector('{AGAINST}').figure.box")
    left, top = box["left"] + 1, box["top"] + 1
    right, bottom = left + box["width"] / 2, box["top"] + box["height"] - 12
    lasso = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    page.drag(AGAINST, *(lasso if mode == "lasso" else [lasso[0], lasso[2]]))
    about = f"""const f = document.querySelector('{AGAINST}').figure
        const of = (column, drawn) => (column.log ? 10 ** drawn : drawn)
        const [x, y] = [...arguments].map(Math.round)
        return [f.x().name, of(f.x(), f.valueX(x)), of(f.y(), f.valueY(y))]"""
    name, limit, least = page.run(about, right, bottom)
    column = [p.name for p in PLAN.parameters].index(name)
    done = np.array(["error" not in outcome(k) for k in range(64)])
    above = np.array([values_of(PLAN, k)[:4].mean() for k in range(64)]) > least
    expected = int(np.count_nonzero(done & above & (PLAN.theta[:, column] < limit)))
    assert page.until_text("#set", "selected").startswith(f"{expected} points selected")
    assert page.run(SERIES, "#space .canvas", "set") == expected
    page.click("#clear")
    page.until("return document.getElementById('set').textContent === ''")


def test_a_drag_zooms_and_comes_back(page: Browser) -> None:
    ranges = f"return document.querySelector('{AGAINST}').figure.ranges.x"
    before = page.run(ranges)
    page.drag(AGAINST, (100, 40), (180, 140))
    after = page.until(
        f"const r = document.querySelector('{AGAINST}').figure.view; return r && r.x"
    )
    assert before[0] < after[0] < after[1] < before[1]
    page.click("#reset")
    page.until(f"return document.querySelector('{AGAINST}').figure.view === null")
    assert page.run(ranges) == before


def test_an_error_and_a_bar_select_their_points(page: Browser) -> None:
    page.click("#errors button")
    assert "4 points selected, 4 failed" in page.until_text("#set", "selected")
    assert "ModelFailed: step" in row(page)
    figure = "document.querySelector('#distributions .canvas').figure"
    bar = f"""const f = {figure}
        const k = f.members.findIndex((places) => places.length > 1)
        const x = f.pixelX((f.bins[k] + f.bins[k + 1]) / 2)
        return [f.members[k].length, x, f.box.top + f.box.height - 3]"""
    members, x, y = page.run(bar)
    page.drag("#distributions .canvas", (x, y))
    page.until_text("#set", f"{members} points selected")


def test_a_drag_along_an_axis_of_parallel_coordinates_narrows(page: Browser) -> None:
    figure = "document.querySelector('#parallel .canvas').figure"
    place = f"""const f = {figure}
        return [f.axisX(arguments[0]), f.heightAt(arguments[0], arguments[1])]"""
    bounds = {0: (1.0, 1.5), 1: (1.2, 2.0)}
    names = page.run(f"return {figure}.shown.map((c) => c.name)")
    kept = np.ones(64, dtype=bool)
    for axis, (low, high) in bounds.items():
        x, bottom = page.run(place, axis, low)
        _, top = page.run(place, axis, high)
        page.drag("#parallel .canvas", (x, top), (x + 5, bottom))
        values = PLAN.theta[:, [p.name for p in PLAN.parameters].index(names[axis])]
        kept &= (values > low + 0.01) & (values < high - 0.01)
        page.until("return document.getElementById('set').textContent")
    found = set(page.run(f"return Array.from({figure}.state.selection.set)"))
    assert set(np.flatnonzero(kept).tolist()) <= found
    assert len(found) < 32


def test_keys_move_the_selection(page: Browser) -> None:
    page.press(RIGHT)
    page.until_text("#row", "Point 0")
    page.press(RIGHT, RIGHT)
    page.until_text("#row", "Point 2")
    page.press(LEFT)
    page.until_text("#row", "Point 1")
    page.press(ESCAPE)
    page.until_text("#row", "No point selected")
    page.run(f"document.querySelector('{AGAINST}').focus()")
    page.press(RIGHT)
    name = page.run(f"return document.querySelector('{AGAINST}').figure.x().name")
    column = PLAN.theta[:, [p.name for p in PLAN.parameters].index(name)]
    page.until_text("#row", f"Point {int(np.argmin(column))}")


def test_the_selected_field_is_drawn(page: Browser) -> None:
    curves = "#fields .canvas"
    page.press(RIGHT)
    page.until_text("#row", "Point 0")
    assert page.run(SERIES, curves, "one") == 4
    page.press(*[RIGHT] * 3)
    page.until_text("#fields figcaption", "point 3 is failed")
    assert page.run(SERIES, curves, "one") == 0


def test_on_a_phone_nothing_is_wider_than_the_window(page: Browser) -> None:
    page.show_as(420, 800)
    page.until("return document.querySelector('.canvas').clientWidth < 420")
    assert page.run("return document.documentElement.scrollWidth") == 420
    page.press(RIGHT)
    page.until_text("#row", "Point 0")
    assert page.run("return document.getElementById('row').getBoundingClientRect().height") < 400


def test_a_dark_page_is_drawn_again(page: Browser) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    colour = f"""const figure = document.querySelector('{AGAINST}').figure
        return figure.chart.getOption().series[0].itemStyle.color"""
    light = page.run(ground), page.run(colour)
    page.show_as(1120, 900, "dark")
    page.until(f"return (() => {{ {ground} }})() !== arguments[0]", light[0])
    page.until(f"return (() => {{ {colour} }})() !== arguments[0]", light[1])


def test_texts_of_a_file_are_never_html_or_scripts(browser: Browser, tmp_path: Path) -> None:
    info = ModelInfo(
        EVIL,
        (TensorInfo(f"k{EVIL}", (2,)),),
        (TensorInfo(f"y{EVIL}", (1,)), TensorInfo(EVIL, (3,))),
    )
    plan = plan_of(
        "random:40", {f"k{EVIL}": "0:1"}, info=info, title=EVIL, provenance={"notes": EVIL}
    )
    store = made(tmp_path / "s.h5", plan, lambda point: None, close=False)
    for point in range(40):
        worker = store.worker_id(EVIL)
        bad = failed(point, error=EVIL, traceback=EVIL, worker=worker)
        store.add(bad if point % 4 == 3 else done(plan, point, worker=worker))
    store.close("complete", {})
    report(tmp_path / "s.h5")
    opened(browser, tmp_path / "s.h5")
    browser.click("#farm summary")
    browser.click("#provenance summary")
    for place in (3, 4):
        browser.hover(AGAINST, tuple(browser.run(WHERE, AGAINST, place)))
        browser.until_text("#tip", EVIL)
        browser.drag(AGAINST, tuple(browser.run(WHERE, AGAINST, place)))
        browser.until_text("#row", f"Point {place}")
        assert EVIL in row(browser)
    browser.hover("#distributions .canvas", (120, 100))
    assert EVIL in browser.text("h1")
    assert browser.run("return document.title") == EVIL
    assert browser.run("return window.evil") is None
    assert browser.run("return document.querySelectorAll('img').length") == 0


def test_a_large_sweep_has_a_bounded_report(browser: Browser, tmp_path: Path) -> None:
    """The time until its figures are drawn is printed, and the size of the file."""
    info = ModelInfo("m", (TensorInfo("k", (4,)),), (TensorInfo("y", (1,)),))
    plan = plan_of("random:15000", {"k": "0:1"}, info=info)
    made(tmp_path / "s.h5", plan, outcome)
    text = report(tmp_path / "s.h5")
    assert "10,000 of 15,000 points are shown" in text
    opened(browser, tmp_path / "s.h5")
    took_s = browser.run("return performance.now()") / 1e3
    print(f"\nreport of 10,000 points: {len(text) / 1e6:.1f} MB, drawn after {took_s:.1f} s")
    assert len(text) < 4e6
    failed = sum("error" in outcome(point) for point in range(15000))
    assert (
        browser.run("return document.querySelector('.canvas').figure.state.data.failed.length")
        == failed
    )


pytestmark = pytest.mark.browser

INK = """
return [...document.querySelectorAll('.canvas canvas')].map((canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
    return data.some((byte) => byte > 0)
})"""
"""Whether each figure has anything drawn."""

CHANGE = """
const control = document.getElementById(arguments[0])
if (!control.checkVisibility()) return
if (control.type === 'checkbox') control.click()
else {
    control.value = control.options[control.options.length - 1].value
    control.dispatchEvent(new Event('change'))
}"""
"""Change a control of the page, if it shows."""

SECTIONS = (
    "return [...document.querySelectorAll('section')].filter((s) => !s.hidden).map((s) => s.id)"
)


class Kind(NamedTuple):
    """A kind of sweep. sections: those that its report shows."""

    plan: Plan
    outcome: Outcome
    sections: set[str]
    close: bool = True


def one_input(*outputs: TensorInfo) -> ModelInfo:
    return ModelInfo("m", (TensorInfo("k", (1,)),), outputs)


def numbers(*rows: Array | list[float]) -> Outcome:
    """Return outcomes with these values, which repeat."""

    def outcome(point: int) -> Mapping[str, Any]:
        return {"values": np.asarray(rows[point % len(rows)], dtype=float)}

    return outcome


NUMBER = TensorInfo("y", (1,))
ALL = {"against", "ranking", "space", "distributions", "parallel"}
ONE = ALL - {"space"}
INFINITY = float("inf")
NAN = float("nan")

KINDS = {
    "all parts": Kind(plan_of("sobol:64"), every_fourth_fails, ALL | {"fields", "failures"}),
    "one parameter": Kind(
        plan_of("random:50", {"k": "log:1:9"}, info=one_input(NUMBER)), every, ONE
    ),
    "thirty parameters": Kind(
        plan_of(
            "random:40", {"x": "0:1"}, info=ModelInfo("m", (TensorInfo("x", (30,)),), (NUMBER,))
        ),
        every_fourth_fails,
        ALL | {"failures"},
    ),
    "one point": Kind(plan_of("random:1"), every, ALL | {"fields"}),
    "none done": Kind(plan_of("random:9"), lambda point: None, {"ranking"}, close=False),
    "running": Kind(
        plan_of("random:9"), lambda p: {} if p < 4 else None, ALL | {"fields"}, close=False
    ),
    "all failed": Kind(plan_of("random:9"), lambda p: {"error": "no"}, ALL | {"failures"}),
    "a constant": Kind(
        plan_of(params={"k": "choice:2"}, info=one_input(NUMBER)), numbers([5.0]), ONE
    ),
    "not finite": Kind(
        plan_of(params={"k": "0:1"}, info=one_input(NUMBER, TensorInfo("u", (3,)))),
        numbers([NAN, 1, NAN, 2], [INFINITY, NAN, NAN, NAN], [-INFINITY, 1, INFINITY, 3]),
        ONE | {"fields"},
    ),
    "large and small": Kind(
        plan_of(params={"k": "-1e300:1e300"}, info=one_input(NUMBER, TensorInfo("u", (3,)))),
        numbers([1e308, -1e308, 0, 1e-308], [-1e308, 1e308, 5, 6], [5e-324, 1e200, 1, 1]),
        ONE | {"fields"},
    ),
    "whole and true": Kind(
        plan_of(
            params={"k": "int:1:4"},
            info=one_input(TensorInfo("n", (1,), "int64"), TensorInfo("b", (1,), "bool")),
        ),
        numbers([3, 1], [2**53, 0]),
        ONE,
    ),
    "no entries": Kind(
        plan_of(params={"k": "0:1"}, info=one_input(TensorInfo("y", (0,)))),
        every,
        {
            "distributions",
            "ranking",
        },
    ),
    "images": Kind(
        plan_of("random:12", {"k": "0:1"}, info=one_input(TensorInfo("T", (60, 70)), NUMBER)),
        every_fourth_fails,
        ONE | {"fields", "failures"},
    ),
    "inactive parameters": Kind(plan_of(), every, ALL | {"fields"}),
    "a grid": Kind(
        plan_of("grid:3", {"E": "1:2", "load": "choice:1,2,4"}), every, ALL | {"fields"}
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_reports_of_every_kind_are_drawn(browser: Browser, tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    store = made(tmp_path / "s.h5", kind.plan, kind.outcome, close=kind.close)
    if name == "inactive parameters":
        with h5py.File(tmp_path / "s.h5", "r+") as file:
            file["theta"][::3, 0] = np.nan
            file["theta"][:, 1] = np.nan
    report(tmp_path / "s.h5")
    if not kind.close:
        store.abandon()
    browser.open((tmp_path / "s.html").as_uri())
    browser.until("return document.body.dataset.ready")
    assert set(browser.run(SECTIONS)) == kind.sections
    browser.click("#farm summary")
    browser.until("return document.querySelectorAll('#farm canvas').length > 2")
    browser.run("document.querySelectorAll('.more').forEach((b) => b.click())")
    drawn = "return [...document.querySelectorAll('.canvas')].every((c) => c.figure.drawn)"
    browser.until(drawn)
    assert all(browser.run(INK))
    browser.run("document.activeElement.blur()")
    browser.press(RIGHT, RIGHT, LEFT)
    for control in ("log", "output", "across"):
        browser.run(CHANGE, control)
    assert all(browser.run(INK))
    assert browser.complaints() == []
