"""Events as JSON: encoding and decoding preserve them, and other values are refused."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.experiment.state.events import (
    Asked,
    Event,
    Failed,
    Finished,
    Released,
    RunPhase,
    RunState,
    Seeded,
    SetUp,
    Told,
    from_json,
    to_json,
)

BASE: dict[str, Any] = {"experiment": 3, "time": 12.5}
EVENTS: list[Event] = [
    SetUp(**BASE, config_text="[common]\nμ = 1\n", experiment_id="a-b", seed=7),
    Asked(
        **BASE,
        points=np.array([[[1.0, -2.5], [0.1, 1e-300]]]),
        ids=(4,),
        strategy=1,
        note="GlobalMI as a relative",
        post_range=0.5,
        filler=True,
    ),
    Asked(**BASE, points=np.empty((0, 1, 2)), ids=(), strategy=0),
    Asked(**BASE, points=np.empty((2, 1, 0)), ids=(0, 1), strategy=0),
    Told(
        **BASE,
        points=np.array([[[1.0]], [[2.0]]]),
        outcomes=np.array([[math.nan, 1.0], [0.5, -math.inf]]),
        ids=(None, 9),
        model_data=False,
        extra={"note": "héllo", "deep": [1, {"a": None}], "odd": math.nan},
    ),
    Seeded(
        **BASE,
        strategy=1,
        points=np.array([[[1.0, 2.0]]]),
        outcomes=np.array([[0.5]]),
        note="[s] initial trials: 1",
    ),
    Failed(**BASE, ids=(1, 2), error="it broke", attempts=3),
    Finished(**BASE, strategy=2),
    Released(**BASE, ids=(5,)),
    RunState(**BASE, phase=RunPhase.PAUSED, why="the budget is spent"),
    RunState(**BASE, phase=RunPhase.RUNNING, budget=9, version="file:1", job="7 on big"),
]


def as_text(event: Event) -> str:
    return json.dumps(to_json(event), allow_nan=False, sort_keys=True)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    again = from_json(json.loads(as_text(event)))
    assert type(again) is type(event)
    assert as_text(again) == as_text(event)
    for field in fields(event):
        was, read = getattr(event, field.name), getattr(again, field.name)
        assert type(read) is type(was), field.name
        if isinstance(was, np.ndarray):
            assert read.dtype == was.dtype
            assert np.array_equal(read, was, equal_nan=True)
            assert read.shape == was.shape
        elif field.name != "extra":
            assert read == was


def test_every_kind_is_tried() -> None:
    kinds = {type(event).__name__ for event in EVENTS}
    assert kinds == {kind.__name__ for kind in Event.__subclasses__()}


def test_extra_keeps_what_json_can_say() -> None:
    read = from_json(to_json(EVENTS[4]))
    assert isinstance(read, Told)
    assert read.extra == {"note": "héllo", "deep": [1, {"a": None}], "odd": "nan"}


def test_which_trials_are_modelled() -> None:
    outcomes = np.array([[0.0, 1.0], [math.nan, 1.0], [1.0, math.inf]])
    points = np.zeros((3, 1, 1))
    told = Told(**BASE, points=points, outcomes=outcomes, ids=(None,) * 3)
    assert told.modelled.tolist() == [True, False, False]
    told = Told(**BASE, points=points, outcomes=outcomes, ids=(None,) * 3, model_data=False)
    assert told.modelled.tolist() == [False] * 3


def test_fields_that_are_younger_than_an_event_have_their_defaults() -> None:
    old = to_json(EVENTS[1])
    del old["filler"], old["note"]
    read = from_json(old | {"of_the_future": 1})
    assert isinstance(read, Asked)
    assert (read.filler, read.note) == (False, "")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "event None is unknown; expected one of setup, asked"),
        ({"event": "sung"}, "event 'sung' is unknown"),
        ({"event": ["told"]}, "is unknown"),
        ({"event": "finished", "time": 1.0}, "event 'finished' is damaged: .*missing"),
        ({"event": "run", **BASE, "phase": "flying"}, "event 'run' is damaged: 'flying'"),
        ({**to_json(EVENTS[1]), "points": {"shape": [9], "values": [1]}}, "'asked' is damaged"),
        ({**to_json(EVENTS[1]), "points": {"values": [1]}}, "'asked' is damaged"),
        ({**to_json(EVENTS[1]), "points": [1]}, "'asked' is damaged"),
        ({**to_json(EVENTS[1]), "ids": 5}, "'asked' is damaged"),
    ],
)
def test_what_is_no_event_is_refused(value: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        from_json(value)


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (4, [4]), (9, [4, 4, 1])])
def test_trials_in_pieces(count: int, sizes: list[int]) -> None:
    told = Told(
        experiment=1,
        time=2.0,
        points=np.arange(2.0 * count).reshape(count, 1, 2),
        outcomes=np.arange(1.0 * count).reshape(count, 1),
        ids=tuple(range(count)),
        extra={"seconds": list(range(count)), "who": "me", "pair": [1, 2]},
    )
    pieces = told.in_pieces(4)
    assert [len(piece.points) for piece in pieces] == sizes
    assert [i for piece in pieces for i in piece.ids] == list(range(count))
    assert [s for piece in pieces for s in piece.extra["seconds"]] == list(range(count))
    assert all((p.extra["who"], p.extra["pair"]) == ("me", [1, 2]) for p in pieces)
    if pieces:
        assert np.array_equal(np.concatenate([p.points for p in pieces]), told.points)
        assert np.array_equal(np.concatenate([p.outcomes for p in pieces]), told.outcomes)
