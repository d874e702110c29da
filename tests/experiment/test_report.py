"""A report of an experiment, with what happened in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.experiment.events import Asked, Event, Failed, SetUp, Told
from farm.experiment.experiment import Experiment
from farm.experiment.host import applied
from farm.experiment.report import write_report
from farm.experiment.trials import record_of
from tests.experiment.subjects import config_of

MODEL = (
    "[learn]\ngenerator = OptimizeAcqfGenerator\nacqf = qLogNoisyExpectedImprovement\n"
    "model = GPRegressionModel\n"
)


def history(config: str) -> list[Event]:
    points = np.random.default_rng(2).random((6, 1, 2))
    outcomes = np.arange(5.0)[:, None]
    return [
        SetUp(experiment=0, time=1.0, config_text=config, experiment_id="an id"),
        Asked(experiment=0, time=2.0, points=points, ids=tuple(range(6)), strategy=0, run=True),
        Told(experiment=0, time=3.0, points=points[:5], outcomes=outcomes, ids=tuple(range(5))),
        Failed(experiment=0, time=4.0, ids=(5,), error="ModelFailed: a <b> ended it"),
    ]


def written(config: str, out: Path, **options: str) -> str:
    events = history(config)
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
    assert "ModelFailed: a &lt;b&gt; ended it" in text
    assert text.count("<svg") == 2
    assert ("what the surrogate expects" in text) == bool(names)


def test_an_unknown_outcome_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'depth'.*outcome_1"):
        written(config_of(), tmp_path / "r.html", outcome="depth")
    assert not (tmp_path / "r.html").exists()
