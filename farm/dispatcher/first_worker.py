"""Waiting for a first worker, with a limit.

A farm may be asked before it has a worker: its jobs are pending, or its workers start elsewhere.
Requests then wait until the farm knows its models, and calls until a worker with their model joins.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice

from farm.call import Hints, ModelInfo, WorkerInfo
from farm.dispatcher.backend import CancelCall
from farm.dispatcher.timer import Timer
from farm.errors import FarmError, ModelNotFound, Unavailable
from farm.scheduler.state import TaskId

AT_ONCE = 32
"""Requests that continue in one iteration of the event loop, so that others get their turn."""

SLACK = 1000
"""Calls that may have ended before they are removed from the list of those with a limit."""


class FirstWorker:
    """The requests that wait until models are known, and the calls whose model has no worker.

    limit_s: how long each of them waits. awaited: returns why models are not known yet, or "" if
    none is expected. why: returns why a model has no worker, or "" if that is not known. may_come:
    returns whether more workers may join.
    """

    def __init__(
        self,
        models: Mapping[str, ModelInfo],
        open_calls: Mapping[TaskId, Callable[[FarmError], None]],
        drop: Callable[[TaskId], object],
    ) -> None:
        """open_calls: the callbacks of the calls without an outcome; drop: cancels a call."""
        self.limit_s = math.inf
        self.awaited: Callable[[], str] = str
        self.may_come: Callable[[], bool] = bool
        self.why: Callable[[str], str] = lambda model: ""
        self._models = models
        self._open_calls = open_calls
        self._drop = drop
        self._workers: Counter[str] = Counter()  # by model
        self._requests: dict[_Waiting, None] = {}  # in the order in which they came
        self._calls: list[tuple[float, TaskId, str]] = []  # a heap: the first limit comes first
        self._timer = Timer(self._expire)

    # Facts

    def joined(self, info: WorkerInfo, *, before: WorkerInfo | None = None) -> None:
        """Report that a worker joined; `before` is its earlier start, if that has not left."""
        if before is not None:
            self.left(before)
        self._workers.update(model.name for model in info.models)
        self.models_known()

    def left(self, info: WorkerInfo) -> None:
        """Report that a worker left."""
        self._workers.subtract(model.name for model in info.models)

    def may_have(self, model: str) -> bool:
        """Whether a worker has the model, or workers that have it may join."""
        return self._workers[model] > 0 or self.may_come()

    # Requests

    @property
    def requests(self) -> int:
        """The number of requests that wait until models are known."""
        return len(self._requests)

    def when_known(self, go: Callable[[], None]) -> CancelCall:
        """Call `go` later: once models are known, or after `limit_s` seconds.

        The result cancels the wait.
        """
        waiting = _Waiting(go)
        self._requests[waiting] = None
        if self.limit_s < math.inf:
            loop = asyncio.get_running_loop()
            waiting.timer = loop.call_later(self.limit_s, self._go, waiting)
        return lambda: self._forget(waiting)

    async def known(self) -> None:
        """Return once models are known, or after `limit_s` seconds."""
        if not self._models:
            passed = asyncio.Event()
            cancel = self.when_known(passed.set)
            try:
                await passed.wait()
            finally:
                cancel()

    def no_model(self) -> Unavailable:
        """Return the error of a request while no model is known."""
        reason = self.awaited() or "the farm waits for its first worker"
        return Unavailable(f"no model is known yet: {reason}")

    def not_served(self, model: str) -> ModelNotFound | Unavailable:
        """Return the error of a call of an unknown model."""
        if not self._models:
            return self.no_model()
        names = ", ".join(sorted(self._models))
        text = f"model {model!r} is not served here; the models are: {names}"
        awaited = self.awaited()
        return Unavailable(f"{text}; but {awaited}") if awaited else ModelNotFound(text)

    def models_known(self) -> None:
        """Let the requests continue that waited for models."""
        for waiting in list(islice(self._requests, AT_ONCE)):
            self._go(waiting)
        if self._requests:
            asyncio.get_running_loop().call_soon(self.models_known)

    def _go(self, waiting: _Waiting) -> None:
        self._forget(waiting)
        waiting.go()

    def _forget(self, waiting: _Waiting) -> None:
        self._requests.pop(waiting, None)
        if waiting.timer is not None:
            waiting.timer.cancel()

    # Calls

    def call_begins(self, task_id: TaskId, model: str, hints: Hints, now: float) -> None:
        """Limit the wait of a call, submitted at `now`, if no worker has its model.

        Native clients and experiments have no such limit: they end a wait when they want to.
        """
        if self.limit_s == math.inf or self._workers[model] > 0 or hints.patient:
            return
        heapq.heappush(self._calls, (now + self.limit_s, task_id, model))
        if len(self._calls) > SLACK and len(self._calls) % SLACK == 0:
            self._calls = [each for each in self._calls if each[1] in self._open_calls]
            heapq.heapify(self._calls)
        self._set_timer()

    def _set_timer(self) -> None:
        self._timer.set(self._calls[0][0] if self._calls else None)

    def _expire(self) -> None:
        now = time.monotonic()
        while self._calls and self._calls[0][0] <= now:
            _, task_id, model = heapq.heappop(self._calls)
            on_done = self._open_calls.get(task_id)
            if on_done is not None and not self._workers[model] > 0:
                self._drop(task_id)
                text = f"no worker of model {model!r} has joined within {self.limit_s:g} s"
                on_done(Unavailable(": ".join(filter(None, (text, self.why(model))))))
        self._set_timer()

    def close(self) -> None:
        """Let no call wait any more."""
        self._timer.cancel()
        self._calls.clear()


class _Waiting:
    """A request that waits until models are known."""

    __slots__ = ("go", "timer")

    def __init__(self, go: Callable[[], None]) -> None:
        self.go = go
        self.timer: asyncio.TimerHandle | None = None
