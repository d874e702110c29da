"""Waiting for a first worker, with a limit.

A farm may be asked before it has a worker: its jobs are pending, or its workers start elsewhere.
Requests then wait until the farm knows its models, and calls until a worker with their model joins.
While only some of the models are known, requests for another name wait until all are.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import takewhile

from farm.call import Call, Hints, ModelInfo, Operation, WorkerInfo
from farm.dispatcher.backend import CancelCall
from farm.dispatcher.events import Departure
from farm.dispatcher.failing import Failure, OnFailed
from farm.dispatcher.timer import Timer
from farm.errors import FarmError, ModelNotFound, Unavailable
from farm.scheduler.state import TaskId

AT_ONCE = 32
"""Requests that continue in one iteration of the event loop, so that others get their turn."""

SLACK = 1000
"""Calls that may have ended before they are removed from the list of those with a limit."""

CHECK_S = 20.0
"""Seconds between two questions when a worker is expected. A batch system needs some seconds to
plan a job that has just been submitted."""

NO_CALL = Call("", Operation.EVALUATE)
"""Stands for requests of models that are not known, in reports of failures."""

UNKNOWN = "the model of a request is not known yet"


class FirstWorker:
    """The requests that wait until models are known, and the calls whose model has no worker.

    limit_s: how long each of them waits. awaited: returns why models are not known yet, or "" if
    none is expected. incomplete: returns whether more models are expected beside the known ones.
    why: returns why a model has no worker, or "" if that is not known. starts_in:
    returns in how many seconds a worker with a model, or for "" with unknown models, may start;
    None if that is not known. Nothing waits that would reach its limit before. may_come: returns
    whether more workers may join.
    """

    def __init__(
        self,
        models: Mapping[str, ModelInfo],
        open_calls: Collection[TaskId],
        fail: Callable[[TaskId, FarmError], None],
        on_failed: Iterable[OnFailed] = (),
    ) -> None:
        """open_calls: those without an outcome. fail: answers a call with an error.

        on_failed: called with the requests that wait in vain, whose model is not known.
        """
        self.limit_s = math.inf
        self.awaited: Callable[[], str] = str
        self.incomplete: Callable[[], bool] = bool
        self.may_come: Callable[[], bool] = bool
        self.why: Callable[[str], str] = lambda model: ""
        self.starts_in: Callable[[str], float | None] = lambda model: None
        self._models = models
        self._open_calls = open_calls
        self._fail_call = fail
        self._on_failed = on_failed
        self._workers: Counter[str] = Counter()  # by model
        self._requests: dict[_Waiting, None] = {}  # in the order in which they came
        self._going: deque[_Waiting] = deque()
        self._news = (0, True)  # the number of models at the last look, and whether more may come
        # By model, heaps: the first limit comes first.
        self._calls: dict[str, list[tuple[float, TaskId]]] = {}
        self._timer = Timer(self._check)
        self._check_at = math.inf

    # Facts

    def joined(self, info: WorkerInfo, before: WorkerInfo | None = None) -> None:
        """Report that a worker joined; `before` is its earlier start, if that has not left."""
        if before is not None:
            self.left(before)
        self._workers.update(model.name for model in info.models)
        self.models_known()

    def left(self, info: WorkerInfo, departure: Departure | None = None) -> None:
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

    def when_known(
        self, go: Callable[[], None], known: Callable[[], bool] | None = None
    ) -> CancelCall:
        """Call `go` later: once the model is known, or none is expected, or after `limit_s`.

        known: whether the model is known; None: any model will do. The result cancels the
        wait.
        """
        now = time.monotonic()
        waiting = _Waiting(go, known, now + self.limit_s)
        self._requests[waiting] = None
        self._check_soon(waiting.limit, now)
        return lambda: self._forget(waiting)

    async def known(
        self, model: str | None = None, is_known: Callable[[], bool] | None = None
    ) -> None:
        """Return once a model is known, or none is expected, or after `limit_s` seconds.

        model: its name; None: any. is_known: whether it is, if other names count, too.
        """
        known = is_known
        if known is None and model is not None:
            known = partial(self._models.__contains__, model)
        if not self._may_go(known):
            passed = asyncio.Event()
            cancel = self.when_known(passed.set, known)
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
        return self.unknown(f"model {model!r} is not served here; the models are: {names}")

    def unknown(self, text: str) -> ModelNotFound | Unavailable:
        """Return the error of a request for a model that is not known, which `text` says."""
        awaited = self.awaited()
        return Unavailable(f"{text}; but {awaited}") if awaited else ModelNotFound(text)

    def models_known(self) -> None:
        """Let the requests continue that waited for models which are known now."""
        news = len(self._models), self.incomplete()
        if news != self._news:
            self._news = news
            self._let_go([each for each in self._requests if self._may_go(each.known)])

    def _may_go(self, known: Callable[[], bool] | None) -> bool:
        if not self._models:
            return False
        return known is None or known() or not self.incomplete()

    def _let_go(self, some: Iterable[_Waiting]) -> None:
        """Let requests continue, so many in an iteration of the event loop."""
        is_going = bool(self._going)
        self._going += some
        if not is_going:
            self._go()

    def _go(self) -> None:
        for _ in range(min(AT_ONCE, len(self._going))):
            waiting = self._going.popleft()
            if waiting in self._requests:
                self._forget(waiting)
                waiting.go()
        if self._going:
            asyncio.get_running_loop().call_soon(self._go)

    def _forget(self, waiting: _Waiting) -> None:
        self._requests.pop(waiting, None)

    # Calls

    def call_begins(self, task_id: TaskId, model: str, hints: Hints, now: float) -> None:
        """Limit the wait of a call, submitted at `now`, if no worker has its model.

        Native clients and experiments have no such limit: they end a wait when they want to.
        """
        if self.limit_s == math.inf or self._workers[model] > 0 or hints.patient:
            return
        calls = self._calls.setdefault(model, [])
        heapq.heappush(calls, (now + self.limit_s, task_id))
        if len(calls) > SLACK and len(calls) % SLACK == 0:
            calls[:] = [each for each in calls if each[1] in self._open_calls]
            heapq.heapify(calls)
        self._check_soon(now + self.limit_s, now)

    # Limits

    def _check_soon(self, limit: float, now: float) -> None:
        """Check at `limit`, and before that whenever a worker may be expected."""
        at = min(limit, now + CHECK_S)
        if limit < math.inf and at < self._check_at:
            self._check_at = at
            self._timer.set(at)

    def _check(self) -> None:
        now = time.monotonic()
        self._check_at = math.inf
        if self._requests:
            limit = now + (self.starts_in("") or 0.0)
            late = list(takewhile(lambda each: each.limit <= limit, self._requests))
            self._tell_late(len(late))
            self._let_go(late)
            later = next((each.limit for each in self._requests if each.limit > limit), math.inf)
            self._check_soon(later, now)
        for model, calls in list(self._calls.items()):
            expected_s = 0.0 if self._workers[model] > 0 else self.starts_in(model) or 0.0
            while calls and calls[0][0] <= now + expected_s:
                limit, task_id = heapq.heappop(calls)
                self._fail(task_id, model, "has joined" if limit <= now else "is expected to start")
            if calls:
                self._check_soon(calls[0][0], now)
            else:
                del self._calls[model]

    def _tell_late(self, requests: int) -> None:
        """Report requests that go on although no model is known, or not the one they ask for."""
        if requests:
            error = self.no_model() if not self._models else self.unknown(UNKNOWN)
            for tell in self._on_failed:
                tell(Failure(error, requests, NO_CALL, None, "", ""))

    def _fail(self, task_id: TaskId, model: str, how: str) -> None:
        """Answer a call without a worker, if it is still open."""
        if task_id in self._open_calls and not self._workers[model] > 0:
            text = f"no worker of model {model!r} {how} within {self.limit_s:g} s"
            self._fail_call(task_id, Unavailable(": ".join(filter(None, (text, self.why(model))))))

    def close(self) -> None:
        """Let no call wait any more."""
        self._timer.cancel()
        self._calls.clear()


class _Waiting:
    """A request that waits until its model, or any, is known, or until its limit."""

    __slots__ = ("go", "known", "limit")

    def __init__(
        self, go: Callable[[], None], known: Callable[[], bool] | None, limit: float
    ) -> None:
        self.go = go
        self.known = known
        self.limit = limit
