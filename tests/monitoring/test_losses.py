"""Losses: groups by cause and reason, what each shows, and that memory is bounded."""

from __future__ import annotations

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import LossCause
from farm.monitoring.losses import LONGEST_DETAIL, LONGEST_TEXT, MOST_GROUPS, MOST_HOSTS, Losses


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def worker(number: int = 1, host: str = "node1") -> WorkerInfo:
    return WorkerInfo(f"{host}/{number}-ab", (), host=host)


def test_losses_of_one_reason_are_one_group() -> None:
    losses = Losses(Dispatcher([]), Clock())
    losses.left(worker(1), Departure("exit code 3", LossCause.CRASH, "first"))
    losses.left(worker(2), Departure("exit code 3", LossCause.CRASH, "second"))
    losses.left(worker(3, "node2"), Departure("exit code 3", LossCause.CRASH))
    (row,) = losses.snapshot()
    assert [row] == [
        {
            "id": row["id"],
            "cause": "crash",
            "text": "exit code 3",
            "count": 3,
            "first": 101.0,
            "last": 103.0,
            "worker": "node2/3-ab",
            "host": "node2",
            "hosts": {"node1": 2, "node2": 1},
            "exit_code": 3,
            "signal": "",
            "detail": "second",
        }
    ]


def test_other_causes_codes_and_signals_are_other_groups() -> None:
    losses = Losses(Dispatcher([]), Clock())
    for reason in ("exit code 3", "exit code 1", "signal SIGKILL", "signal SIGSEGV"):
        losses.left(worker(), Departure(reason, LossCause.CRASH))
    losses.left(worker(), Departure("exit code 3", LossCause.RECLAIMED))
    shown = [(row["cause"], row["exit_code"], row["signal"]) for row in losses.snapshot()]
    assert shown == [
        ("reclaimed", 3, ""),
        ("crash", None, "SIGSEGV"),
        ("crash", None, "SIGKILL"),
        ("crash", 1, ""),
        ("crash", 3, ""),
    ]


def test_a_worker_that_leaves_in_order_is_not_lost() -> None:
    losses = Losses(Dispatcher([]), Clock())
    losses.left(worker(), Departure("stopped", drained=True))
    losses.left(worker(), Departure("stopped by its supervisor", LossCause.STOPPED))
    assert losses.snapshot() == []


def test_memory_is_bounded() -> None:
    losses = Losses(Dispatcher([]), Clock())
    long = "z" * 100_000
    names = [a + b for a in "abcdefghijklmnopq" for b in "abcdefghijklmnopq"]
    for name in names:
        losses.left(worker(1, name), Departure(f"no {name} {long}", LossCause.CRASH, long))
        losses.left(worker(1, name), Departure("exit code 3", LossCause.CRASH))
    rows = losses.snapshot()
    assert len(rows) == MOST_GROUPS
    assert max(len(row["text"]) for row in rows) == LONGEST_TEXT
    assert max(len(row["detail"]) for row in rows) == LONGEST_DETAIL
    assert len(rows[0]["hosts"]) == MOST_HOSTS
    assert rows[0]["count"] == len(names)  # those that are seen are not forgotten
    assert rows[1]["text"].startswith(f"no {names[-1]} ")
