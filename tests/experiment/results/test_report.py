"""The report of an experiment: its contents, and its figures."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.reader import read_config
from farm.experiment.host import applied
from farm.experiment.results.report import ExperimentData, history, points, write_report
from farm.experiment.state.events import Asked, Event, Failed, SetUp, Told
from farm.experiment.state.experiment import Experiment
from farm.experiment.state.trials import Trial, record_of
from farm.sweep.file.journal import PointStatus
from tests.experiment.subjects import LEARNING, config_of


def events_of(config: str, count: int = 1) -> list[Event]:
    points = np.arange(12.0).reshape(6, 1, 2) / 16
    outcomes = np.stack([np.arange(5.0), -np.arange(5.0)][:count], axis=1)
    return [
        SetUp(experiment=0, time=1.0, config_text=config, experiment_id="an id"),
        Asked(experiment=0, time=2.0, points=points, ids=tuple(range(6)), strategy=0, run=True),
        Told(experiment=0, time=3.0, points=points[:5], outcomes=outcomes, ids=tuple(range(5))),
        Failed(experiment=0, time=4.0, ids=(5,), error="ModelFailed: a <b> ended it"),
    ]


def written(config: str, out: Path, count: int = 1, **options: str) -> str:
    events = events_of(config, count)
    experiments: dict[int, Experiment] = {}
    for event in events:
        applied(experiments, event)
    write_report(record_of(events), experiments[0], out, **options)
    return out.read_text("utf-8")


def test_it_tells_what_happened(tmp_path: Path) -> None:
    text = written(config_of(LEARNING, names="learn"), tmp_path / "r.html")
    assert "5 told, 5 of them modelled; 1 failed; 0 pending" in text
    assert "best told</th><td>x = 0.5, y = 0.5625: outcome_1 = 4</td>" in text
    assert "<td>x = 0.625, y = 0.6875</td><td>ModelFailed: a &lt;b&gt; ended it</td>" in text
    assert text.count("<svg") == 2
    assert "Colour: outcome_1" in text
    assert "what the surrogate expects" in text


def test_one_parameter_has_no_colours(tmp_path: Path) -> None:
    config = read_config(
        "[common]\nparnames = [x]\noutcome_types = [continuous]\nstrategy_names = [s]\n"
        "[x]\nlower_bound = 0\nupper_bound = 1\n[s]\ngenerator = SobolGenerator\n"
    )
    event = SetUp(experiment=0, time=1.0, config_text=config.text, experiment_id="an id")
    write_report(record_of([event]), Experiment(0, config), tmp_path / "r.html")
    assert "Height: outcome_1." in (tmp_path / "r.html").read_text("utf-8")


def test_of_several_outcomes_one_is_shown(tmp_path: Path) -> None:
    config = config_of(outcome="continuous, continuous")
    text = written(config, tmp_path / "r.html", 2, outcome="outcome_2")
    assert "x = 0, y = 0.0625: outcome_1 = 0, outcome_2 = 0</td>" in text
    assert "what the surrogate expects" not in text


def test_an_unknown_outcome_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'depth'.*outcome_1"):
        written(config_of(), tmp_path / "r.html", outcome="depth")
    assert not (tmp_path / "r.html").exists()


def config_with(parameters: str, outcome: str = "continuous", log: str = "") -> str:
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
        found.append(Trial(point, PointStatus.DONE, 1.0, float(i), values, strategy=i % 2))
    odd = np.full((1, dimensions), 50.0)
    found += [
        Trial(odd, PointStatus.FAILED, 1.0, 2.0, error="it broke", strategy=0),
        Trial(odd, PointStatus.PENDING, 1.0, strategy=1),
        Trial(odd, PointStatus.DONE, None, 3.0, np.array([np.nan])),
        Trial(odd, PointStatus.DONE, None, 3.0, np.array([1.0])),
        Trial(odd, PointStatus.DONE, 1.0, 3.0, np.array([0.0]), strategy=1, filler=True),
    ]
    return found


def rising(x: Array) -> tuple[Array, Array]:
    return x[:, 0, 0] / 100, np.full(len(x), 0.1)


LOG = "log_scale = true\n"


@pytest.mark.parametrize(
    ("parameters", "outcome", "log", "count"),
    [
        pytest.param("x", "continuous", "", 30, marks=pytest.mark.slow),
        ("x", "binary", LOG, 30),
        pytest.param("x y", "binary", LOG, 30, marks=pytest.mark.slow),
        ("x y z", "continuous", "", 30),
        pytest.param("x", "continuous", LOG, 0, marks=pytest.mark.slow),
    ],
)
def test_every_figure_is_a_picture(parameters: str, outcome: str, log: str, count: int) -> None:
    dimensions = len(parameters.split())
    shown = ExperimentData(
        read_config(config_with(parameters, outcome, log)),
        trials(dimensions, count, binary=outcome == "binary") if count else [],
        predict=rising,
        level=0.5,
    )
    for figure in (history, points):
        root = ElementTree.fromstring(figure(shown))
        assert root.tag.endswith("svg")
        assert len(list(root.iter())) > 20


def test_points_at_the_edge_are_whole() -> None:
    point, values = np.array([[1.0, 100.0]]), np.array([1.0])
    corner = Trial(point, PointStatus.DONE, 1.0, 2.0, values, strategy=0)
    shown = ExperimentData(read_config(config_with("x y")), [corner], predict=rising)
    root = ElementTree.fromstring(points(shown))
    (dots,) = (g for g in root.iter() if g.get("id", "").startswith("PathCollection"))
    assert len(list(dots.iter())) > 1
    assert not any("clip-path" in g.attrib for g in dots.iter())


def test_what_is_shown_is_in_the_order_of_telling() -> None:
    late = Trial(np.array([[3.0]]), PointStatus.DONE, 1.0, 9.0, np.array([3.0]))
    soon = Trial(np.array([[1.0]]), PointStatus.DONE, 2.0, 4.0, np.array([1.0]))
    none = Trial(np.array([[1.0]]), PointStatus.DONE, 2.0, 5.0, np.array([np.inf]))
    shown = ExperimentData(read_config(config_with("x")), [late, soon, none])
    assert shown.told == [soon, late]
    assert shown.values.tolist() == [1.0, 3.0]
