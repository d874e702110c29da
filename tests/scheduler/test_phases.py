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
from tests.scheduler.recorder import SHORT_S, Recorder, model

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


def queued(farm: Recorder) -> TaskId:
    """Return a task in its queue; worker "w" exists and offers no slot."""
    farm.join("w")
    farm.resize("w", 0)
    task = farm.submit()
    farm.forget_actions()
    return task


def at_worker(farm: Recorder) -> TaskId:
    """Return a task on worker "w", behind one that runs there."""
    farm.learn(SHORT_S)
    farm.join("w")
    task = farm.submit_many(2)[1]
    farm.forget_actions()
    return task


def recalled(farm: Recorder) -> TaskId:
    """Return a task recalled from "w", because another worker is idle."""
    task = at_worker(farm)
    farm.after(9.0).join("other")
    farm.forget_actions()
    assert farm.task(task).attempt.phase is AttemptPhase.RECALLED
    return task


def lost(farm: Recorder) -> TaskId:
    """Return a task in its queue that was lost with "gone"."""
    farm.join("gone")
    task = farm.submit()
    farm.forget_actions()
    farm.leave("gone")
    farm.forget_actions()
    return task


def returned(farm: Recorder) -> TaskId:
    """Return a task in its queue that "gone" did not begin before it left."""
    farm.join("gone")
    task = farm.submit()
    farm.forget_actions()
    farm.leave("gone", drained=True)
    farm.forget_actions()
    return task


def sent_again(farm: Recorder) -> TaskId:
    """Return a task on "w" that was lost with "gone"."""
    task = lost(farm)
    farm.join("w")
    farm.forget_actions()
    return task


def abandoned(farm: Recorder) -> TaskId:
    """Return a task on "w" whose caller has cancelled it."""
    task = at_worker(farm)
    farm.scheduler.cancel(task)
    return task


def copied(farm: Recorder) -> TaskId:
    """Return a slow task on "w", whose copy is on "other"."""
    farm.learn(1.0)
    farm.join("w")
    task = farm.submit()
    farm.forget_actions()
    farm.after(5.0).join("other")
    farm.forget_actions()
    assert farm.task(task).copy is not None
    return task


def copied_and_abandoned(farm: Recorder) -> TaskId:
    task = copied(farm)
    farm.scheduler.cancel(task)
    return task


def outrun(farm: Recorder) -> TaskId:
    """Return a task on "w" whose copy was answered."""
    task = copied(farm)
    farm.finish("other", task)
    return task


def runs_once(farm: Recorder) -> TaskId:
    """Return a task on "w" that must not run twice."""
    farm.join("w", model(repeatable=False))
    task = farm.submit()
    farm.forget_actions()
    return task


Scene = Callable[[Recorder], TaskId]
Step = Callable[[Recorder, TaskId], object]


def full_worker(farm: Recorder) -> TaskId:
    farm.join("w")
    farm.fill("w", True)
    return TaskId(0)


def shut_worker(farm: Recorder) -> TaskId:
    farm.join("w", slots=0)
    return TaskId(0)


def open_worker(farm: Recorder) -> TaskId:
    farm.join("w")
    return TaskId(0)


def shut_and_full_worker(farm: Recorder) -> TaskId:
    full_worker(farm)
    farm.resize("w", 0)
    return TaskId(0)


def answer(farm: Recorder, task: TaskId) -> None:
    farm.finish("w", task)


def answer_late(farm: Recorder, task: TaskId) -> None:
    farm.finish("gone", task)


def leave(farm: Recorder, _: TaskId) -> None:
    farm.leave("w")


def leave_drained(farm: Recorder, _: TaskId) -> None:
    farm.leave("w", drained=True)


def cancel(farm: Recorder, task: TaskId) -> None:
    farm.scheduler.cancel(task)


def lose(farm: Recorder, task: TaskId) -> None:
    farm.leave("w", running=[task])


def offer(slots: int) -> Step:
    return lambda farm, _: farm.resize("w", slots)


def fill(full: bool) -> Step:
    return lambda farm, _: farm.fill("w", full)


