"""Runs a sweep: submits points as fast as the farm accepts them, and stores the outcomes.

The farm itself retries calls of lost workers. A point that fails is recorded, and the sweep
continues. If the farm is full or cannot be reached, the sweep waits.
"""

from __future__ import annotations

import logging
import queue
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass

from farm.call import Array, Hints
from farm.errors import FarmError, ModelNotFound, Overloaded, Unavailable
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.progress import Meter, Progress, status_of, write_status
from farm.sweep.file.recovery import RUNNING
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.file.summary import summarise
from farm.sweep.order.submission import SubmissionOrder
from farm.sweep.run.concurrency_limit import ConcurrencyLimit
from farm.sweep.run.in_flight import (
    CallEvaluator,
    PointInFlight,
    report,
    row_of,
    running_calls,
    submit_point,
)

log = logging.getLogger(__name__)

BULK = Hints(chain="")
"""A sweep is one caller, however many points are open."""

TICK_S = 0.2
STATUS_S = 1.0
AT_ONCE = 1024
"""Most answers to process before the next points are submitted."""
LEAST_MARGIN = 4
LOOK_AHEAD = 5
"""Calls that run or may run next, per running call, where workers prefer some configs."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of a run: when it stops, and how many points are in flight.

    max_failures: submit no more points once more than this have failed in this session; max_s:
    submit none after this many seconds; lost_s: give up if the farm cannot be reached for this
    many seconds. in_flight: points in flight at once, None to adapt the number to the farm; start:
    the number at first if it is adapted, None for the default.
    """

    max_failures: int | None = None
    max_s: float | None = None
    lost_s: float = 600.0
    in_flight: int | None = None
    start: int | None = None
    hints: Hints = BULK


class Stop:
    """A request to stop, which another thread or a signal handler may make.

    asked: stop after the points in flight. at_once: do not wait for them; they remain pending.
    """

    def __init__(self) -> None:
        self.asked = False
        self.at_once = False

    def ask(self) -> None:
        """Request a stop; on the second call, a stop at once."""
        self.at_once = self.asked
        self.asked = True

    def ask_at_once(self) -> None:
        """Request a stop at once."""
        self.asked = self.at_once = True


