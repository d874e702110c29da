"""Runs a sweep: submits points as fast as the farm accepts them, and stores the outcomes.

The farm itself retries calls of lost workers. A point that fails is recorded, and the sweep
continues. If the farm is full or cannot be reached, the sweep waits.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.call import RUN_BYTES, Array
from farm.errors import Cancelled, FarmError, ModelNotFound, Overloaded, Unavailable
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import NO_WORKER, PointStatus, Row
from farm.sweep.file.point_columns import summarise
from farm.sweep.file.progress import Meter, Progress, status_of, write_status
from farm.sweep.file.recovery import RUNNING
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.order.neighbours import load_scipy
from farm.sweep.order.submission import SubmissionOrder
from farm.sweep.run.concurrency_limit import ConcurrencyLimit
from farm.sweep.run.evaluator import CallEvaluator, report
from farm.sweep.run.in_flight import PointInFlight, PointsInFlight, done_rows, row_of

log = logging.getLogger(__name__)

TICK_S = 0.2
STATUS_S = 1.0
"""Seconds between two reports of the progress."""
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
    many seconds. in_flight: points in flight at once, None to adapt the number to the farm.
    """

    max_failures: int | None = None
    max_s: float | None = None
    lost_s: float = 600.0
    in_flight: int | None = None


def rules_of(
    *, seed: Any, workers: Any, in_flight: Any, max_failures: Any, max_hours: Any
) -> Rules:
    """Return the rules of a sweep. Raises SweepError for a number that is too small, or is none."""
    for name, value, least in (
        ("seed", seed, 0),
        ("workers", workers, 1),
        ("in_flight", in_flight, 1),
        ("max_failures", max_failures, 0),
    ):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise SweepError(f"{name} is {value!r}; expected a whole number from {least} on")
    max_s = None
    if max_hours is not None:
        if not isinstance(max_hours, int | float | np.number) or not max_hours > 0:
            raise SweepError(f"max_hours is {max_hours!r}; expected a number of hours above 0")
        max_s = 3600 * max_hours
    return Rules(max_failures=max_failures, max_s=max_s, in_flight=in_flight)


class Stop:
    """A request to stop, which another thread or a signal handler may make.

    asked: stop after the points in flight. at_once: do not wait for them; they remain pending.
    """

    def __init__(self) -> None:
        self.asked = False
        self.at_once = False

    def ask(self) -> None:
        """Request a stop after the points in flight."""
        self.asked = True

    def ask_at_once(self) -> None:
        """Request a stop at once."""
        self.asked = self.at_once = True


class RunHost:
    """The program around a run, which the run asks and informs; this one shows nothing."""

    def show(self, progress: Progress) -> None:
        """Show the progress; called about every second."""

    def stored(self, rows: Iterable[Row]) -> None:
        """Take outcomes that are in the file."""

    def reconnect(self, evaluator: CallEvaluator) -> CallEvaluator:
        """Return the evaluator to use after this one lost the farm. Raises FarmError."""
        return evaluator


