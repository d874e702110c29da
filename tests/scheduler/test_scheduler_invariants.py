"""`invariants.check` detects every kind of wrong state: each is produced from a valid state."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from farm.call import Operation
from farm.scheduler.accounts import SLOT, Account, ClientUsage, Usage
from farm.scheduler.phases import ABANDONED, ENDED, LOST, QUEUED, SENT, WorkerPhase
from farm.scheduler.placement import FULL
from farm.scheduler.queues import ClientTasks, Level
from farm.scheduler.sequences import BoundQueue, LiveSequence, Sequences
from farm.scheduler.state import Attempt, Lot, Task
from farm.sequences import SequenceLimits, SequenceStep
from tests.scheduler.invariants import check
from tests.scheduler.recorder import Recorder, call, stateful, step


class Scene(Recorder):
    """Two clients' calls run on "w" and wait in two queues; an idle worker has another model."""

    def __init__(self) -> None:
        super().__init__()
        self.join("w", slots=2)
        self.join("idle", "n")
        first = self.submit_many(2, client="a")
        described = self.submit(call(operation=Operation.DESCRIBE))
        self.forget_actions()
        waiting = [self.submit(client=name) for name in "aabb"]
        waiting.append(self.submit(call(operation=Operation.GRADIENT), priority=1))
        self.forget_actions()
        self.running, self.second = (self.task(each) for each in first)
        self.described = self.task(described)
        self.waiting = [self.task(each) for each in waiting]
        check(self.scheduler)

    def line(self) -> ClientTasks:
        line = self.waiting[0].line
        assert line is not None
        return line

    def lot(self) -> Lot:
        assert self.running.attempt.lot is not None
        return self.running.attempt.lot


def add_former(scene: Scene, task: Task) -> None:
    """Treat a current attempt as a former one."""
    task.add_former(scene.second.attempt)


def move_client(scene: Scene) -> None:
    """Count the waiting tasks for another client."""
    a, b = (scene.account(name).client for name in "ab")
    a.queued, b.queued = a.queued - 1, b.queued + 1


def set_later_turn(scene: Scene) -> None:
    """Make the other client due without reordering its line."""
    scene.account("b").held = -SLOT
    level = scene.line().level
    level._heap.sort(key=lambda entry: entry[3] is not scene.line())


def hide_level(scene: Scene) -> None:
    """Add a higher rank that the queue does not know."""
    queue = scene.queue()
    level = queue._levels[4] = Level(4)
    task = scene.waiting[0]
    scene.line().level.remove(task, scene.line())
    level.open(task)


def hide_from_index(scene: Scene) -> None:
    """Forget a task in the index by config only."""
    scene.line().by_config()
    scene.line().remove_from_index(scene.waiting[0])


