"""The trials of an experiment, reconstructed from its events: each point and its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.definition import Config
from farm.experiment.config.reader import read_config
from farm.experiment.state.events import Asked, Event, Failed, Released, SetUp, Told
from farm.sweep.file.journal import PointStatus


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A point that was asked for, told, or both.

    point: shape (stimuli, d). outcome: DONE if it was told, CANCELLED if it was released. asked_at,
    told_at: Unix seconds; told_at is also that of a failure. values: of the outcomes. extra: other
    values of the tell. strategy: position of the one that generated it; filler: it fills the space
    instead. modelled: its outcomes count for models.
    """

    point: Array
    outcome: PointStatus = PointStatus.PENDING
    asked_at: float | None = None
    told_at: float | None = None
    values: Array | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    attempts: int = 1
    strategy: int | None = None
    filler: bool = False
    modelled: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ExperimentRecord:
    """An experiment and its trials, in the order in which they first occur."""

    number: int
    experiment_id: str
    seed: int
    config: Config
    trials: Sequence[Trial]


def record_of(events: Iterable[Event], number: int | None = None) -> ExperimentRecord:
    """Return the experiment of that number in a journal's events; None: the only one.

    Raises InvalidInput if there is none, or more than one.
    """
    setups: dict[int, SetUp] = {}
    own: list[Event] = []
    for event in events:
        if isinstance(event, SetUp):
            setups[event.experiment] = event
        elif number is None or event.experiment == number:
            own.append(event)
    if not setups:
        raise InvalidInput("the journal has no experiment yet")
    if number is None and len(setups) > 1:
        raise InvalidInput(
            f"the journal has {len(setups)} experiments, from 0 to {max(setups)}; specify --id N"
        )
    setup = setups.get(next(iter(setups)) if number is None else number)
    if setup is None:
        raise InvalidInput(f"the journal has no experiment {number}; the last is {max(setups)}")
    return ExperimentRecord(
        number=setup.experiment,
        experiment_id=setup.experiment_id,
        seed=setup.seed,
        config=read_config(setup.config_text),
        trials=_trials(own),
    )


def _trials(events: Iterable[Event]) -> list[Trial]:
    trials: list[Trial] = []
    places: dict[int, int] = {}  # by the id of the point

    def settle(place: int | None, **facts: Any) -> None:
        if place is not None:
            trials[place] = replace(trials[place], **facts)

    for event in events:
        match event:
            case Asked():
                for id, point in zip(event.ids, event.points, strict=True):
                    places[id] = len(trials)
                    trial = Trial(point, strategy=event.strategy, filler=event.filler)
                    trials.append(replace(trial, asked_at=event.time))
            case Told():
                modelled = event.modelled
                for k, point_id in enumerate(event.ids):
                    place = None if point_id is None else places.get(point_id)
                    if place is None:
                        place = len(trials)
                        trials.append(Trial(event.points[k]))
                    settle(
                        place,
                        point=event.points[k],
                        outcome=PointStatus.DONE,
                        told_at=event.time,
                        values=event.outcomes[k],
                        extra=event.extra_of(k),
                        modelled=bool(modelled[k]),
                    )
            case Failed():
                for id in event.ids:
                    settle(
                        places.get(id),
                        outcome=PointStatus.FAILED,
                        told_at=event.time,
                        error=event.error,
                        attempts=event.attempts,
                    )
            case Released():
                for id in event.ids:
                    settle(places.get(id), outcome=PointStatus.CANCELLED)
    return trials