class Run:
    """One session of a sweep, on the thread that calls `go`.

    sent: submits the points; those of a probe are in flight already.
    """

    def __init__(
        self,
        store: Store,
        sent: PointsInFlight,
        *,
        rules: Rules,
        stop: Stop,
        host: RunHost | None = None,
    ) -> None:
        self._store = store
        self._sent = sent
        self._rules = rules
        self._stop = stop
        self._host = host or RunHost()
        self._limit = ConcurrencyLimit(rules.in_flight)
        self._meter = Meter(store.known, store.plan, time.monotonic())
        self._todo = SubmissionOrder(store.plan, store.known)
        self._meter.expect(self._todo.expected_s, self._todo.basis)
        self._ending = ""
        self._failures = 0
        self._message = ""
        self._told = 0.0, ""  # when, and what trouble the store had

    def go(self, *, retry_failed: bool = False) -> Progress:
        """Run until no point is pending or the run is stopped, and close the files.

        retry_failed: also retry points that failed before. Raises SweepError if the files cannot
        be finished or another process took over the sweep, OSError.
        """
        self._todo.fill(self._points(retry_failed=retry_failed))
        try:
            if self._todo.is_due(time.monotonic()):
                self._sort_again()
            while self._goes_on():
                self._give()
                self._take()
                if self._todo.is_due(time.monotonic()):
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
        return self._progress(RUNNING)

    def _goes_on(self) -> bool:
        if self._stop.at_once:
            self._ending = self._ending or "interrupted"
            return False
        if self._stop.asked and not self._ending:
            self._end("interrupted")
        if (
            self._rules.max_s is not None
            and self._meter.elapsed_s(time.monotonic()) > self._rules.max_s
        ):
            self._end("out of time")
        if self._sent.points:
            return True
        # If the disk is full, outcomes are only in memory, and leaving would lose them.
        waits_for_disk = bool(self._store.trouble) and not self._stop.asked
        return waits_for_disk or bool(self._todo and not self._ending)

    def _end(self, why: str) -> None:
        """Submit no more points, and cancel those that are queued in the farm."""
        if not self._ending:
            self._ending = why
            if not self._sent.take_back():
                # The oldest are assumed to run, one per worker if the farm does not say how many.
                running = self._sent.use().running
                if running is None:
                    running = self._limit.workers or len(self._sent.points)
                self._cancel_calls(running)
            if self._sent.points:
                self._tell(RUNNING)  # at once: who asked for the end wants to know what is awaited

    # Submitting points

    def _give(self) -> None:
        now = time.monotonic()
        if self._ending or self._store.trouble or not self._todo:
            return
        if self._limit.looks(now):
            self._limit.there_are(self._sent.use().slots)
        room = self._limit.size(now) - len(self._sent.points)
        if room > 0 and self._limit.lost_since is not None and not self._found_again(now):
            return
        # Of points sent together, a cancelled one may run all the same.
        short = self._todo.are_short and self._store.plan.info.repeatable
        most = self._sent.most_together if short else 1
        while room > 0 and self._todo:
            points = self._todo.take(min(room, most))
            room -= len(points)
            try:
                self._sent.submit(points)
            except FarmError as error:
                for point in points[::-1].tolist():
                    self._settle(self._sent.unsent(point), error)
                if self._limit.size(time.monotonic()) == 0:
                    return

    def _found_again(self, now: float) -> bool:
        """Try to reconnect; return whether there is an evaluator to retry with."""
        try:
            self._sent.continue_at(self._host.reconnect(self._sent.evaluator))
        except FarmError as error:
            self._wait_for_farm(error, now)
            return False
        return True

    # Processing answers

    def _take(self) -> None:
        size = 8 * self._store.plan.row_size
        done, failed = self._sent.ended(TICK_S, 1 + min(AT_ONCE, RUN_BYTES // (1 + size)))
        if done:
            self._record_done(done)
        for sent, error in failed:
            self._settle(sent, error)

    def _record_done(self, done: list[PointInFlight]) -> None:
        """Record the outcomes of points that are done."""
        store, now = self._store, time.monotonic()
        rows = done_rows(store.plan, done, store.known.attempts, store.worker_id)
        if rows is None:
            for sent in done:
                self._record(sent, None)
            return
        self._message = ""
        workers, counts = np.unique(rows.heads["worker"], return_counts=True)
        for worker, count in zip(workers.tolist(), counts.tolist(), strict=True):
            name = "" if worker == NO_WORKER else store.known.workers[worker].name
            self._limit.answered(name, now, count)
        self._todo.ran(rows.heads["t_run"])
        store.add(rows)
        self._host.stored(rows)

    def _settle(self, sent: PointInFlight, error: BaseException) -> None:
        """Record the failure of a point, or requeue the point if the farm was unavailable."""
        self._sent.drop(sent)
        if isinstance(error, Cancelled) and sent.is_taken_back:
            self._todo.put_back([sent.point])
        elif isinstance(error, Overloaded | Unavailable | ModelNotFound):
            self._todo.put_back([sent.point])
            self._wait_for_farm(error, time.monotonic())
        elif isinstance(error, FarmError | CancelledError):
            self._record(sent, error)
        else:  # a bug in a client must not stop a sweep of days
            detail = "".join(traceback.format_exception(error))
            self._record(sent, FarmError(f"{type(error).__name__}: {error}", detail=detail))

    def _record(self, sent: PointInFlight, error: BaseException | None) -> None:
        """Record the outcome of a point."""
        store, results = self._store, sent.results()
        worker = results[0].worker if results else ""
        attempt = int(store.known.attempts[sent.point]) + 1
        row = row_of(store.plan, sent, error, attempt=attempt, worker=store.worker_id(worker))
        if row.status is not PointStatus.CANCELLED:
            self._limit.answered(worker, time.monotonic())
            self._message = ""
        store.add(row)
        self._host.stored([row])
        if row.status is PointStatus.DONE:
            self._todo.ran(np.array([row.t_run]))
        else:
            self._failures += 1
            limit = self._rules.max_failures
            if limit is not None and self._failures > limit:
                self._end("too many failures")

    def _wait_for_farm(self, error: BaseException, now: float) -> None:
        if isinstance(error, Overloaded):
            self._limit.refused(len(self._sent.points), now)
            self._message = f"the farm is full ({error}); the sweep waits"
            return
        if self._limit.lost_since is None:
            log.warning("the farm cannot be reached (%s): the sweep waits for it", error)
        self._limit.lost(now)
        self._message = f"the farm cannot be reached ({error}); the sweep waits"
        if now - (self._limit.lost_since or now) > self._rules.lost_s:
            self._end("farm lost")

    def _cancel_calls(self, keep: int) -> None:
        """Cancel all points without an answer except the `keep` oldest; they become pending."""
        self._todo.put_back(self._sent.cancel(keep))

    def _sort_again(self) -> None:
        """Improve the guess of the run times, and sort all points that have not begun."""
        load_scipy()  # once, so it must not count as the time that a guess takes
        began = time.monotonic()
        changed = self._todo.learn(time.time())
        self._todo.learned(began, time.monotonic())
        self._meter.expect(self._todo.expected_s, self._todo.basis)
        if not changed or self._ending:
            return
        # Points queued in the farm run in the order of their submission: submit them again. One
        # that has begun meanwhile runs twice, which some models do not allow.
        plan = self._store.plan
        running = self._sent.use().running if plan.info.repeatable else None
        if running is not None:
            self._cancel_calls(recallable_after(running, varied_config=plan.varies_config))
        self._todo.sort()

    def _leave(self) -> None:
        self._todo.put_back(self._sent.cancel_all())

    # Reporting and finishing

    def _tell_if_due(self) -> None:
        at, trouble = self._told
        if time.monotonic() - at >= STATUS_S or self._store.trouble != trouble:
            if self._ending and not self._sent.take_back() and self._sent.use().running == 0:
                self._cancel_calls(0)  # workers that have left returned them to the queue
            self._tell(RUNNING)

    def _tell(self, state: str) -> Progress:
        self._told = time.monotonic(), self._store.trouble
        stopping = f"stopping: {self._ending}" if self._ending and state == RUNNING else ""
        message = self._store.trouble or self._message or stopping
        progress = self._progress(state, message)
        write_status(status_of(self._store.path), progress)
        report(self._sent.evaluator, progress, self._sent.hints.client)
        self._host.show(progress)
        return progress

    def _progress(self, state: str, message: str = "") -> Progress:
        in_flight = len(self._sent.points)
        return self._meter.now(state, time.monotonic(), in_flight=in_flight, message=message)

    def _points(self, *, retry_failed: bool) -> Array:
        """Return the points to evaluate: pending ones, and failed ones to retry."""
        status = self._store.known.status
        todo = status != PointStatus.DONE if retry_failed else status == PointStatus.PENDING
        todo[list(self._sent.points)] = False
        return np.flatnonzero(todo)

    def _finish(self) -> Progress:
        state = self._ending if self._todo else COMPLETE
        self._message = ""
        summary = summarise(self._store.known, self._meter.elapsed_s(time.monotonic()))
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