CORRUPTIONS: list[tuple[str, Callable[[Scene], object]]] = [
    ("a task is in its queue or at a worker", lambda s: s.line().tasks.popitem()),
    ("and not in both", lambda s: s.worker("w").held.update({s.second.id: s.running})),
    ("the count of waiting tasks is right", lambda s: setattr(s.scheduler._open, "queued", 4)),
    ("so are those of the clients", move_client),
    ("a waiting task is queued", lambda s: setattr(s.waiting[0], "phase", SENT)),
    ("queued and has a caller", lambda s: setattr(s.waiting[0], "phase", ABANDONED)),
    ("a waiting task has no current attempt", lambda s: add_former(s, s.waiting[0])),
    ("a waiting task knows its line", lambda s: setattr(s.waiting[0], "line", None)),
    ("and its line knows the task", lambda s: setattr(s.waiting[0], "line", s.waiting[4].line)),
    ("which is its client's", lambda s: setattr(s.line(), "account", s.account("b"))),
    ("knows of other configs", lambda s: setattr(s.line(), "config", "another")),
    ("which it finds by config", hide_from_index),
    ("its lines where others wait", lambda s: s.account("a").usage.rivals.clear()),
    ("a worker's lots are those of its tasks", lambda s: setattr(s.worker("w"), "lots", 3)),
    ("a worker knows its exclusive lots", lambda s: setattr(s.worker("w"), "exclusive_lots", 1)),
    ("the index knows the worker's level", lambda s: setattr(s.worker("w"), "level", 0)),
    ("a worker counts its waiting lots", lambda s: setattr(s.worker("w"), "behind", 1)),
    ("a worker is busy while it holds", lambda s: setattr(s.worker("w"), "busy_since", None)),
    ("a worker is busy while it holds", lambda s: setattr(s.worker("idle"), "busy_since", 1.0)),
    ("nothing waits at a worker behind a long", lambda s: setattr(s.worker("w"), "most_slots", 1)),
    ("a lot counts its tasks", lambda s: setattr(s.lot(), "remaining", 2)),
    ("a worker that is gone", lambda s: setattr(s.worker("w"), "phase", WorkerPhase.GONE)),
    ("offers no slot is shut", lambda s: setattr(s.worker("w"), "phase", WorkerPhase.SHUT)),
    ("offers no slot is shut", lambda s: setattr(s.worker("idle"), "slots", 0)),
    ("a task at a worker was sent there", lambda s: setattr(s.described, "phase", QUEUED)),
    ("a task at a worker was sent there", lambda s: setattr(s.described, "phase", ENDED)),
    ("a task knows its worker", lambda s: setattr(s.running.attempt, "worker", s.worker("idle"))),
    ("its last attempt is in progress", lambda s: setattr(s.running.attempt, "phase", LOST)),
    ("and its former attempts are over", lambda s: add_former(s, s.running)),
    ("a task at a worker waits in no line", lambda s: setattr(s.running, "line", s.line())),
    ("only models it has", lambda s: setattr(s.worker("w"), "pool", s.pool("n"))),
    ("a task in a slot has a lot", lambda s: setattr(s.described, "queue", s.queue())),
    ("a queue knows its size", lambda s: setattr(s.queue(), "size", 3)),
    ("and its calls in flight", lambda s: setattr(s.queue().counts, "in_flight", 3)),
    ("a model knows where tasks wait", lambda s: s.queue().model.waiting.clear()),
    ("a client's tasks are counted", lambda s: setattr(s.account("a"), "active", 3)),
    ("a client knows the slots it holds", lambda s: setattr(s.account("a"), "held", SLOT)),
    ("no refund exceeds the charge", lambda s: setattr(s.account("a"), "used_s", -1.0)),
    ("a model's group knows it", lambda s: s.queue().model.accounts.group.models.clear()),
    ("counted over all models", lambda s: setattr(s.account("a").usage, "waiting", 9)),
    ("so are the slots it holds", lambda s: setattr(s.account("a").usage, "held", 9 * SLOT)),
    ("and its callers", lambda s: setattr(s.account("a").usage, "single", 9)),
    ("rank comes first", hide_level),
    ("the head has the next turn", set_later_turn),
    ("a pool counts its workers", lambda s: setattr(s.pool(), "size", 2)),
    ("index holds each of its workers once", lambda s: s.pool()._shelves[FULL].by_end.clear()),
    ("a pool counts the lots waiting at it", lambda s: setattr(s.pool(), "behind", 1)),
    ("lots that wait at workers are counted", lambda s: setattr(s.scheduler._pools, "behind", 7)),
    (
        "none is to be checked before",
        lambda s: s.scheduler._pools.rechecks.update({s.pool(): -1.0}),
    ),
    ("its models know the pool", lambda s: s.queue().model.pools.clear()),
]


class CopiedScene(Recorder):
    """A slow call of client "a" and its copy run on "w" and "v"; one that "v" answered, on "u"."""

    def __init__(self) -> None:
        super().__init__()
        self.learn(1.0, count=40)
        self.join("u")
        answered = self.submit()
        self.forget_actions()
        self.after(5.0).join("v")
        self.forget_actions()
        self.finish("v", answered)
        self.join("w")
        self.resize("v", 0)
        self.forget_actions()
        slow = self.submit(client="a")
        self.forget_actions()
        self.after(5.0).resize("v", 1)
        self.forget_actions()
        self.outrun, self.slow = self.task(answered), self.task(slow)

    def copy(self) -> Attempt:
        assert self.slow.copy is not None
        return self.slow.copy


def swap_held_copy(scene: CopiedScene) -> None:
    """Hold the copied task once and another one twice: the counts agree."""
    del scene.worker("w").held[scene.slow.id]
    scene.worker("w").held[scene.outrun.id] = scene.outrun


def forget_copy(task: Task) -> None:
    task.past = task.past._replace(copied=False)


COPY_CORRUPTIONS: list[tuple[str, Callable[[CopiedScene], object]]] = [
    ("a task is in its queue or at a worker", lambda s: setattr(s.slow, "copy", None)),
    ("a task is at one worker, and its copy", swap_held_copy),
    ("a worker counts its tasks that were", lambda s: setattr(s.worker("u"), "outrun", 0)),
    ("a task knows its worker", lambda s: setattr(s.copy(), "worker", s.slow.attempt.worker)),
    ("only a copied task is answered by", lambda s: forget_copy(s.outrun)),
    ("and its client is done with it", lambda s: setattr(s.outrun.attempt, "charged_s", 1.0)),
    ("a task knows that it was copied", lambda s: forget_copy(s.slow)),
    ("one of two attempts is the copy", lambda s: setattr(s.copy(), "is_copy", False)),
    ("the client holds and pays for one", lambda s: setattr(s.copy(), "held", 1)),
    ("of its own", lambda s: setattr(s.copy().lot, "size", 2)),
    ("with those beyond one for each call", lambda s: setattr(s.queue().counts, "extra", 0)),
]