class Run:
    """One session of a sweep, on the thread that calls `go`.

    started: points that are in flight already, such as those of a probe.
    watch: called about every second; on_row: called with every outcome after it is stored.
    reconnect: returns a new evaluator for one that cannot reach the farm. Raises FarmError.
    """

    def __init__(
        self,
        store: Store,
        evaluator: CallEvaluator,
        *,
        rules: Rules,
        stop: Stop,
        started: Sequence[PointInFlight] = (),
        watch: Callable[[Progress], None] = lambda progress: None,
        on_row: Callable[[Row], None] = lambda row: None,
        reconnect: Callable[[], CallEvaluator] | None = None,
    ) -> None:
        self._store = store
        self._plan = store.plan
        self._evaluator = evaluator
        self._rules = rules
        self._stop = stop
        self._watch = watch
        self._on_row = on_row
        self._reconnect = reconnect
        start = {} if rules.start is None else {"start": rules.start}
        self._limit = ConcurrencyLimit(rules.in_flight, **start)
        self._meter = Meter(store.known, title=store.plan.title, run_id=store.plan.run_id)
        self._todo = SubmissionOrder(store.plan, store.known)
        self._meter.expect(self._todo.expected_s, self._todo.basis)
        self._answers: queue.SimpleQueue[tuple[PointInFlight, int]] = queue.SimpleQueue()
        self._in_flight: dict[int, PointInFlight] = {}
        for sent in started:
            self._adopt(sent)
        self._ending = ""
        self._failures = 0
        self._lost_since: float | None = None
        self._message = ""
        self._began = time.monotonic()
        self._told = 0.0

    def go(self, *, retry_failed: bool = False) -> Progress:
        """Run until no point is pending or the run is stopped, and close the files.

        retry_failed: also retry points that failed before. Raises SweepError if the files cannot
        be finished, LockLost, OSError.
        """
        points = pending_points(self._store, retry_failed=retry_failed).tolist()
        self._todo.fill(point for point in points if point not in self._in_flight)
        try:
            if self._todo.is_due():
                self._sort_again()
            while self._goes_on():
                self._give()
                self._take()
                if self._todo.is_due():
                    self._sort_again()
                self._store.commit_if_due()
                self._tell_if_due()
            self._leave()
        except BaseException:
            self._leave()
            self._store.abandon()
            raise
        return self._finish()

    def now(self) -> Progress:
        """Return the current progress; only for the thread that calls `go`, before or after it."""
        return self._meter.now(RUNNING, in_flight=len(self._in_flight))

    def _goes_on(self) -> bool:
        if self._stop.at_once:
            self._end("interrupted")
            return False
        if self._stop.asked and not self._ending:
            self._end("interrupted")
        if self._rules.max_s is not None and time.monotonic() - self._began > self._rules.max_s:
            self._end("out of time")
        if self._in_flight:
            return True
        # If the disk is full, outcomes are only in memory, and leaving would lose them.
        waits_for_disk = bool(self._store.trouble) and not self._stop.asked
        return waits_for_disk or bool(self._todo and not self._ending)

    def _end(self, why: str) -> None:
        """Submit no more points, and cancel those that are queued in the farm."""
        if not self._ending:
            self._ending = why
            # The oldest points without an answer, one per worker, are assumed to be running.
            if self._limit.workers:
                self._cancel_calls(self._limit.workers)

    # Submitting points

    def _give(self) -> None:
        now = time.monotonic()
        if self._ending or self._store.trouble or not self._todo:
            return
        room = self._limit.size(now) - len(self._in_flight)
        if room > 0 and self._lost_since is not None and not self._found_again(now):
            return
        for _ in range(min(room, len(self._todo))):
            point = self._todo.take()
            try:
                sent = submit_point(self._evaluator, self._plan, point, self._rules.hints)
            except FarmError as error:
                self._settle(PointInFlight(point), error, time.time())
                if self._limit.size(time.monotonic()) == 0:
                    return
            else:
                self._adopt(sent)

    def _adopt(self, sent: PointInFlight) -> None:
        self._in_flight[sent.point] = sent
        # The callback runs on a thread of the client; the queue passes the answer to this thread.
        sent.on_answer(lambda sent, k: self._answers.put((sent, k)))

    def _found_again(self, now: float) -> bool:
        """Try to reconnect; return whether there is an evaluator to retry with."""
        if self._reconnect is None:
            return True
        try:
            self._evaluator = self._reconnect()
        except FarmError as error:
            self._wait_for_farm(error, now)
            return False
        return True

    # Processing answers

    def _take(self) -> None:
        try:
            self._answered(self._answers.get(timeout=TICK_S))
            for _ in range(AT_ONCE):
                self._answered(self._answers.get_nowait())
        except queue.Empty:
            pass

    def _answered(self, answer: tuple[PointInFlight, int]) -> None:
        sent, k = answer
        if self._in_flight.get(sent.point) is not sent:
            return  # settled by another of its calls, or cancelled
        at = sent.answered_at.get(k, time.time())
        try:
            sent.futures[k].result()
        except (FarmError, CancelledError) as error:
            self._settle(sent, error, at)
        except Exception as error:  # a bug in a client must not stop a sweep of days
            detail = "".join(traceback.format_exception(error))
            known = FarmError(f"{type(error).__name__}: {error}", detail=detail)
            self._settle(sent, known, at)
        else:
            if len(sent.results()) == len(sent.futures):
                self._settle(sent, None, at)

    def _settle(self, sent: PointInFlight, error: BaseException | None, at: float) -> None:
        """Record the outcome of a point, or requeue the point if the farm was unavailable."""
        self._in_flight.pop(sent.point, None)
        sent.cancel()
        if isinstance(error, Overloaded | Unavailable | ModelNotFound):
            self._todo.put_back(sent.point)
            self._wait_for_farm(error, time.monotonic())
            return
        results = sent.results()
        worker = results[0].worker if results else ""
        attempt = int(self._store.known.attempts[sent.point]) + 1
        row = row_of(
            self._plan,
            sent,
            error,
            attempt=attempt,
            worker=self._store.worker_id(worker),
            answered=at,
        )
        if row.status is not PointStatus.CANCELLED:
            self._limit.answered(worker, time.monotonic())
            self._lost_since, self._message = None, ""
        self._store.add(row)
        self._on_row(row)
        if row.status is PointStatus.DONE:
            self._todo.ran(row.t_run)
        else:
            self._failures += 1
            limit = self._rules.max_failures
            if limit is not None and self._failures > limit:
                self._end("too many failures")

    def _wait_for_farm(self, error: BaseException, now: float) -> None:
        if isinstance(error, Overloaded):
            self._limit.refused(len(self._in_flight), now)
            self._message = f"the farm is full ({error}); the sweep waits"
            return
        self._limit.lost(now)
        if self._lost_since is None:
            self._lost_since = now
            log.warning("the farm cannot be reached (%s): the sweep waits for it", error)
        self._message = f"the farm cannot be reached ({error}); the sweep waits"
        if now - self._lost_since > self._rules.lost_s:
            self._end("farm lost")

    def _cancel_calls(self, keep: int) -> None:
        """Cancel all points without an answer except the `keep` oldest; they become pending."""
        waiting = [point for point, sent in self._in_flight.items() if not sent.answered_at]
        for point in reversed(waiting[keep:]):
            self._in_flight.pop(point).cancel()
            self._todo.put_back(point)

    def _sort_again(self) -> None:
        """Improve the guess of the run times, and sort all points that have not begun."""
        changed = self._todo.learn()
        self._meter.expect(self._todo.expected_s, self._todo.basis)
        if not changed or self._ending:
            return
        # Points queued in the farm run in the order of their submission: submit them again. One
        # that has begun meanwhile runs twice, which some models do not allow.
        info = self._plan.info
        running = running_calls(self._evaluator, info.name) if info.repeatable else None
        if running is not None:
            self._cancel_calls(recallable_after(running, varied_config=self._plan.varies_config))
        self._todo.sort()

    def _leave(self) -> None:
        for point, sent in self._in_flight.items():
            sent.cancel()
            self._todo.put_back(point)
        self._in_flight.clear()

    # Reporting and finishing

    def _tell_if_due(self) -> None:
        if time.monotonic() - self._told >= STATUS_S:
            self._tell(RUNNING)

    def _tell(self, state: str) -> Progress:
        self._told = time.monotonic()
        stopping = f"stopping: {self._ending}" if self._ending and state == RUNNING else ""
        message = self._store.trouble or self._message or stopping
        progress = self._meter.now(state, in_flight=len(self._in_flight), message=message)
        write_status(status_of(self._store.path), progress)
        report(self._evaluator, progress, self._rules.hints.client)
        self._watch(progress)
        return progress

    def _finish(self) -> Progress:
        state = self._ending if self._todo else COMPLETE
        self._message = ""
        summary = summarise(self._store.known, time.monotonic() - self._began)
        try:
            self._store.close(state, summary)
        except Exception as error:
            self._message = str(error)
            self._tell("failed")
            raise
        return self._tell(state)


def recallable_after(running: int, *, varied_config: bool) -> int:
    """Return how many of the oldest points may be running if the farm runs this many calls.

    The margin covers runs that begin meanwhile. If configs vary, the farm may prefer one among the
    first calls that wait, so more of them are left alone.
    """
    return LOOK_AHEAD * running if varied_config else running + max(LEAST_MARGIN, running // 4)


def pending_points(store: Store, *, retry_failed: bool) -> Array:
    """Return the points to evaluate in mixed order: pending ones, and failed ones to retry."""
    order = store.plan.mixed()
    status = store.known.status[order]
    wanted = status == PointStatus.PENDING
    if retry_failed:
        wanted |= status > PointStatus.DONE
    points: Array = order[wanted]
    return points
