"""The assignment of waiting tasks to workers, and its order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Operation
from farm.errors import ModelFailed
from farm.scheduler.accounts import SLOT
from farm.scheduler.filling import fill
from tests.support.scheduler_invariants import check
from tests.support.scheduler_recorder import (
    SHORT_S,
    Recorder,
    call,
    model,
    prefetched,
    replied,
    sent,
)

DESCRIBE = call(operation=Operation.DESCRIBE)


def test_description_needs_no_free_worker_and_holds_nothing(farm: Recorder) -> None:
    farm.join("w")
    described = farm.begin("w", DESCRIBE, client="a")
    assert farm.account("a").held == 0
    assert farm.worker("w").lots == 0
    assert farm.worker("w").busy_since is not None
    tasks = farm.submit_many(2)
    farm.expect(sent("w", tasks[0]))
    farm.begin("w", DESCRIBE)
    farm.answer("w", described, 0.25)  # and frees no slot
    assert farm.account("a").used_s == pytest.approx(0.25)
    farm.answer("w", tasks[0], 1.0, sent("w", tasks[1]))


def test_description_goes_to_an_idle_worker_if_there_is_one(farm: Recorder) -> None:
    farm.join("idle")
    farm.join("busy")
    farm.begin("busy")
    farm.begin("idle", DESCRIBE)


def test_only_the_pools_that_are_given_are_filled() -> None:
    farm = Recorder()
    farm.join("w", "a", slots=2)
    farm.join("other", "b")
    tasks = [farm.submit(name) for name in ("a", "a", "b")]
    sends = list(fill({farm.pool("a"): None}, farm.now))
    assert [(send.worker, [task.id for task in send.tasks]) for send in sends] == [("w", tasks[:2])]
    assert farm.queue("b").size == 1


# Credit and charges


@given(
    prefetch=st.sampled_from([0, 1, 2, 7, 40, 256]),
    rows=st.lists(st.integers(1, 7), min_size=1, max_size=9),
)
def test_calls_that_may_wait_at_one_slot_hold_that_slot_together(
    prefetch: int, rows: list[int]
) -> None:
    farm = Recorder()
    farm.join("w", model(max_batch=sum(rows)))
    farm.run_times().prefetch = prefetch
    for _ in range(1 + prefetch):
        for each in rows:
            farm.submit(call(rows=each), client="a")
        farm.scheduler.actions(farm.now)
    check(farm.scheduler)
    assert farm.worker("w").lots == 1 + prefetch
    assert farm.account("a").held // SLOT == 1
    assert farm.account("a").held < SLOT * 1.01


def test_failed_call_tells_nothing_of_run_times_but_the_others_of_its_batch_do(
    farm: Recorder,
) -> None:
    farm.join("w", model(max_batch=4))
    running = farm.begin("w")
    tasks = farm.submit_many(3)
    farm.answer("w", running, ModelFailed("it raised"), sent("w", *tasks))
    farm.answer("w", tasks[0], ModelFailed("it raised"))
    assert farm.run_times().count == 0
    farm.answer_all("w", tasks[1:], 3.0)
    assert farm.run_times().count == 1


def test_call_knows_whether_it_found_its_worker_free(farm: Recorder) -> None:
    """`alone` measures overhead; `refill` marks a worker that idled although a call waited."""
    tasks = prefetched(farm)
    assert [farm.task(t).attempt.alone for t in tasks] == [True, False]
    assert [farm.task(t).attempt.refill for t in tasks] == [False, False]
    farm.after(1.0).finish("w", tasks[0], SHORT_S)
    farm.hand_back("w", tasks[1])
    farm.expect(replied(tasks[0], SHORT_S, "w"), sent("w", tasks[1]))
    assert farm.task(tasks[1]).attempt.alone
    assert farm.task(tasks[1]).attempt.refill
