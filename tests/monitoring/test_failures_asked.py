"""The question `failures`: all groups, or one of them in full."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from farm.call import NO_HINTS, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import InvalidInput, LossCause
from farm.monitoring import failures as module
from farm.monitoring.failures import (
    LONGEST_OUTPUT,
    LONGEST_TEXT,
    MOST_HOSTS,
    MOST_LOSSES,
    Failures,
)
from tests.dispatcher.ended_calls import AtOnce
from tests.monitoring.test_failures import failure


@pytest.fixture
def what_failed() -> Failures:
    dispatcher = Dispatcher([])
    dispatcher.ended = AtOnce()
    what_failed = Failures(dispatcher)
    for text, line in (("no root", "line 3"), ("no minimum", "line 4")):
        failed = failure(text, detail=line)
        dispatcher.ended.refused(failed.call, NO_HINTS, failed.error)
    for left in dispatcher.on_left:
        left(worker(), Departure("exit code 3", detail="the end of its log"))
    return what_failed


def test_all_groups_come_without_their_details_unless_these_are_asked_for(
    what_failed: Failures,
) -> None:
    rows = what_failed.answer({})
    assert [(row["text"], "detail" in row) for row in rows] == [
        ("no minimum", False),
        ("no root", False),
    ]
    details = [row["detail"] for row in what_failed.answer({"detail": "all"})]
    assert details == ["line 4", "line 3"]


def test_one_group_is_shown_in_full_also_one_of_lost_workers(what_failed: Failures) -> None:
    wanted = what_failed.answer({})[1]
    assert what_failed.answer({"id": wanted["id"]}) == {**wanted, "detail": "line 3"}
    losses = Failures(Dispatcher([]))
    losses.left(worker(), Departure("exit code 3"))
    loss = what_failed.answer({"id": losses.losses()[0]["id"]})
    assert (loss["text"], loss["detail"]) == ("exit code 3", "the end of its log")


def test_an_unknown_group_is_named_with_what_to_do(what_failed: Failures) -> None:
    with pytest.raises(InvalidInput, match=r"the id 'x'; `farm failures --all` lists the 3 that"):
        what_failed.answer({"id": "x"})


def worker(number: int = 1, host: str = "node1") -> WorkerInfo:
    return WorkerInfo(f"{host}/{number}-ab", (), host=host)


def test_losses_of_one_reason_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(101.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: next(times)))
    losses = Failures(Dispatcher([]))
    losses.left(worker(1), Departure("exit code 3", LossCause.CRASH, "first"))
    losses.left(worker(2), Departure("exit code 3", LossCause.CRASH, "second"))
    losses.left(worker(3, "node2"), Departure("exit code 3", LossCause.CRASH))
    (row,) = losses.losses()
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
    losses = Failures(Dispatcher([]))
    for reason in ("exit code 3", "exit code 1", "signal SIGKILL", "signal SIGSEGV"):
        losses.left(worker(), Departure(reason, LossCause.CRASH))
    losses.left(worker(), Departure("exit code 3", LossCause.RECLAIMED))
    shown = [(row["cause"], row["exit_code"], row["signal"]) for row in losses.losses()]
    assert shown == [
        ("reclaimed", 3, ""),
        ("crash", None, "SIGSEGV"),
        ("crash", None, "SIGKILL"),
        ("crash", 1, ""),
        ("crash", 3, ""),
    ]


def test_a_worker_that_leaves_in_order_is_not_lost() -> None:
    losses = Failures(Dispatcher([]))
    losses.left(worker(), Departure("stopped", drained=True))
    losses.left(worker(), Departure("stopped by its supervisor", LossCause.STOPPED))
    assert losses.losses() == []


def test_memory_is_bounded() -> None:
    losses = Failures(Dispatcher([]))
    long = "z" * 100_000
    names = [a + b for a in "abcdefghijklmnopq" for b in "abcdefghijklmnopq"]
    for name in names:
        losses.left(worker(1, name), Departure(f"no {name} {long}", LossCause.CRASH, long))
        losses.left(worker(1, name), Departure("exit code 3", LossCause.CRASH))
    rows = losses.losses()
    assert len(rows) == MOST_LOSSES
    assert max(len(row["text"]) for row in rows) == LONGEST_TEXT
    assert max(len(row["detail"]) for row in rows) == LONGEST_OUTPUT
    assert len(rows[0]["hosts"]) == MOST_HOSTS
    assert rows[0]["count"] == len(names)  # those that are seen are not forgotten
    assert rows[1]["text"].startswith(f"no {names[-1]} ")
