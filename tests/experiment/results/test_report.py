"""The report of an experiment, with its contents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.experiment.config.reader import read_config
from farm.experiment.host import applied
from farm.experiment.results.report import write_report
from farm.experiment.state.events import Asked, Event, Failed, SetUp, Told
from farm.experiment.state.experiment import Experiment
from farm.experiment.state.trials import record_of
from tests.experiment.subjects import config_of

MODEL = (
    "[learn]\ngenerator = OptimizeAcqfGenerator\nacqf = qLogNoisyExpectedImprovement\n"
    "model = GPRegressionModel\n"
)


def history(config: str, count: int = 1) -> list[Event]:
    points = np.arange(12.0).reshape(6, 1, 2) / 16
    outcomes = np.stack([np.arange(5.0), -np.arange(5.0)][:count], axis=1)
    return [
        SetUp(experiment=0, time=1.0, config_text=config, experiment_id="an id"),
        Asked(experiment=0, time=2.0, points=points, ids=tuple(range(6)), strategy=0, run=True),
        Told(experiment=0, time=3.0, points=points[:5], outcomes=outcomes, ids=tuple(range(5))),
        Failed(experiment=0, time=4.0, ids=(5,), error="ModelFailed: a <b> ended it"),
    ]


def written(config: str, out: Path, count: int = 1, **options: str) -> str:
    events = history(config, count)
    experiments: dict[int, Experiment] = {}
    for event in events:
        applied(experiments, event)
    write_report(record_of(events), experiments[0], out, **options)
    return out.read_text("utf-8")


@pytest.mark.parametrize(("strategies", "names"), [("", ""), (MODEL, "learn")])
def test_it_tells_what_happened(tmp_path: Path, strategies: str, names: str) -> None:
    config = config_of(strategies, names=names) if names else config_of()
    text = written(config, tmp_path / "r.html")
    assert "5 told, 5 of them modelled; 1 failed; 0 pending" in text
    assert "best told</th><td>x = 0.5, y = 0.5625: outcome_1 = 4</td>" in text
    assert "<td>x = 0.625, y = 0.6875</td><td>ModelFailed: a &lt;b&gt; ended it</td>" in text
    assert text.count("<svg") == 2
    assert "Colour: outcome_1" in text
    assert ("what the surrogate expects" in text) == bool(names)


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


def test_an_unknown_outcome_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'depth'.*outcome_1"):
        written(config_of(), tmp_path / "r.html", outcome="depth")
    assert not (tmp_path / "r.html").exists()
