"""Shares of clients: by callers, over all models that share workers, and after an absence."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from farm.call import Operation
from farm.errors import Overloaded
from farm.scheduler.accounts import (
    BULK,
    FEW_QUEUED,
    MOST_CALLERS,
    SLOT,
    Account,
    Accounts,
    Clients,
    ClientUsage,
    SharedWorkers,
    Usage,
    check_room,
)
from farm.scheduler.workers import Worker
from tests.support.scheduler_recorder import Recorder, call, sent


def test_each_chain_and_each_single_call_is_a_caller_and_bulk_is_one() -> None:
    usage = Usage("a")
    account = Account(ClientUsage("a"), usage)
    weights = []
    for chain in (None, None, "x", "x", "y", BULK, BULK):
        account.opened(chain)
        weights.append(usage.weight)
    for chain in ("x", "x", BULK, BULK, None, "y", None):
        account.closed(chain)
        weights.append(usage.weight)
    assert weights == [1, 2, 3, 3, 4, 5, 5, 5, 4, 4, 3, 2, 1, 1]
    assert (usage.single, usage.chains) == (0, {})
    for _ in range(1000):
        account.opened(None)
    assert usage.weight == MOST_CALLERS, "a host may have very many threads"
    for _ in range(990):
        account.closed(None)
    assert usage.weight == 10


def served(farm: Recorder, worker: Worker) -> str:
    """Finish what the worker runs after a second; return whose call it sends next."""
    farm.after(1.0).finish(worker.id, next(iter(worker.held)))
    farm.forget_actions()
    (task,) = worker.held.values()
    return task.account.client.name


def test_clients_share_by_their_callers(farm: Recorder) -> None:
    """Three chains of one client and a sweep of another, on one worker: three turns to one."""
    farm.join("w")
    farm.submit_many(40, client="sweep")
    for _ in range(30):
        for chain in "xyz":
            farm.submit(client="sampler", chain=chain)
    farm.forget_actions()
    turns = [served(farm, farm.worker("w")) for _ in range(80)]
    assert 19 <= turns.count("sweep") <= 21
    assert all(4 >= turns[i : i + 12].count("sweep") >= 2 for i in range(8, 60))


def test_usage_counts_all_models_that_share_workers(farm: Recorder) -> None:
    farm.join("w", "x", "y")
    farm.join("v", "z")
    tasks = {name: farm.submit(name, client="a") for name in "xyz"}
    farm.forget_actions()
    usage, same, other = (farm.account("a", name).usage for name in "xyz")
    assert usage is same is not other
    assert (usage.held, usage.waiting) == (SLOT, 1)
    farm.answer("w", tasks["x"], 3.0, sent("w", tasks["y"]))
    farm.answer("w", tasks["y"], 4.0)
    assert usage.used_s == pytest.approx(7.0)
    assert (usage.held, usage.waiting, usage.weight) == (0, 0, 1)


def test_a_worker_that_serves_models_of_two_groups_unites_them(farm: Recorder) -> None:
    """Nothing is lost of what waits, runs and was used, for clients of one group or of both."""
    farm.join("x", "x")
    farm.join("y", "y")
    running = [farm.submit(name, client="both") for name in "xy"]
    farm.forget_actions()
    for name in "xy":
        farm.submit(name, client="both", chain="c")
    alone = farm.submit("y", client="alone")
    before = farm.account("both", "x").usage.used_s + farm.account("both", "y").usage.used_s
    farm.join("xy", "x", "y", slots=0)
    usage = farm.account("both", "x").usage
    assert farm.account("both", "y").usage is usage
    assert (usage.held, usage.waiting, usage.chains) == (2 * SLOT, 2, {BULK: 2, "c": 2})
    assert usage.used_s == pytest.approx(before)
    assert farm.account("alone", "y").usage.waiting == 1
    for name, task in zip("xy", running, strict=True):
        farm.finish(name, task)
    farm.forget_actions()
    farm.scheduler.cancel(alone)


def test_callers_from_another_group_bring_waiting_calls_forward(farm: Recorder) -> None:
    farm.join("x", "x", slots=3)
    farm.join("y", "y")
    for client in "aabab":
        farm.submit("x", client=client)
    for i in range(5):
        farm.submit("y", client="a", chain=f"{i}")
    farm.forget_actions()
    queue = farm.scheduler.queue("x", Operation.EVALUATE)
    assert queue.head().account.client.name == "b", "who holds one worker, and not two"
    farm.join("xy", "x", "y", slots=0)
    assert queue.head().account.client.name == "a", "with six callers it holds less than one each"


def test_a_group_that_has_run_for_long_is_not_behind_a_new_one(farm: Recorder) -> None:
    """Otherwise clients of the new one would be served alone until they have used as much."""
    farm.join("v", "x")
    farm.join("u", "y")
    farm.submit_many(60, "x", client="old")
    farm.submit_many(40, "y", client="new")
    farm.forget_actions()
    for _ in range(40):
        served(farm, farm.worker("v"))
    farm.join("w", "x", "y")
    for name in "vu":
        farm.leave(name, drained=True)
    farm.forget_actions()
    turns = [served(farm, farm.worker("w")) for _ in range(20)]
    assert turns.count("old") > 4


def test_an_account_of_before_the_union_moves_no_lines(farm: Recorder) -> None:
    """A call that was answered elsewhere may still end with an account that is not kept."""
    farm.join("x", "x", slots=0)
    farm.join("y", "y", slots=0)
    tasks = [farm.submit(name, client="both") for name in "xxyy"]
    usages = {farm.account("both", name).usage for name in "xy"}
    farm.join("xy", "x", "y", slots=0)
    for task in tasks:
        farm.scheduler.cancel(task)
    for client in ("one", "two", "three"):
        farm.submit("x", client=client)
        farm.submit("y", client=client)
    for usage in usages:
        usage.reorder()


def test_a_caller_that_returns_owes_a_mean_run_at_most() -> None:
    """Otherwise a chain waits very long after a run that took long by chance."""
    accounts = Accounts(Clients(), SharedWorkers())
    account = accounts.entering("chain", 2.0)
    account.used_s = 50.0
    accounts.virtual_s = 10.0
    assert accounts.entering("chain", 2.0).used_s == 12.0
    account.used_s = 50.0
    account.active = 1
    assert accounts.entering("chain", 2.0).used_s == 50.0, "but not while it has calls open"


def test_a_call_of_many_rows_is_charged_per_caller(farm: Recorder) -> None:
    farm.join("w")
    farm.submit(client="a", chain="x")
    farm.forget_actions()
    task = next(iter(farm.worker("w").held))
    waiting = farm.submit(call(), client="a", chain="y")
    farm.answer("w", task, 6.0, sent("w", waiting))  # it was one caller when it was sent
    assert farm.account("a").used_s == pytest.approx(12.0)


# Room


@pytest.mark.parametrize(
    ("queued", "of_client", "most_of_client", "text"),
    [
        (999, 999, 1000, ""),
        (1000, FEW_QUEUED, 1000, "1000 calls are waiting"),
        (1000, FEW_QUEUED - 1, 1000, ""),
        (1099, 0, 1000, ""),
        (1100, 0, 1000, "1100 calls are waiting"),
        (50, 4, 5, ""),
        (50, 5, 5, "5 calls of client 'ann' are waiting"),
    ],
)
def test_a_full_queue_has_a_reserve_for_clients_with_few_calls(
    queued: int, of_client: int, most_of_client: int, text: str
) -> None:
    with pytest.raises(Overloaded, match=text) if text else nullcontext():
        check_room(queued, 1000, "ann", of_client, most_of_client)


def test_one_client_that_fills_the_queue_keeps_no_other_out() -> None:
    farm = Recorder(max_queued=1000)
    farm.join("w")
    busy = farm.submit(client="greedy")
    farm.forget_actions()
    farm.submit_many(1000, client="greedy")
    with pytest.raises(Overloaded):
        farm.submit(client="greedy")
    modest = farm.submit(client="modest")
    farm.finish("w", busy)
    farm.forget_actions()
    assert farm.worker("w").held.keys() == {modest}, "and it is its turn"
