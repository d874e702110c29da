"""The clients of a farm: what they do, their shares, and the bound on their number."""

from __future__ import annotations

import pytest

from farm.dispatcher.statistics import BUCKETS, KEPT, OTHERS, SHARE_OVER_S, Clients, Tally
from farm.scheduler.view import ClientCalls
from tests.dispatcher.ended_calls import answer


def test_the_row_of_a_client_joins_what_is_open_and_what_was_answered() -> None:
    clients = Clients()
    clients.fold([answer(1, 0, 1000.0, 2.0, client="a"), answer(2, 1, 1001.0, 1.0, client="a")])
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
    clients.fold([answer(1, 0, 1000.0, 500.0, client="early")])
    now = 1000.0 + 2 * SHARE_OVER_S
    clients.fold([answer(1, 0, now, 60.0, client="short")])
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
        clients.fold([answer(1, 0, 1000.0, 1.0, client=f"c{number}")])
        clients.fold([answer(0, 1, 1000.0, client="c0")])  # the one that calls all the time stays
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


def test_seconds_of_old_steps_no_longer_count() -> None:
    tally = Tally(1000.0, 10.0)
    tally.fold([answer(1, 0, 1000.0, 4.0), answer(0, 2, 1009.0, 1.0), answer(1, 0, 1010.0, 2.0)])
    assert (tally.done, tally.failed, tally.worker_s, tally.last_at) == (2, 2, 7.0, 1010.0)
    assert tally.lately(1010.0)[1] == 7.0
    assert tally.lately(1000.0 + 10.0 * BUCKETS)[1] == 2.0
    assert tally.lately(1010.0 + 10.0 * BUCKETS)[1] == 0.0
    assert tally.lately(1010.0)[0] == pytest.approx(0.4)


def test_a_run_that_is_longer_than_all_steps_counts_with_their_length() -> None:
    tally = Tally(0.0, 10.0)
    tally.fold([answer(1, 0, 5000.0, 3600.0)])
    assert tally.worker_s == 3600.0
    assert tally.lately(5000.0)[1] == 10.0 * BUCKETS


def test_the_sum_of_two_tallies() -> None:
    one, two = Tally(0.0, 10.0), Tally(0.0, 10.0)
    one.fold([answer(1, 0, 100.0, 1.0), answer(1, 0, 120.0, 2.0)])
    two.fold([answer(0, 1, 110.0, 4.0), answer(0, 1, 121.0, 8.0)])
    one.add(two)
    one.add(Tally(0.0, 10.0))
    assert (one.done, one.failed, one.worker_s, one.last_at) == (2, 2, 15.0, 121.0)
    assert list(one.recent) == [[10, 1, 1.0], [11, 1, 4.0], [12, 2, 10.0]]
    one.fold([answer(1, 0, 129.0)])
    assert one.recent[-1] == [12, 3, 10.0]
