"""Counts and times of each chain: the calls of one client that give one chain name."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

from farm.call import QUESTIONS, Call, CallerName, Result
from farm.dispatcher.tally import Tally
from farm.errors import FarmError
from farm.scheduler.state import TaskId

KEPT = 1000
"""Most chains kept; beyond that, the one whose last call came first is forgotten."""

BUCKET_S = 5.0
"""The rate is over the last minute, twelve of these steps."""

SAME_AGE_S = 60.0
"""Chains with an answer in the same minute are listed by name, so that rows keep their places."""


class Chain(Tally):
    """The calls of one chain since its first one.

    open: tasks without an answer. since_s: worker-seconds of all calls of the farm at its first
    call.
    """

    __slots__ = ("open", "since_s")

    def __init__(self, since_s: float, now: float) -> None:
        super().__init__(now, BUCKET_S)
        self.since_s = since_s
        self.open = 0

    def share(self, of_all_s: float) -> float:
        """Return its part of all worker-seconds since its first call; of_all_s: the sum now."""
        given_s = of_all_s - self.since_s
        return min(1.0, self.worker_s / given_s) if given_s > 0.0 else 0.0


class Chains:
    """The chains of one dispatcher: calls that give a client or a chain, without questions.

    open: the chain of each of their tasks that has no answer. of_all_s: worker-seconds of all
    answered calls of the farm, which the owner adds up.
    """

    def __init__(self) -> None:
        self.of_all_s = 0.0
        self._by_name: OrderedDict[CallerName, Chain] = OrderedDict()
        self.open: dict[TaskId, Chain] = {}

    def opened(self, task_id: TaskId, call: Call, name: CallerName, now: float) -> None:
        """Count a task that was accepted now; `name` is the client and the chain."""
        if call.operation in QUESTIONS:
            return
        chain = self.open[task_id] = self._chain(name, now)
        chain.open += 1

    def _chain(self, name: CallerName, now: float) -> Chain:
        """Return a chain, as the one that called last."""
        chain = self._by_name.get(name)
        if chain is None:
            if len(self._by_name) >= KEPT:
                self._by_name.popitem(last=False)
            chain = self._by_name[name] = Chain(self.of_all_s, now)
        else:
            self._by_name.move_to_end(name)
        return chain

    def task_answered(
        self,
        task_id: TaskId,
        outcome: Result | FarmError,
        calls: int,
        worker_s: float,
        now: float,
    ) -> None:
        """Record an answer to an open task, which counts as `calls` calls and took `worker_s`."""
        chain = self.open[task_id]
        if not (isinstance(outcome, Result) and outcome.more):
            del self.open[task_id]
            chain.open -= 1
        chain.answered(*counted(outcome, calls), now, worker_s)

    def answered(self, name: CallerName, done: int, failed: int, now: float) -> None:
        """Record calls that were answered without a task that counts as one."""
        self._chain(name, now).answered(done, failed, now)

    def cancelled(self, task_id: TaskId) -> None:
        """Record that a task, if it is an open one of a chain, gets no answer."""
        chain = self.open.pop(task_id, None)
        if chain is not None:
            chain.open -= 1

    def snapshot(self, sent: Iterable[TaskId], now: float) -> list[dict[str, Any]]:
        """Return a row for each chain, those with the latest calls or answers first.

        sent: the tasks that workers have.
        """
        in_flight: Counter[Chain] = Counter()
        if self.open:
            in_flight.update(chain for task in sent if (chain := self.open.get(task)) is not None)
        chains = sorted(self._by_name.items(), key=lambda item: _place(item[0], item[1], now))
        return [
            {
                "client": client,
                "chain": name,
                "queued": chain.open - in_flight[chain],
                "in_flight": in_flight[chain],
                "began_s": now - chain.began_at,
                "done": chain.done,
                "failed": chain.failed,
                "calls_per_s": chain.calls_per_s(now),
                "share": chain.share(self.of_all_s),
                "run_time_s": chain.worker_s,
                "last_answer_s": None if chain.last_at is None else now - chain.last_at,
            }
            for (client, name), chain in chains
        ]


def counted(outcome: Result | FarmError, calls: int) -> tuple[int, int]:
    """Return how many of `calls` calls were done and how many failed."""
    if isinstance(outcome, FarmError):
        return 0, calls
    return outcome.rows_done(calls) if calls else 0, int(outcome.failed is not None)


def _place(name: CallerName, chain: Chain, now: float) -> tuple[int, list[tuple[int, str]]]:
    """Return the sort key: minutes since the last call or answer, then names as people count."""
    last_at = now if chain.open else chain.began_at if chain.last_at is None else chain.last_at
    client, of_client = name
    words = re.split(r"(\d+)", f"{client} {of_client or ''}")
    return int((now - last_at) / SAME_AGE_S), [
        (int(word) if word.isdecimal() else 0, word) for word in words
    ]
