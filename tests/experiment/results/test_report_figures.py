"""Every figure of every kind of experiment is an image."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from farm.experiment.config.reader import read_config
from farm.experiment.results.report import ExperimentData, history, points
from farm.experiment.state.trials import Trial, TrialOutcome


def config(parameters: str, outcome: str = "continuous", log: str = "") -> str:
    names = parameters.split()
    sections = "".join(
        f"[{name}]\npar_type = continuous\nlower_bound = 1\nupper_bound = 100\n{log}"
        for name in names
    )
    return (
        f"[common]\nparnames = [{', '.join(names)}]\noutcome_types = [{outcome}]\n"
        f"strategy_names = [sobol, random]\n{sections}"
        "[sobol]\ngenerator = SobolGenerator\n[random]\ngenerator = RandomGenerator\n"
    )


def trials(dimensions: int, count: int, *, binary: bool) -> list[Trial]:
    rng = np.random.default_rng(1)
    found = []
    for i in range(count):
        point = 1 + 99 * rng.random((1, dimensions))
        values = np.array([float(rng.random() < 0.5) if binary else rng.normal()])
        found.append(Trial(point, TrialOutcome.TOLD, 1.0, float(i), values, strategy=i % 2))
    odd = np.full((1, dimensions), 50.0)
    found += [
        Trial(odd, TrialOutcome.FAILED, 1.0, 2.0, error="it broke", strategy=0),
        Trial(odd, TrialOutcome.PENDING, 1.0, strategy=1),
        Trial(odd, TrialOutcome.TOLD, None, 3.0, np.array([np.nan])),
        Trial(odd, TrialOutcome.TOLD, None, 3.0, np.array([1.0])),
        Trial(odd, TrialOutcome.TOLD, 1.0, 3.0, np.array([0.0]), strategy=1, filler=True),
    ]
    return found


@pytest.mark.parametrize("parameters", ["x", pytest.param("x y", marks=pytest.mark.slow), "x y z"])
@pytest.mark.parametrize(
    ("outcome", "log", "count"),
    [
        ("continuous", "", 30),
        ("binary", "log_scale = true\n", 30),
        ("continuous", "log_scale = true\n", 0),
    ],
    ids=["linear", "binary-log", "empty"],
)
def test_it_is_a_picture(outcome: str, parameters: str, log: str, count: int) -> None:
    dimensions = len(parameters.split())
    shown = ExperimentData(
        read_config(config(parameters, outcome, log)),
        trials(dimensions, count, binary=outcome == "binary") if count else [],
        predict=lambda x: (x[:, 0, 0] / 100, np.full(len(x), 0.1)),
        level=0.5,
    )
    for figure in (history, points):
        root = ElementTree.fromstring(figure(shown))
        assert root.tag.endswith("svg")
        assert len(list(root.iter())) > 20


def test_points_at_the_edge_are_whole() -> None:
    corner = Trial(
        np.array([[1.0, 100.0]]), TrialOutcome.TOLD, 1.0, 2.0, np.array([1.0]), strategy=0
    )
    shown = ExperimentData(
        read_config(config("x y")),
        [corner],
        predict=lambda x: (x[:, 0, 0] / 100, np.full(len(x), 0.1)),
    )
    root = ElementTree.fromstring(points(shown))
    (dots,) = (g for g in root.iter() if g.get("id", "").startswith("PathCollection"))
    assert len(list(dots.iter())) > 1
    assert not any("clip-path" in g.attrib for g in dots.iter())


def test_what_is_shown_is_in_the_order_of_telling() -> None:
    late = Trial(np.array([[3.0]]), TrialOutcome.TOLD, 1.0, 9.0, np.array([3.0]))
    soon = Trial(np.array([[1.0]]), TrialOutcome.TOLD, 2.0, 4.0, np.array([1.0]))
    none = Trial(np.array([[1.0]]), TrialOutcome.TOLD, 2.0, 5.0, np.array([np.inf]))
    shown = ExperimentData(read_config(config("x")), [late, soon, none])
    assert shown.told == [soon, late]
    assert shown.values.tolist() == [1.0, 3.0]