class SequenceScene(Recorder):
    """On "w" sequence 1 is idle, 2 runs with a call behind it, and 3 waits for the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.join("w", stateful(most=3))
        for each in (1, 2, 3):
            task = self.submit(step(each, "s"))
            self.forget_actions()
            self.finish("w", task)
            self.forget_actions()
        running, behind, waiting = (self.submit(step(each)) for each in (2, 2, 3))
        self.forget_actions()
        self.running, self.behind = self.task(running), self.task(behind)
        self.waiting = self.task(waiting)

    def live(self, each: int) -> LiveSequence:
        return self.sequences().live[each]

    def sequences(self) -> Sequences:
        found = self.queue("s").model.sequences
        assert found is not None
        return found

    def bound(self) -> BoundQueue:
        return self.sequences().bound[self.worker("w")]


def turn_round(scene: SequenceScene) -> None:
    """Let the later call of a sequence be its current one."""
    live = scene.live(2)
    live.current = scene.behind
    live.waiting = OrderedDict({scene.running.id: scene.running})


SEQUENCE_CORRUPTIONS: list[tuple[str, Callable[[SequenceScene], object]]] = [
    ("a model counts the calls that wait", lambda s: setattr(s.queue("s").counts, "aside", 3)),
    ("a queue of a worker ends with it", lambda s: s.scheduler._workers.clear()),
    ("and with the last sequence there", lambda s: setattr(s.bound(), "sequences", 2)),
    (
        "a worker has so many places",
        lambda s: setattr(s.sequences(), "limits", SequenceLimits(2, 1.0)),
    ),
    ("and knows its size", lambda s: setattr(s.bound(), "size", 2)),
    ("and is known when calls wait in it", lambda s: s.queue("s").model.waiting.clear()),
    ("calls of sequences wait there", lambda s: setattr(s.waiting, "sequence", None)),
    ("each the first of its sequence", lambda s: setattr(s.live(3), "current", s.running)),
    ("which that worker has", lambda s: setattr(s.live(3), "queue", None)),
    ("and which has begun", lambda s: setattr(s.waiting.call, "step", SequenceStep(3, start=True))),
    ("the places taken at workers", lambda s: setattr(s.sequences(), "places_taken", 2)),
    ("a sequence is found by its id", lambda s: setattr(s.live(1), "id", 9)),
    ("each call of a sequence is known to it", lambda s: s.sequences().live.pop(3)),
    ("a sequence without calls is idle", lambda s: s.sequences().idle.clear()),
    ("and goes on", lambda s: setattr(s.live(1), "closed", True)),
    ("and has its state at a worker", lambda s: setattr(s.live(1), "queue", None)),
    ("calls are in order", turn_round),
    (
        "after its end it begins anew",
        lambda s: setattr(s.running.call, "step", SequenceStep(2, end=True)),
    ),
    ("a call waits behind its sequence", lambda s: setattr(s.behind, "line", s.waiting.line)),
]


TABLES: list[tuple[type[Recorder], list[tuple[str, Callable[[Any], object]]]]] = [
    (Scene, CORRUPTIONS),
    (CopiedScene, COPY_CORRUPTIONS),
    (SequenceScene, SEQUENCE_CORRUPTIONS),
]
CASES = [(kind, *row) for kind, table in TABLES for row in table]


@pytest.mark.parametrize(
    ("kind", "complaint", "corrupt"),
    CASES,
    ids=[f"{i} {complaint}" for i, (_, complaint, _) in enumerate(CASES)],
)
def test_every_corruption_is_seen(
    kind: type[Recorder], complaint: str, corrupt: Callable[[Any], object]
) -> None:
    scene = kind()
    check(scene.scheduler)
    corrupt(scene)
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        check(scene.scheduler)


def test_equal_places_in_the_order_need_no_order_of_lines() -> None:
    """A removed line may have had exactly the key of the one that followed it."""
    level = Level(0)
    account = Account(ClientUsage("a"), Usage("a"))
    assert not ClientTasks(account, level) < ClientTasks(account, level)
    assert isinstance(ClientTasks(account, level).tasks, OrderedDict)
