"""The life cycles of tasks, attempts and workers: exactly the rows of each table happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import pytest

from farm.scheduler import phases
from farm.scheduler.phases import ATTEMPTS, TASKS, WORKERS, AttemptPhase, TaskPhase, WorkerPhase
from farm.scheduler.state import TaskId, WorkerId
from farm.transitions import PhaseEvent, Transition, TransitionTable, words
from tests.scheduler.recorder import Recorder, asked_back, model, prefetched, sent

TABLES: list[TransitionTable[Any]] = [TASKS, ATTEMPTS, WORKERS]


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str, str]]:
    """Return the transitions made since the test began: table, phase and event."""
    seen: set[tuple[str, str, str]] = set()

    def look_up(event: PhaseEvent[Any], phase: IntEnum) -> IntEnum:
        seen.add((event.table, words(phase), event.name))
        then: IntEnum = dict.__getitem__(event, phase)
        return then

    monkeypatch.setattr(PhaseEvent, "__getitem__", look_up, raising=False)
    return seen


Scene = Callable[[Recorder], TaskId]
Step = Callable[[Recorder, TaskId], object]


def queued(farm: Recorder) -> TaskId:
    """Return a task in its queue; worker "w" exists and offers no slot."""
    farm.join("w", slots=0)
    return farm.submit()


def at_worker(farm: Recorder) -> TaskId:
    """Return a task on worker "w", behind one that runs there."""
    return prefetched(farm)[1]


def recalled(farm: Recorder) -> TaskId:
    """Return a task recalled from "w", because another worker is idle."""
    task = at_worker(farm)
    farm.after(9.0).join("other")
    farm.expect(asked_back("w", task))
    return task


def gone(farm: Recorder, *, drained: bool = False) -> TaskId:
    """Return a task in its queue that was lost with "gone", or returned."""
    farm.join("gone")
    task = farm.begin("gone")
    farm.leave("gone", drained=drained)
    farm.expect()
    return task


def sent_again(farm: Recorder) -> TaskId:
    """Return a task on "w" that was lost with "gone"."""
    task = gone(farm)
    farm.join("w")
    farm.expect(sent("w", task))
    return task


def slow(farm: Recorder) -> TaskId:
    """Return a task on "w", whose copy is on "other"."""
    farm.learn(1.0)
    farm.join("w")
    task = farm.begin("w")
    farm.after(5.0).join("other")
    farm.expect(sent("other", task))
    return task


def outrun(farm: Recorder) -> TaskId:
    """Return a task on "w" whose copy was answered."""
    task = slow(farm)
    farm.finish("other", task)
    return task


def runs_once(farm: Recorder) -> TaskId:
    """Return a task on "w" that must not run twice."""
    farm.join("w", model(repeatable=False))
    return farm.begin("w")


def cancelled(scene: Scene) -> Scene:
    """Return a scene whose task is cancelled at last."""

    def then_cancelled(farm: Recorder) -> TaskId:
        task = scene(farm)
        farm.scheduler.cancel(task)
        return task

    return then_cancelled


def worker(*, slots: int = 1, full: bool = False) -> Scene:
    """Return a scene of a worker "w" without a task."""

    def joined(farm: Recorder) -> TaskId:
        farm.join("w", slots=slots)
        farm.fill("w", full)
        return TaskId(0)

    return joined


USUAL: dict[tuple[str, str], Scene] = {
    ("task", "queued"): queued,
    ("task", "sent"): at_worker,
    ("task", "abandoned"): cancelled(at_worker),
    ("task", "outrun"): outrun,
    ("attempt", "held"): at_worker,
    ("attempt", "recalled"): recalled,
    ("attempt", "returned"): lambda farm: gone(farm, drained=True),
    ("attempt", "lost"): gone,
    ("worker", "open"): worker(),
    ("worker", "full"): worker(full=True),
    ("worker", "shut"): worker(slots=0),
    ("worker", "shut and full"): worker(slots=0, full=True),
}
"""A scene for each phase in which something may happen."""

SPECIAL: dict[tuple[str, str, str], Scene] = {
    ("task", "sent", "answered first"): slow,
    ("task", "abandoned", "answered first"): cancelled(slow),
    ("task", "sent", "given up"): runs_once,
    ("task", "queued", "answered late"): gone,
    ("task", "sent", "answered late"): sent_again,
}
"""Those for events that happen only in some of these scenes."""

STEPS: dict[str, Step] = {
    "sent": lambda farm, _: farm.resize("w", 1),
    "answered": lambda farm, task: farm.finish("w", task),
    "answered first": lambda farm, task: farm.finish("w", task),
    "answered late": lambda farm, task: farm.finish("gone", task),
    "given up": lambda farm, _: farm.leave("w"),
    "came back": lambda farm, _: farm.leave("w"),
    "cancelled": lambda farm, task: farm.scheduler.cancel(task),
    "recalled": lambda farm, _: farm.after(9.0).join("other"),
    "recall void": lambda farm, _: farm.resize("w", 1),
    "returned": lambda farm, task: farm.hand_back("w", task),
    "lost": lambda farm, task: farm.leave("w", running=[task]),
    "stops reading": lambda farm, _: farm.fill("w", True),
    "reads on": lambda farm, _: farm.fill("w", False),
    "offers no slot": lambda farm, _: farm.resize("w", 0),
    "offers slots": lambda farm, _: farm.resize("w", 2),
    "left": lambda farm, _: farm.leave("w"),
}
"""What triggers each event."""

ROWS = [(table.name, row) for table in TABLES for row in table]


def key(table: str, row: Transition[Any]) -> tuple[str, str, str]:
    return table, words(row.phase), row.event


@pytest.mark.parametrize(("table", "row"), ROWS, ids=[" ".join(key(*each)) for each in ROWS])
def test_every_row_happens(
    farm: Recorder, happened: set[tuple[str, str, str]], table: str, row: Transition[Any]
) -> None:
    phase, event = words(row.phase), row.event
    task = SPECIAL.get((table, phase, event), USUAL[table, phase])(farm)
    step = STEPS["answered late" if phase in ("returned", "lost") else event]
    record = farm.scheduler._open.by_id.get(task)
    there = farm.scheduler._workers.get(WorkerId("w"))
    attempts = () if record is None else record.attempts
    happened.clear()
    step(farm, task)
    farm.forget_actions()
    assert key(table, row) in happened
    things: dict[str, Sequence[Any]] = {"task": [record], "worker": [there], "attempt": attempts}
    if row.event != "recall void":  # it is recalled again at once
        assert row.then in [thing.phase for thing in things[table] if thing is not None]


def test_there_is_no_scene_or_step_without_a_row() -> None:
    rows = {key(table, row) for table, row in ROWS}
    assert SPECIAL.keys() <= rows
    assert USUAL.keys() == {(table, phase) for table, phase, _ in rows}
    assert STEPS.keys() == {event for _, _, event in rows}


@pytest.mark.parametrize(
    ("table", "kind"), [(TASKS, TaskPhase), (ATTEMPTS, AttemptPhase), (WORKERS, WorkerPhase)]
)
def test_every_phase_can_be_reached(table: TransitionTable[Any], kind: type[IntEnum]) -> None:
    reached = set(table.begins.values())
    for _ in table:
        reached |= {row.then for row in table if row.phase in reached}
    assert reached == set(kind)


def test_phases_know_what_they_mean() -> None:
    assert {phase for phase in TaskPhase if phase.has_caller} == {phases.QUEUED, phases.SENT}
    under_way = {phase for phase in AttemptPhase if not phase.is_over}
    assert under_way == {phases.HELD, phases.RECALLED}
    unread = {phase for phase in WorkerPhase if phase.has_unread}
    assert unread == {WorkerPhase.FULL, WorkerPhase.SHUT_AND_FULL}
