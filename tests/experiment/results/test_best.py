"""The best point, among recorded outcomes and by expectation."""

from __future__ import annotations

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.experiment.config.reader import read_config
from farm.experiment.results.best import Best, best_expected, best_told
from farm.experiment.state.events import Told
from farm.experiment.state.experiment import Experiment
from tests.experiment.subjects import LEARNING, config_of


def told(config: str, points: list[list[float]], outcomes: list[list[float]]) -> Experiment:
    experiment = Experiment(0, read_config(config))
    x = np.array(points).reshape(len(points), 1, -1)
    event = Told(
        experiment=0, time=0.0, points=x, outcomes=np.array(outcomes), ids=(None,) * len(points)
    )
    experiment.apply(event)
    return experiment


def test_the_greatest_and_the_least_that_were_told() -> None:
    points = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]]
    experiment = told(config_of(), points, [[1.0], [5.0], [np.nan], [-2.0]])
    assert best_told(experiment).point == {"x": 0.3, "y": 0.4}
    assert best_told(experiment).outcomes == {"outcome_1": 5.0}
    assert best_told(experiment, least=True).point == {"x": 0.7, "y": 0.8}
    with pytest.raises(InvalidInput, match="no strategy with a model"):
        best_expected(experiment)


def test_of_several_outcomes_one_is_meant() -> None:
    config = config_of(outcome="continuous, continuous").replace("model = bowl", "model = bowl")
    experiment = told(config.partition("[farm]")[0], [[0, 0], [1, 1]], [[1.0, 4.0], [2.0, 3.0]])
    assert best_told(experiment).outcomes["outcome_1"] == 2.0
    assert best_told(experiment, "outcome_2").outcomes["outcome_2"] == 4.0
    with pytest.raises(InvalidInput, match=r"outcome_3.*expected one of outcome_1, outcome_2"):
        best_told(experiment, "outcome_3")


def test_what_has_no_best() -> None:
    with pytest.raises(InvalidInput, match="no trial"):
        best_told(Experiment(0, read_config(config_of())))
    binary = told(config_of(outcome="binary").partition("[farm]")[0], [[0, 0]], [[1.0]])
    with pytest.raises(InvalidInput, match="is binary"):
        best_told(binary)


def test_where_the_surrogate_expects_it() -> None:
    config = config_of(LEARNING, names="learn")
    grid = [[x, y] for x in np.linspace(0, 1, 5) for y in np.linspace(0, 1, 5)]
    outcomes = [[-((x - 0.4) ** 2) - (y - 0.6) ** 2] for x, y in grid]
    experiment = told(config, grid, outcomes)
    best = best_expected(experiment)
    assert best.point == pytest.approx({"x": 0.4, "y": 0.6}, abs=0.05)
    assert not best.probability
    assert best_expected(experiment, least=True).point == pytest.approx({"x": 1, "y": 0}, abs=0.05)


def test_in_words() -> None:
    best = Best({"x": 1 / 3, "kind": "wood", "p": [1e-7, 2.0]}, {"cost": -2.5}, probability=True)
    assert str(best) == "x = 0.333333, kind = wood, p = [1e-07, 2]: probability of cost = -2.5"
