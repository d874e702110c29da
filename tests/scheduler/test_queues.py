"""The order of turns: priority, share of the workers, worker-seconds, age; and flat memory."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import ModelFailed
from farm.scheduler.accounts import Account, Accounts, Clients, ClientUsage, SharedWorkers, Usage
from farm.scheduler.queues import ClientTasks, Level
from farm.scheduler.state import TaskId
from tests.support.scheduler_invariants import check
from tests.support.scheduler_recorder import Recorder, call, model, sent


def order_of(farm: Recorder, worker: str, run_times: dict[TaskId, float]) -> list[TaskId]:
    """Let `worker` answer one call after another; return the order in which they were sent."""
    order: list[TaskId] = []
    while True:
        actions = farm.scheduler.actions(farm.now)
        check(farm.scheduler)
        if not actions:
            return order
        for task in (task for action in actions for task in getattr(action, "tasks", [])):
            order.append(task.id)
            seconds = run_times.get(task.id, 1.0)
            farm.after(seconds).finish(worker, task.id, seconds)


# Priority and age


def test_higher_priority_goes_first(farm: Recorder) -> None:
    farm.join("w")
    running = farm.begin("w")
    low, plain, high, late = (farm.submit(priority=rank) for rank in (-1, 0, 7, 7))
    farm.finish("w", running)
    assert order_of(farm, "w", {}) == [high, late, plain, low]


def test_empty_ranks_leave_nothing_behind(farm: Recorder) -> None:
    farm.join("w")
    farm.begin("w")
    for priority in range(-50, 50):
        farm.scheduler.cancel(farm.submit(priority=priority))
    assert len(farm.queue()._levels) <= 1
    assert farm.queue()._ranks == []


def test_equal_places_in_the_order_need_no_order_of_lines() -> None:
    """A removed line may have had exactly the key of the one that followed it."""
    account, level = Account(ClientUsage("a"), Usage("a")), Level(0)
    assert not ClientTasks(account, level) < ClientTasks(account, level)


# Shares of the workers


def test_estimates_are_corrected_by_what_was_used(farm: Recorder) -> None:
    farm.join("w")
    tasks = farm.submit_many(3, client="a")
    farm.expect(sent("w", tasks[0]))
    account = farm.account("a")
    assert account.used_s == pytest.approx(0.0, abs=1e-5)
    farm.answer("w", tasks[0], 5.0, sent("w", tasks[1]))
    assert account.used_s == pytest.approx(10.0)  # 5 used, and 5 expected
    farm.answer("w", tasks[1], 1.0, sent("w", tasks[2]))
    assert account.used_s == pytest.approx(6.0 + 3.0)
    farm.answer("w", tasks[2], ModelFailed("it raised"))
    assert account.used_s == pytest.approx(6.0 + 3.0), "a failed call is charged as expected"
    farm.begin("w", client="a")
    farm.leave("w", drained=True)
    farm.expect()
    assert account.used_s == pytest.approx(6.0 + 3.0), "one that was returned is refunded"
    assert account.held == 0


@pytest.mark.parametrize("other", ["x", "y"], ids=["of one model", "of another model"])
@pytest.mark.parametrize("was_here", [False, True], ids=["new", "back"])
def test_a_client_that_comes_starts_level(farm: Recorder, was_here: bool, other: str) -> None:
    """It gained no claim while it was away, and whoever used idle workers owes nothing for it."""
    farm.join("w", "x", "y")
    for name in "xy":
        farm.run("w", name, client="comes" if was_here else "teacher")
    alone = farm.submit_many(40, "x", client="alone")
    farm.expect(sent("w", alone[0]))
    for task, following in pairwise(alone[:31]):
        farm.after(1.0).answer("w", task, 1.0, sent("w", following))
    comes = farm.submit_many(10, other, client="comes")
    farm.after(1.0).finish("w", alone[30])
    order = order_of(farm, "w", {})
    assert sum(task in comes for task in order[:8]) == 4


def test_heavy_use_of_one_model_leaves_no_debt_at_another(farm: Recorder) -> None:
    farm.join("x", "x")
    farm.join("y", "y")
    task = farm.begin("x", "x", client="a")
    farm.answer("x", task, 1e6)
    running = farm.begin("y", "y", client="b")
    first, second = farm.submit("y", client="a"), farm.submit("y", client="b")
    farm.answer("y", running, 1.0, sent("y", first))
    farm.answer("y", first, 1.0, sent("y", second))


@given(
    clients=st.integers(2, 5),
    workers=st.integers(1, 9),
    seed=st.randoms(use_true_random=False),
    spread=st.sampled_from([1.0, 10.0, 1000.0]),
)
def test_fair_share_whatever_the_run_times(
    clients: int, workers: int, seed: object, spread: float
) -> None:
    """Clients with enough calls hold equal numbers of workers, give or take one, at every moment.

    On one worker, their worker-seconds differ by at most two of the longest runs: the bound of
    start-time fair queueing, plus one run because a length is known only afterwards.
    """
    farm = Recorder()
    farm.join("w", slots=workers)
    names = [f"c{i}" for i in range(clients)]
    length = {name: spread ** seed.random() for name in names}  # type: ignore[attr-defined]
    waiting = {name: farm.submit_many(60, client=name) for name in names}
    owner = {task: name for name in names for task in waiting[name]}
    used = dict.fromkeys(names, 0.0)
    running: dict[TaskId, float] = {}
    for _ in range(40):
        for action in farm.scheduler.actions(farm.now):
            for task in getattr(action, "tasks", []):
                running[task.id] = farm.now + length[owner[task.id]]
        check(farm.scheduler)
        held = [sum(owner[task] == name for task in running) for name in names]
        assert max(held) - min(held) <= 1
        task = min(running, key=lambda t: (running[t], t))
        farm.now = running.pop(task)
        used[owner[task]] += length[owner[task]]
        farm.finish("w", task, length[owner[task]])
        if workers == 1:
            assert max(used.values()) - min(used.values()) <= 2 * max(length.values())


# Memory


def test_accounts_of_clients_that_are_gone_are_dropped() -> None:
    clients = Clients()
    accounts = Accounts(clients, SharedWorkers())
    active = [accounts.entering(f"active {i}") for i in range(10)]
    for account in active:
        account.active = 1
    for i in range(10 * Accounts.KEPT):
        accounts.entering(f"client {i}")
        assert len(list(accounts)) <= Accounts.KEPT
    assert all(accounts.entering(f"active {i}") is active[i] for i in range(10))
    assert len(clients) == len(list(accounts))


def test_more_active_clients_than_are_kept_otherwise_are_all_known() -> None:
    accounts = Accounts(Clients(), SharedWorkers())
    cleared = 0
    for i in range(8 * Accounts.KEPT):
        before = accounts._by_name
        accounts.entering(f"client {i}").active = 1
        cleared += accounts._by_name is not before
    assert len(list(accounts)) == 8 * Accounts.KEPT
    assert cleared == 3, "the interval between clean-ups doubles"


@pytest.mark.slow
def test_memory_is_flat_over_calls_of_ever_new_clients() -> None:
    """Finished, failed, cancelled, expired, requeued ones; many priorities, configs and chains."""
    farm = Recorder()
    farm.join("w", model(max_batch=4, keeps_point=True))
    farm.join("v", model(max_batch=4, keeps_point=True))

    def use(start: int) -> None:
        for i in range(start, start + 4000):
            task = farm.submit(
                call(config=str(i)),
                client=f"c{i}",
                chain=f"chain {i}",
                priority=i % 997,
                deadline=farm.now + 1e6,
            )
            farm.scheduler.cancel(farm.submit(client=f"d{i}", chain=None, priority=i % 991))
            farm.scheduler.cancel(farm.submit(client="one", chain=f"chain {i}"))
            farm.scheduler.actions(farm.now)
            if i % 10 == 0:
                farm.leave("w", drained=True)
                farm.leave("v", drained=True)
                farm.join("w", model(max_batch=4, keeps_point=True))
                farm.scheduler.actions(farm.now)
            for worker in ("w", "v"):
                farm.finish(worker, task, ModelFailed("it raised") if i % 7 == 0 else 1.0)
            farm.scheduler.actions(farm.now)
            if i % 10 == 0:
                farm.join("v", model(max_batch=4, keeps_point=True))

    use(0)
    use(4000)  # bounded structures have reached their bounds
    gc.collect()
    tracemalloc.start()
    use(8000)
    use(12000)
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    check(farm.scheduler)
    assert len(farm.scheduler) == 0
    # The second half replaces the retained accounts and deadlines of the first.
    assert grown < 1_000_000, f"{grown} bytes after 8,000 calls"
