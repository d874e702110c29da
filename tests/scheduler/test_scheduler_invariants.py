"""`invariants.check` is not vacuous: each of its assertions is reached, and sees a wrong count."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import reduce
from types import FrameType
from typing import Any

import pytest

from farm.call import Operation
from farm.policies import ModelPolicy
from tests.support import scheduler_invariants as invariants
from tests.support.scheduler_recorder import (
    Recorder,
    call,
    copied,
    ended,
    prefetched,
    stateful,
    step,
)


def shared() -> Recorder:
    """Two clients' calls run and wait behind others, or behind a higher rank and in a batch."""
    farm = Recorder(policies={"m": ModelPolicy(reserve=1)})
    prefetched(farm, 4, slots=2, ends_at=1e6)
    farm.join("drains", "n")
    farm.begin("drains", "n")
    farm.resize("drains", 0)
    farm.forget_actions()
    farm.begin("w", call(operation=Operation.DESCRIBE))
    for client in "aabb":
        farm.submit(client=client, priority=client == "b", chain=None)
    next(farm.queue().lines()).by_config()
    return farm


def with_copies() -> Recorder:
    """One call runs on two workers; another one was answered by one of two."""
    farm = Recorder()
    answered = copied(farm, count=60)
    farm.answer("w2", answered, 4.0, ended("w1", answered))
    farm.join("w3", host="three")
    farm.resize("w2", 0)
    farm.begin("w3")
    farm.after(5.0).expect()
    farm.resize("w2", 1)
    farm.forget_actions()
    return farm


def with_sequences() -> Recorder:
    """Sequence 1 is idle, 2 runs with a call behind it, and 3 waits for its worker."""
    farm = Recorder()
    farm.join("w", stateful(most=3))
    for each in (1, 2, 3):
        farm.run("w", step(each, "s"))
    for each in (2, 2, 3):
        farm.submit(step(each))
    farm.forget_actions()
    return farm


def test_every_assertion_is_reached() -> None:
    reached: set[int] = set()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename == invariants.__file__:
            reached.add(frame.f_lineno)
            return trace
        return None

    farms = [shared(), with_copies(), with_sequences()]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for farm in farms:
            invariants.check(farm.scheduler)
    finally:
        sys.settrace(before)
    unreached = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(invariants)))
        if isinstance(node, ast.Assert)
        and reached.isdisjoint(range(node.lineno, (node.end_lineno or 0) + 1))
    ]
    assert unreached == []


COUNTS = """
    open.queued  client.queued  queue.size  queue.counts.in_flight  queue.counts.extra
    account.active  account.held  account.usage.held  account.usage.waiting  account.usage.single
    worker.lots  worker.level  worker.behind  worker.exclusive_lots  worker.outrun
    pool.size  pool.slots  pool.behind  lot.remaining
"""


@pytest.mark.parametrize("path", COUNTS.split())
def test_a_wrong_count_is_seen(path: str) -> None:
    farm = shared()
    worker, account = farm.worker("w"), farm.account("a")
    records: dict[str, Any] = {
        "open": farm.scheduler._open,
        "client": account.client,
        "queue": farm.queue(),
        "account": account,
        "worker": worker,
        "pool": farm.pool(),
        "lot": next(iter(worker.held.values())).attempt.lot,
    }
    name, *between, count = path.split(".")
    record = reduce(getattr, between, records[name])
    setattr(record, count, getattr(record, count) + 1)
    with pytest.raises(AssertionError):
        invariants.check(farm.scheduler)
