"""The clients of a farm: what they do, their shares, and the bound on their number."""

from __future__ import annotations

import pytest

from farm.dispatcher.clients import KEPT, OTHERS, SHARE_OVER_S, Clients
from farm.scheduler.view import ClientCalls


def test_the_row_of_a_client_joins_what_is_open_and_what_was_answered() -> None:
    clients = Clients()
    clients.answered("a", 1, 0, 2.0, 1000.0)
    clients.answered("a", 2, 1, 1.0, 1001.0)
    opened = ClientCalls(callers=2, queued=5, running=1, busy_s=3.0)
    (row,) = clients.snapshot({"a": opened}, 1003.0)
    assert row == {
        "client": "a",
        "others": 0,
        "callers": 2,
        "queued": 5,
        "running": 1,
        "done": 3,
        "failed": 1,
        "share": 1.0,
        "worker_s": 6.0,
        "calls_per_s": pytest.approx(4 / 3),
        "last_s": 2.0,
    }


def test_shares_are_of_the_last_minutes_and_count_what_runs() -> None:
    clients = Clients()
    clients.answered("early", 1, 0, 500.0, 1000.0)
    now = 1000.0 + 2 * SHARE_OVER_S
    clients.answered("short", 1, 0, 60.0, now)
    long = ClientCalls(callers=1, running=1, busy_s=3600.0)  # of which the last minutes count
    new = ClientCalls(callers=1, queued=1)
    rows = clients.snapshot({"long": long, "new": new}, now)
    assert [row["client"] for row in rows] == ["long", "short", "new", "early"]
    shares = {row["client"]: row["share"] for row in rows}
    assert shares == pytest.approx({"long": 0.75, "short": 0.25, "new": 0.0, "early": 0.0})
    assert rows[0]["last_s"] is None


def test_many_clients_share_one_row() -> None:
    clients = Clients()
    for number in range(KEPT + 3):
        clients.answered(f"c{number}", 1, 0, 1.0, 1000.0)
        clients.answered("c0", 0, 1, 0.0, 1000.0)  # the one that calls all the time stays
    open_calls = {f"new{number}": ClientCalls(1, 1) for number in range(5)}
    rows = clients.snapshot(open_calls, 1000.0)
    assert len(rows) == KEPT + 1
    last = rows[-1]
    assert (last["client"], last["others"], last["done"], last["queued"]) == (OTHERS, 8, 3, 5)
    assert "c0" in {row["client"] for row in rows}
    assert sum(row["done"] for row in rows) == KEPT + 3
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)


def test_no_clients() -> None:
    assert Clients().snapshot({}, 5.0) == []
