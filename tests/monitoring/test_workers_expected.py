"""Workers that are expected and do not join in time."""

from __future__ import annotations

import pytest

from farm import wording
from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.monitoring.workers import ExpectedWorkers
from tests.support.coroutines import on_loop, until


def of(supervisor: str, number: int, seats: int) -> WorkerInfo:
    labels = {"supervisor": supervisor, "seats": str(seats)}
    return WorkerInfo(f"{supervisor}-{number}", (), labels=labels)


class Watched:
    """A dispatcher whose workers are expected."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher([])
        self.workers = ExpectedWorkers(self.dispatcher)

    def missing(self) -> list[tuple[str, str]]:
        events = self.dispatcher.snapshot()["events"]
        return [(e["worker"], e["text"]) for e in events if e["event"] == "missing"]

    def join(self, *infos: WorkerInfo) -> None:
        for info in infos:
            self.workers.joined(info, None)


@on_loop
async def test_workers_that_do_not_join_in_time_are_missed_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wording, "JOIN_S", 0.05)
    watched = Watched()
    watched.join(*(of("n1/7", number, 8) for number in range(4)))
    watched.join(of("n2/7", 0, 1), WorkerInfo("n3/1-a", ()))  # all of them; one without labels
    watched.workers.expect("n3/7", 2)  # the farm's own, of which none joins
    assert watched.workers.shown() == {}
    await until(lambda: len(watched.missing()) == 2)
    text = "8 workers expected, 4 have joined after 0.05 s"
    assert watched.missing()[0] == ("n1", text)
    assert watched.missing()[1] == ("n3", "2 workers expected, 0 have joined after 0.05 s")
    assert f"n1: {text}" in caplog.text
    assert watched.dispatcher.snapshot()["expected"] == {"workers": 11, "joined": 5}
    watched.join(*(of("n1/7", number, 8) for number in range(4, 8)))
    watched.join(*(of("n3/7", number, 2) for number in range(2)))
    assert watched.workers.shown() == {}
    assert len(watched.missing()) == 2


@on_loop
async def test_workers_that_left_are_expected_no_more_unless_they_were_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wording, "JOIN_S", 0.05)
    watched = Watched()
    infos = [of("n1/7", number, 3) for number in range(3)]
    gone = [of("n2/7", number, 9) for number in range(3)]
    watched.join(*infos[:2], *gone)
    watched.workers.left(infos[0], Departure("drained", drained=True))
    for info in gone:
        watched.workers.left(info, Departure("its connection was lost"))
    await until(watched.missing)
    assert watched.missing() == [("n1", "2 workers expected, 1 has joined after 0.05 s")]
    watched.workers.left(infos[1], Departure("signal SIGKILL"))
    assert watched.workers.shown() == {}  # its supervisor may be gone, too
