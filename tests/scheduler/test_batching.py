"""Batches: natural batching, and which calls may be merged."""

from __future__ import annotations

import pytest

from farm.call import Call, Operation
from farm.scheduler import batching
from farm.scheduler.actions import Send
from farm.scheduler.batching import LONGEST_LINGER_S, batch_key
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import Recorder, call, model, sent

BATCHABLE = model(max_batch=4)


@pytest.fixture(autouse=True)
def no_linger(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the pause after a batch, which has its own tests at the end."""
    if "linger" not in request.node.name:
        monkeypatch.setattr(batching, "LINGER", 0.0)


@pytest.fixture
def running(farm: Recorder) -> TaskId:
    """A call on the only worker."""
    farm.join("w", BATCHABLE)
    return farm.begin("w")


@pytest.mark.parametrize(
    ("rows", "first"),
    [([None] * 7, 4), ([2, None, 1, 3], 3), ([9, None], 1)],
    ids=["calls of a row", "batches are counted in rows", "more rows than a batch go alone"],
)
def test_worker_that_becomes_free_gets_all_that_waits_up_to_its_batch(
    farm: Recorder, running: TaskId, rows: list[int | None], first: int
) -> None:
    tasks = [farm.submit(call(rows=each)) for each in rows]
    farm.expect()
    farm.answer("w", running, 1.0, sent("w", *tasks[:first]))
    for task in tasks[: first - 1]:
        farm.answer("w", task)  # the batch is one run: the worker is not free yet
    farm.answer("w", tasks[first - 1], 1.0, sent("w", *tasks[first:]))


@pytest.mark.parametrize(
    "other",
    [
        call(config='{"level":1}'),
        call(dtype="float32"),
        call(size=2),
        call(operation=Operation.GRADIENT),
    ],
    ids=["config", "dtype", "shape of a row", "operation"],
)
def test_calls_that_differ_in_more_than_numbers_do_not_share_a_batch(
    farm: Recorder, running: TaskId, other: Call
) -> None:
    first, odd, last = farm.submit(), farm.submit(other), farm.submit()
    farm.finish("w", running)
    batches = []
    while sends := [a for a in farm.scheduler.actions(farm.now) if isinstance(a, Send)]:
        batches += [[task.id for task in send.tasks] for send in sends]
        for task in batches[-1]:
            farm.finish("w", task)
    assert sorted(batches) == [[first, last], [odd]]


def test_derivatives_are_never_merged() -> None:
    assert batch_key(call(operation=Operation.GRADIENT), max_batch=8) is None
    assert batch_key(call(), max_batch=8) is not None
    assert batch_key(call(), max_batch=1) is None


def test_batch_is_filled_in_the_order_of_turns(farm: Recorder, running: TaskId) -> None:
    """Calls of other clients are not left behind by those of a sweep that waited longer."""
    sweep = farm.submit_many(6, client="sweep")
    urgent = farm.submit_many(2, client="sweep", priority=1)
    single = farm.submit(client="single")
    farm.answer("w", running, 1.0, sent("w", *urgent, *sweep[:2]))
    farm.answer_all("w", [*urgent, *sweep[:2]], 1.0, sent("w", single, *sweep[2:5]))


def test_batch_has_room_for_calls_whose_turn_is_later(farm: Recorder, running: TaskId) -> None:
    first = farm.submit(priority=2)
    odd = farm.submit(call(config='{"level":1}'), priority=1)
    riders = farm.submit_many(5)
    farm.answer("w", running, 1.0, sent("w", first, *riders[:3]))
    farm.answer_all("w", [first, *riders[:3]], 1.0, sent("w", odd))


def test_clients_of_a_batch_share_what_it_takes(farm: Recorder, running: TaskId) -> None:
    one, three = farm.submit(client="one"), farm.submit(call(rows=3), client="three")
    farm.answer("w", running, 1.0, sent("w", one, three))
    before = {name: farm.account(name).used_s for name in ("one", "three")}
    farm.answer_all("w", [one, three], 8.0)
    assert farm.account("one").used_s - before["one"] == pytest.approx(8 / 4 - 1 / 4)
    assert farm.account("three").used_s - before["three"] == pytest.approx(8 * 3 / 4 - 3 / 4)
    assert (farm.run_times().count, farm.run_times().mean) == (2, 4.5), "it is learnt once"


# The pause after a batch of several calls


def batch_of(farm: Recorder, count: int, run_time_s: float = 1.0) -> None:
    """Run a lone call and then a batch to its end, with no calls waiting afterwards."""
    alone = farm.begin("w")
    tasks = farm.submit_many(count)
    farm.answer("w", alone, run_time_s, sent("w", *tasks))
    farm.answer_all("w", tasks, run_time_s)


def test_lingers_until_as_many_ask_as_were_answered(farm: Recorder) -> None:
    farm.join("w", BATCHABLE)
    batch_of(farm, 3)
    tasks = farm.submit_many(2)
    farm.expect()
    tasks.append(farm.submit())
    farm.expect(sent("w", *tasks))


@pytest.mark.parametrize(
    ("count", "run_time_s", "waits_s"),
    [(3, 1.0, LONGEST_LINGER_S), (3, 5e-3, 0.5e-3), (3, 5e-4, 0.0), (1, 1.0, 0.0)],
    ids=["long run", "short run", "very short run", "lone call"],
)
def test_lingers_for_a_part_of_the_run_and_no_longer_than_a_little(
    farm: Recorder, count: int, run_time_s: float, waits_s: float
) -> None:
    farm.join("w", BATCHABLE)
    batch_of(farm, count, run_time_s)
    task = farm.submit()
    if waits_s:
        farm.expect()
        assert farm.scheduler.wakeup() == pytest.approx(farm.now + waits_s)
        farm.after(waits_s)
    farm.expect(sent("w", task))


def test_lingers_not_when_another_worker_idles(farm: Recorder) -> None:
    farm.join("w", BATCHABLE)
    batch = farm.begin_many("w", 2)
    farm.join("idle", BATCHABLE)
    farm.answer_all("w", batch, 1.0)
    farm.submit()
    assert len(farm.act()) == 1, "it is sent at once"


def test_lingers_not_with_a_full_batch(farm: Recorder) -> None:
    farm.join("w", BATCHABLE)
    batch = farm.begin_many("w", 4)
    tasks = farm.submit_many(4)
    farm.answer_all("w", batch, 1.0, sent("w", *tasks))
