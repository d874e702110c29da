"""Trials from events: asked, told, failed, released, told without being asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.experiment.config.reader import read_config
from farm.experiment.state.events import Asked, Event, Failed, Finished, Released, SetUp, Told
from farm.experiment.state.trials import record_of
from farm.sweep.file.journal import PointStatus
from tests.support.experiment_clients import CONFIG

TEXT = read_config(CONFIG).text


def set_up(number: int = 0) -> SetUp:
    return SetUp(experiment=number, time=1.0, config_text=TEXT, experiment_id=f"e{number}", seed=9)


def asked(time: float, *ids: int, experiment: int = 0) -> Asked:
    points = np.array([[[id / 10, id]] for id in ids], dtype=np.float64)
    return Asked(experiment=experiment, time=time, points=points, ids=ids, strategy=0)


def told(time: float, ids: tuple[int | None, ...], *values: float, **extra: Any) -> Told:
    return Told(
        experiment=0,
        time=time,
        points=np.array([[[0.5, k]] for k in range(len(ids))], dtype=np.float64),
        outcomes=np.array(values, dtype=np.float64)[:, None],
        ids=ids,
        extra=extra,
    )


EVENTS: list[Event] = [
    set_up(),
    asked(2.0, 0, 1, 2),
    told(3.0, (1, None), 7.0, 8.0, note="both", each=["a", "b"]),
    Finished(experiment=0, time=4.0, strategy=0),
    asked(5.0, 3),
    Failed(experiment=0, time=6.0, ids=(2,), error="it broke", attempts=4),
    Released(experiment=0, time=7.0, ids=(3,)),
]


def test_what_became_of_each_point() -> None:
    record = record_of(EVENTS)
    assert (record.number, record.experiment_id, record.seed) == (0, "e0", 9)
    assert [t.outcome for t in record.trials] == [
        PointStatus.PENDING,
        PointStatus.DONE,
        PointStatus.FAILED,
        PointStatus.DONE,
        PointStatus.CANCELLED,
    ]
    pending, first, failed, unasked, released = record.trials
    assert (pending.asked_at, pending.told_at, pending.values) == (2.0, None, None)
    assert (first.asked_at, first.told_at) == (2.0, 3.0)
    assert first.values is not None
    assert (first.values.tolist(), first.point.tolist()) == ([7.0], [[0.5, 0.0]])
    assert first.extra == {"note": "both", "each": "a"}
    assert (unasked.asked_at, unasked.told_at, unasked.extra["each"]) == (None, 3.0, "b")
    assert (failed.error, failed.attempts, failed.told_at) == ("it broke", 4, 6.0)
    assert released.asked_at == 5.0


def test_which_experiment() -> None:
    two = [*EVENTS, set_up(1), asked(9.0, 0, experiment=1)]
    assert record_of(two, 1).experiment_id == "e1"
    assert len(record_of(two, 1).trials) == 1
    assert len(record_of(two, 0).trials) == 5
    with pytest.raises(InvalidInput, match="has 2 experiments, from 0 to 1; specify --id N"):
        record_of(two)
    with pytest.raises(InvalidInput, match="no experiment 2"):
        record_of(two, 2)
    with pytest.raises(InvalidInput, match="has no experiment yet"):
        record_of([])


def test_only_finite_outcomes_that_count_are_modelled() -> None:
    unused = replace(told(3.0, (2,), 5.0), model_data=False)
    record = record_of([set_up(), asked(2.0, 0, 1, 2), told(3.0, (0, 1), 7.0, np.nan), unused])
    assert [trial.modelled for trial in record.trials] == [True, False, False]
