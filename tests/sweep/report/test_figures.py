"""Figures: each is well-formed SVG for every kind of sweep, and shows the right data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.errors import UnsupportedFeature
from farm.report.plotting import MOST_DOTS
from farm.sweep.design.plan import Plan
from farm.sweep.file.journal import AnsweringWorker
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.report import figures
from farm.sweep.report.figures import SweepData
from tests.sweep.samples import BEAM_WITH_UNITS, done, failed, plan_of

ONE = ModelInfo("m", (TensorInfo("k", (1,)),), (TensorInfo("y", (1,)),))
WIDE = ModelInfo("m", (TensorInfo("x", (30,)),), (TensorInfo("y", (1,)),))

FIGURES = [
    figures.progress,
    figures.run_times,
    figures.failures,
    figures.gantt,
    figures.points,
    figures.overhead,
]


def shown(plan: Plan, *, finished: int, workers: int = 3) -> SweepData:
    known = PointColumns.nothing(plan.size)
    for k in range(workers):
        known.add(AnsweringWorker(k, f"node/{k}", 0.0))
    rng = np.random.default_rng(0)
    for point in range(finished):
        worker = point % workers
        if point % 5 == 4:
            known.add(failed(point, worker=worker))
        else:
            run = float(rng.exponential())
            times = {"t_run": run, "t_queue": 0.1, "t_total": run + 0.1 + 0.01 * rng.random()}
            known.add(done(plan, point, worker=worker, t_start=1e9 + point, **times))
    colour = np.where(known.status == 1, plan.theta[:, 0], np.nan)
    return SweepData(plan, known, colour, "y")


PLANS = {
    "one parameter": plan_of("random:50", {"k": "log:1e-3:1"}, info=ONE),
    "two parameters": plan_of("random:50", {"k": "0:1", "mesh": "int:1:4"}, info=ONE),
    "four parameters": plan_of("sobol:64"),
    "many parameters": plan_of("random:50", {"x": "0:1"}, info=WIDE),
    "a grid": plan_of("grid:3", {"k": "0:1", "mesh": "choice:1,2,4"}, info=ONE),
    "one value": plan_of("random:5", {"k": "choice:2"}, info=ONE),
}


@pytest.mark.slow
@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
@pytest.mark.parametrize(
    ("kind", "finished"),
    [
        ("one parameter", 30),
        ("two parameters", 0),
        ("two parameters", 30),
        ("many parameters", 30),
        ("a grid", 1),
        ("one value", 5),
    ],
)
def test_every_figure_of_every_sweep_is_a_picture(
    figure: Callable[[SweepData], str], kind: str, finished: int
) -> None:
    text = figure(shown(PLANS[kind], finished=finished))
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert len(text) > 1000


@pytest.mark.slow
def test_parameters_and_workers_are_named() -> None:
    some = shown(PLANS["four parameters"], finished=40)
    for figure in (figures.run_times, figures.failures, figures.points):
        text = figure(some)
        assert all(name in text for name in ("E[0]", "E[2]", "load"))
    assert "node/2" in figures.gantt(some)
    assert "median" in figures.overhead(some)


def test_axes_have_the_units_of_the_model() -> None:
    data = SweepData(
        plan := plan_of(info=BEAM_WITH_UNITS), PointColumns.nothing(20), plan.theta[:, 0], "u (m)"
    )
    assert [axis.name for axis in data.parameters] == [
        "E[0] (Pa)",
        "E[1] (Pa)",
        "E[2] (Pa)",
        "load",
    ]


@pytest.mark.slow
def test_words_are_on_the_axes_and_inactive_parameters_are_left_out() -> None:
    params = {"k": "0:1", "solver": "euler,rk", "order": "int:1:4", "never": "0:1"}
    when = {"order": 'solver == "rk"', "never": "k > 2"}
    some = shown(plan_of("sobol:32", params, info=ONE, when=when), finished=30)
    for figure in (figures.run_times, figures.failures, figures.points):
        text = figure(some)
        ElementTree.fromstring(text)
        assert all(word in text for word in ("euler", "rk"))


def test_many_dots_are_thinned() -> None:
    plan = plan_of("random:20000", {"k": "0:1"}, info=ONE)
    known = PointColumns.nothing(20000)
    known.status[:] = 1
    known.t_run[:] = 1.0
    known.t_start[:] = 1e9
    text = figures.run_times(SweepData(plan, known, plan.theta[:, 0], "y"))
    assert text.count("<use") < 2 * MOST_DOTS


def test_runs_close_together_are_one_bar() -> None:
    bars = np.array([[0.0, 1.0], [1.05, 1.0], [3.0, 1.0]])
    assert figures._merged(bars, 0.1) == [[0.0, pytest.approx(2.05)], [3.0, 1.0]]
    assert len(figures._merged(bars, 0.01)) == 3


def test_the_same_sweep_gives_the_same_picture() -> None:
    some = shown(PLANS["two parameters"], finished=20)
    assert figures.points(some) == figures.points(some)


def test_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedFeature, match=r"modelfarm\[plot\]"):
        figures.progress(shown(PLANS["a grid"], finished=1))
