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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile

from farm.call import NO_HINTS, Call, Hints, ModelInfo, Operation, WorkerInfo
from farm.dispatcher.ended import EndedCalls
from farm.dispatcher.events import Departure
from farm.dispatcher.turns import Timer
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

FIRST_AWAITED = "the farm waits for its first worker"

UNKNOWN = "the model of a request is not known yet"


class FirstWorker:
    """The requests that wait until models are known, and the calls whose model has no worker.

    limit_s: how long each of them waits. Nothing waits that would reach its limit before a worker
    is expected to start.
    """

    def __init__(
        self,
        models: Mapping[str, ModelInfo],
        open_calls: Collection[TaskId],
        fail: Callable[[TaskId, FarmError], None],
        ended: EndedCalls | None = None,
        expected: Expectation | None = None,
        limit_s: float = math.inf,
    ) -> None:
        """open_calls: those without an outcome. fail: answers a call with an error.

        ended: gets the requests that wait in vain, whose model is not known.
        expected: the workers that may join; None: none is known of.
        """
        self.expected = expected or Expectation()
        self.limit_s = limit_s
        self._over = ""  # why nothing is awaited any more
        self.changed = asyncio.Event()  # more models are known
        self._models = models
        self._fail_call = fail
        self._ended = ended
        self.workers: Counter[str] = Counter()  # by model
        self._requests: dict[_Waiting, None] = {}  # in the order in which they came
        self._news = (0, True)  # the number of models at the last look, and whether more may come
        self._calls = _LimitedCalls(open_calls)
        self._timer = Timer(self._check)

    # Facts

    def joined(self, info: WorkerInfo, before: WorkerInfo | None = None) -> None:
        """Report that a worker joined; `before` is its earlier start, if that has not left."""
        if before is not None:
            self.left(before)
        self.workers.update(model.name for model in info.models)
        self.models_known()

    def left(self, info: WorkerInfo, departure: Departure | None = None) -> None:
        """Report that a worker left."""
        self.workers.subtract(model.name for model in info.models)

    def may_have(self, model: str) -> bool:
        """Whether a worker has the model, or workers that have it may join."""
        return self.workers[model] > 0 or self.expected.may_come

    # Requests

    @property
    def requests(self) -> int:
        """The number of requests that wait until models are known."""
        return len(self._requests)

    def when_known(
        self, go: Callable[[], None], known: Callable[[], bool] | None = None
    ) -> Callable[[], None]:
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

    def awaited(self) -> str:
        """Return why models are not known yet; "" if none is expected."""
        return self._over or self.expected.awaited(self._models)

    def no_model(self) -> Unavailable:
        """Return the error of a request while no model is known."""
        return Unavailable(f"no model is known yet: {self.awaited() or FIRST_AWAITED}")

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

    def expects(self, model: str) -> bool:
        """Whether a request for the model waits: it is not known, but may be later."""
        return not self._may_go(partial(self._models.__contains__, model))

    def waits_for(self) -> str:
        """Return why the farm does not know all of its models yet; "" if it does."""
        return "" if self._may_go(bool) else self.awaited() or FIRST_AWAITED

    def fails(self, reason: str) -> None:
        """Let no request wait any more: no more models come, for the first reason given."""
        if self.limit_s <= 0.0:
            return
        self._over, self.limit_s = reason, 0.0
        self._tell_late(len(self._requests))
        self._let_go(list(self._requests))

    def models_known(self) -> None:
        """Let the requests continue that waited for models which are known now."""
        news = len(self._models), self.expected.incomplete
        if news != self._news:
            self._news = news
            self.changed.set()
            self._let_go([each for each in self._requests if self._may_go(each.known)])

    def _may_go(self, known: Callable[[], bool] | None) -> bool:
        if not self._models:
            return False
        return known is None or known() or not self.expected.incomplete

    def _let_go(self, some: Iterable[_Waiting]) -> None:
        """Let requests continue, so many in an iteration of the event loop."""
        rest = iter(some)
        now = list(islice(rest, AT_ONCE))
        for waiting in now:
            if waiting in self._requests:
                self._forget(waiting)
                waiting.go()
        if len(now) == AT_ONCE:
            asyncio.get_running_loop().call_soon(self._let_go, rest)

    def _forget(self, waiting: _Waiting) -> None:
        self._requests.pop(waiting, None)

    # Calls

    def call_begins(self, task_id: TaskId, model: str, hints: Hints, now: float) -> None:
        """Limit the wait of a call, submitted at `now`, whose model no worker has.

        Native clients and experiments have no such limit: they end a wait when they want to.
        """
        if self.limit_s == math.inf or hints.patient:
            return
        self._calls.add(model, now + self.limit_s, task_id)
        self._check_soon(now + self.limit_s, now)

    # Limits

    def _check_soon(self, limit: float, now: float) -> None:
        """Check at `limit`, and before that whenever a worker may be expected."""
        at = min(limit, now + CHECK_S)
        if limit < math.inf and (self._timer.at is None or at < self._timer.at):
            self._timer.set(at)

    def _check(self) -> None:
        now = time.monotonic()
        if self._requests:
            limit = now + (self.expected.starts_in("") or 0.0)
            late = list(takewhile(lambda each: each.limit <= limit, self._requests))
            self._tell_late(len(late))
            self._let_go(late)
            later = next((each.limit for each in self._requests if each.limit > limit), math.inf)
            self._check_soon(later, now)
        for model in self._calls.models():
            has_worker = self.workers[model] > 0
            expected_s = 0.0 if has_worker else self.expected.starts_in(model) or 0.0
            for limit, task_id in self._calls.pop(model, now + expected_s):
                if not has_worker:
                    how = "has joined" if limit <= now else "is expected to start"
                    text = f"no worker of model {model!r} {how} within {self.limit_s:g} s"
                    words = filter(None, (text, self.expected.why(model)))
                    self._fail_call(task_id, Unavailable(": ".join(words)))
            self._check_soon(self._calls.first(model), now)

    def _tell_late(self, requests: int) -> None:
        """Report requests that go on although no model is known, or not the one they ask for."""
        if requests and self._ended is not None:
            error = self.no_model() if not self._models else self.unknown(UNKNOWN)
            self._ended.refused(NO_CALL, NO_HINTS, error, requests)

    def close(self) -> None:
        """Let no call wait any more."""
        self._timer.set(None)
        self._calls.clear()


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request that waits until its model, or any, is known, or until its limit."""

    go: Callable[[], None]
    known: Callable[[], bool] | None
    limit: float


class _LimitedCalls:
    """The open calls whose wait has a limit: of each model a heap, in which the first comes first.

    Those that have ended are left out, or removed now and then.
    """

    def __init__(self, open_calls: Collection[TaskId]) -> None:
        self._open = open_calls
        self._heaps: dict[str, list[tuple[float, TaskId]]] = {}

    def add(self, model: str, limit: float, task_id: TaskId) -> None:
        heap = self._heaps.setdefault(model, [])
        heapq.heappush(heap, (limit, task_id))
        if len(heap) > SLACK and len(heap) % SLACK == 0:
            heap[:] = [each for each in heap if each[1] in self._open]
            heapq.heapify(heap)

    def models(self) -> list[str]:
        return list(self._heaps)

    def pop(self, model: str, until: float) -> Iterator[tuple[float, TaskId]]:
        """Remove those with a limit up to `until`; yield limits and tasks of the open ones."""
        heap = self._heaps[model]
        while heap and heap[0][0] <= until:
            call = heapq.heappop(heap)
            if call[1] in self._open:
                yield call

    def first(self, model: str) -> float:
        """Return the first limit; infinity if the model has none, and forget it then."""
        if heap := self._heaps[model]:
            return heap[0][0]
        del self._heaps[model]
        return math.inf

    def clear(self) -> None:
        self._heaps.clear()


class Expectation:
    """The workers that sources, such as a batch system, are expected to bring.

    Each source has an expectation of its own. Without any, no worker is expected: so it is with a
    farm whose workers all start elsewhere.
    """

    _sources: Sequence[Expectation] = ()
    _forecasts = True

    def __init__(self, sources: Sequence[Expectation] = (), *, forecasts: bool = True) -> None:
        """sources: those whose reasons count first come first.

        forecasts: whether they say when workers may start. A limit that the user has set holds
        whatever a batch system forecasts.
        """
        self._sources = sources
        self._forecasts = forecasts

    @property
    def incomplete(self) -> bool:
        """Whether more models are expected beside the known ones."""
        return bool(self._sources) and any(each.incomplete for each in self._sources)

    @property
    def may_come(self) -> bool:
        """Whether more workers may join."""
        return any(each.may_come for each in self._sources)

    def awaited(self, known: Collection[str]) -> str:
        """Return why models beside the known ones are not known yet; "" if none is expected."""
        return next(filter(None, (each.awaited(known) for each in self._sources)), "")

    def why(self, model: str) -> str:
        """Return why no worker has a model; "" if that is not known."""
        return next(filter(None, (each.why(model) for each in self._sources)), "")

    def starts_in(self, model: str) -> float | None:
        """Return in how many seconds a worker with a model may start; None if that is not known.

        For "": a worker with models that are not known.
        """
        if not self._forecasts:
            return None
        times = [each.starts_in(model) for each in self._sources]
        return min((time for time in times if time is not None), default=None)
