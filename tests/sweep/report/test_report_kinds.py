"""Reports of every kind of sweep in headless Chromium: all figures drawn, no error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from farm.call import Array, ModelInfo, TensorInfo
from farm.sweep.design.plan import Plan
from tests.support.browser import LEFT, RIGHT, Browser
from tests.sweep.report.reports import Outcome, every, every_fourth_fails, made, report
from tests.sweep.samples import plan_of

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
