"""Events: what is kept, in which words, and that memory is bounded."""

from __future__ import annotations

from farm.call import WorkerInfo
from farm.dispatcher.events import EVENTS_KEPT, Departure, Events
from farm.errors import LossCause

WORKER = WorkerInfo("node1/0", ())


def test_a_loss_is_not_a_worker_that_left() -> None:
    events = Events()
    events.joined(WORKER, None)
    events.left(WORKER, Departure("was drained", drained=True))
    events.left(WORKER, Departure("its process ended by signal 9"))
    assert [row["event"] for row in events.snapshot()] == ["joined", "left", "lost"]
    assert events.snapshot()[-1]["text"] == "its process ended by signal 9"


def test_a_worker_that_its_supervisor_stopped_is_not_lost() -> None:
    events = Events()
    events.left(WORKER, Departure("stopped by its supervisor", LossCause.STOPPED))
    assert events.snapshot()[0]["event"] == "left"


def test_events_are_bounded() -> None:
    events = Events()
    for number in range(3 * EVENTS_KEPT):
        events.note("joined", f"node/{number}", "")
    kept = events.snapshot()
    assert len(kept) == EVENTS_KEPT
    assert kept[-1]["worker"] == f"node/{3 * EVENTS_KEPT - 1}"