SCENES: dict[tuple[str, str, str], tuple[Scene, Step]] = {
    ("task", "queued", "sent"): (queued, offer(1)),
    ("task", "sent", "answered"): (at_worker, answer),
    ("task", "abandoned", "answered"): (abandoned, answer),
    ("task", "outrun", "answered"): (outrun, answer),
    ("task", "sent", "answered first"): (copied, answer),
    ("task", "abandoned", "answered first"): (copied_and_abandoned, answer),
    ("task", "outrun", "given up"): (outrun, leave),
    ("task", "sent", "came back"): (at_worker, leave),
    ("task", "sent", "given up"): (runs_once, leave),
    ("task", "abandoned", "given up"): (abandoned, leave),
    ("task", "queued", "cancelled"): (queued, cancel),
    ("task", "sent", "cancelled"): (at_worker, cancel),
    ("task", "queued", "answered late"): (lost, answer_late),
    ("task", "sent", "answered late"): (sent_again, answer_late),
    ("attempt", "held", "recalled"): (at_worker, lambda farm, _: farm.after(9.0).join("other")),
    ("attempt", "recalled", "recall void"): (recalled, offer(1)),
    ("attempt", "held", "answered"): (at_worker, answer),
    ("attempt", "recalled", "answered"): (recalled, answer),
    ("attempt", "returned", "answered"): (returned, answer_late),
    ("attempt", "lost", "answered"): (lost, answer_late),
    ("attempt", "held", "returned"): (at_worker, leave_drained),
    ("attempt", "recalled", "returned"): (
        recalled,
        lambda farm, task: farm.hand_back("w", task),
    ),
    ("attempt", "held", "lost"): (at_worker, lose),
    ("attempt", "recalled", "lost"): (recalled, lose),
    ("worker", "open", "stops reading"): (open_worker, fill(True)),
    ("worker", "full", "reads on"): (full_worker, fill(False)),
    ("worker", "open", "offers no slot"): (open_worker, offer(0)),
    ("worker", "shut", "offers slots"): (shut_worker, offer(2)),
    ("worker", "full", "offers no slot"): (full_worker, offer(0)),
    ("worker", "shut and full", "offers slots"): (shut_and_full_worker, offer(1)),
    ("worker", "shut", "stops reading"): (shut_worker, fill(True)),
    ("worker", "shut and full", "reads on"): (shut_and_full_worker, fill(False)),
    ("worker", "open", "left"): (open_worker, leave),
    ("worker", "full", "left"): (full_worker, leave),
    ("worker", "shut", "left"): (shut_worker, leave),
    ("worker", "shut and full", "left"): (shut_and_full_worker, leave),
}
"""For each row of the tables, a scene in which it can happen, and the step that triggers it."""

ROWS = [(table.name, row) for table in TABLES for row in table]


def key(table: str, row: Transition[Any]) -> tuple[str, str, str]:
    return table, words(row.phase), row.event


@pytest.mark.parametrize(("table", "row"), ROWS, ids=[" ".join(key(*each)) for each in ROWS])
def test_every_row_happens(
    farm: Recorder, happened: set[tuple[str, str, str]], table: str, row: Transition[Any]
) -> None:
    scene, step = SCENES[key(table, row)]
    task = scene(farm)
    record, worker = (
        farm.scheduler._open.by_id.get(task),
        farm.scheduler._workers.get(WorkerId("w")),
    )
    attempts = () if record is None else record.attempts
    happened.clear()
    step(farm, task)
    farm.forget_actions()
    assert key(table, row) in happened
    things: dict[str, Sequence[Any]] = {"task": [record], "worker": [worker], "attempt": attempts}
    if row.event != "recall void":  # it is recalled again at once
        assert row.then in [thing.phase for thing in things[table] if thing is not None]


def test_there_is_no_scene_without_a_row() -> None:
    assert set(SCENES) == {key(table, row) for table, row in ROWS}


@pytest.mark.parametrize(
    ("table", "kind"), [(TASKS, TaskPhase), (ATTEMPTS, AttemptPhase), (WORKERS, WorkerPhase)]
)
def test_every_phase_can_be_reached(table: TransitionTable[Any], kind: type[IntEnum]) -> None:
    reached = set(table.begins.values())
    for _ in table:
        reached |= {row.then for row in table if row.phase in reached}
    assert reached == set(kind)


def test_a_task_has_a_caller_until_it_is_answered_or_cancelled() -> None:
    assert {phase for phase in TaskPhase if phase.has_caller} == {phases.QUEUED, phases.SENT}


def test_attempts_know_whether_they_are_over() -> None:
    under_way = {phase for phase in AttemptPhase if not phase.is_over}
    assert under_way == {phases.HELD, phases.RECALLED}


def test_workers_know_whether_they_have_something_to_read() -> None:
    unread = {phase for phase in WorkerPhase if phase.has_unread}
    assert unread == {WorkerPhase.FULL, WorkerPhase.SHUT_AND_FULL}
