"""The life cycles of tasks, attempts and workers: exactly the rows of each table happen."""

from __future__ import annotations

import ast
from collections.abc import Callable
from enum import IntEnum
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from farm.scheduler import phases
from farm.scheduler.phases import ATTEMPTS, TASKS, WORKERS, AttemptPhase, TaskPhase, WorkerPhase
from farm.scheduler.state import TaskId
from farm.transitions import PhaseEvent, TransitionTable, words
from tests.support.scheduler_recorder import Recorder, asked_back, copied, model, prefetched, sent

TABLES: list[TransitionTable[Any]] = [TASKS, ATTEMPTS, WORKERS]
ROWS = {(table.name, words(row.phase), row.event) for table in TABLES for row in table}

Ends = Callable[[Recorder, TaskId], object]
ENDS: list[Ends] = [
    lambda farm, task: farm.finish("w", task),
    lambda farm, task: farm.hand_back("w", task),
    lambda farm, task: farm.leave("w", running=[task]),
    lambda farm, task: farm.resize("w", 1),
]
"""What may happen to an attempt, or to its worker."""


def workers_change() -> None:
    farm = Recorder()
    farm.join("w")
    for slots, full in ((1, True), (1, False), (0, False), (1, False), (1, True), (0, True)):
        farm.resize("w", slots)
        farm.fill("w", full)
    farm.resize("w", 1)
    farm.resize("w", 0)
    for full in (False, True):
        farm.fill("w", full)
    for slots, full in product((0, 1), (False, True)):
        farm.join("other", slots=slots)
        farm.fill("other", full)
        farm.leave("other")


def attempts_end() -> None:
    """One that is held, by its caller or for no one; one that was recalled."""
    for end, cancelled in product(ENDS, (False, True)):
        farm = Recorder()
        farm.join("w", model(repeatable=False))
        task = farm.begin("w")
        if cancelled:
            farm.scheduler.cancel(task)
        end(farm, task)
    for end in ENDS:
        farm = Recorder()
        task = prefetched(farm)[1]
        farm.after(9.0).join("other")
        farm.expect(asked_back("w", task))
        end(farm, task)


def answers_come_late() -> None:
    """While the task waits again, and while it runs elsewhere; another one is cancelled."""
    for drained, runs in product((False, True), (False, True)):
        farm = Recorder()
        farm.join("gone")
        task = farm.begin("gone")
        farm.leave("gone", drained=drained)
        if runs:
            farm.join("w")
            farm.expect(sent("w", task))
        farm.scheduler.cancel(farm.submit())
        farm.finish("gone", task)


def copies_are_answered_first() -> None:
    for cancelled, leaves in product((False, True), (False, True)):
        farm = Recorder()
        task = copied(farm)
        if cancelled:
            farm.scheduler.cancel(task)
        farm.finish("w2", task)
        farm.leave("w1") if leaves else farm.finish("w1", task)
        assert len(farm.scheduler) == 0


def test_exactly_the_rows_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: set[tuple[str, str, str]] = set()

    def look_up(event: PhaseEvent[Any], phase: IntEnum) -> IntEnum:
        happened.add((event.table, words(phase), event.name))
        then: IntEnum = dict.__getitem__(event, phase)
        return then

    monkeypatch.setattr(PhaseEvent, "__getitem__", look_up, raising=False)
    for scene in (workers_change, attempts_end, answers_come_late, copies_are_answered_first):
        scene()
    assert happened == ROWS


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


def test_phases_change_by_the_tables_only() -> None:
    """`self.phase = EVENT[self.phase]`, but where a worker joins without slots."""
    assigned = [
        node.value
        for path in Path(phases.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == "phase"
    ]
    others = [value for value in assigned if not isinstance(value, ast.Subscript)]
    assert [ast.unparse(value) for value in others] == ["SHUT"]
    slices = {ast.unparse(value.slice) for value in assigned if isinstance(value, ast.Subscript)}
    assert slices == {"self.phase", "phase"}
