"""Runs a sweep: gives points to the farm as fast as it takes them, and stores what comes back.

Retries of lost workers are the farm's business; a point that fails is recorded and the sweep goes
on. What is no point's fault, a full farm or a lost connection, makes the sweep wait.
"""

from __future__ import annotations

import logging
import queue
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass

from farm.call import NO_HINTS, Array, Hints
from farm.errors import FarmError, ModelNotFound, Overloaded, Unavailable
from farm.sweep.flight import Evaluator, Flight, row_of, send
from farm.sweep.journal import Row, Status
from farm.sweep.progress import Meter, Progress, status_of, write_status
from farm.sweep.recover import RUNNING
from farm.sweep.store import COMPLETE, Store
from farm.sweep.summary import summarise
from farm.sweep.window import Window

log = logging.getLogger(__name__)

TICK_S = 0.2
STATUS_S = 1.0
AT_ONCE = 1024
"""Answers taken in before the next points are given."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a sweep runs and when it stops.

    max_failures: stop giving points when more have failed since the start; max_s: when it has run
    so long; lost_s: give up when the farm cannot be reached for so long. in_flight: points in the
    farm at once, None to find it out; start: points given at first, when it is found out.
    """

    max_failures: int | None = None
    max_s: float | None = None
    lost_s: float = 600.0
    in_flight: int | None = None
    start: int | None = None
    hints: Hints = NO_HINTS


class Stop:
    """A wish to end, which another thread or a signal handler may utter.

    `asked`: points in flight are waited for; `at_once`: they are not, and remain pending.
    """

    def __init__(self) -> None:
        self.asked = False
        self.at_once = False

    def ask(self) -> None:
        """End soon; the second time, at once."""
        self.at_once = self.asked
        self.asked = True

    def ask_at_once(self) -> None:
        """End at once."""
        self.asked = self.at_once = True


class Run:
    """One session of a sweep, on the thread that calls `go`.

    flights: points that are in the farm already, as by a probe.
    watch: called about every second; on_row: called with every outcome, once it is stored.
    reconnect: gives an evaluator in place of one that cannot reach the farm. Raises FarmError.
    """

    def __init__(
        self,
        store: Store,
        evaluator: Evaluator,
        *,
        rules: Rules,
        stop: Stop,
        flights: Sequence[Flight] = (),
        watch: Callable[[Progress], None] = lambda progress: None,
        on_row: Callable[[Row], None] = lambda row: None,
        reconnect: Callable[[], Evaluator] | None = None,
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
        self._window = Window(rules.in_flight, **start)
        self._meter = Meter(store.known, title=store.plan.title, run_id=store.plan.run_id)
        self._answers: queue.SimpleQueue[tuple[Flight, int]] = queue.SimpleQueue()
        self._flights: dict[int, Flight] = {}
        for flight in flights:
            self._adopt(flight)
        self._todo: deque[int] = deque()
        self._ending = ""
        self._failures = 0
        self._lost_since: float | None = None
        self._message = ""
        self._began = time.monotonic()
        self._told = 0.0

    def go(self, *, retry_failed: bool = False) -> Progress:
        """Run until no point is pending or something says stop; then the files are closed.

        retry_failed: also the points that failed before. Raises SweepError when the files cannot
        be finished, LockLost, OSError.
        """
        points = pending_points(self._store, retry_failed=retry_failed).tolist()
        self._todo.extend(point for point in points if point not in self._flights)
        try:
            while self._goes_on():
                self._give()
                self._take()
                self._store.commit_if_due()
                self._tell_if_due()
            self._leave()
        except BaseException:
            self._leave()
            self._store.abandon()
            raise
        return self._finish()

    def now(self) -> Progress:
        """How far the sweep is; for the thread that calls `go`, before or after."""
        return self._meter.now(RUNNING, in_flight=len(self._flights))

    def _goes_on(self) -> bool:
        if self._stop.at_once:
            self._end("interrupted")
            return False
        if self._stop.asked and not self._ending:
            self._end("interrupted")
        if self._rules.max_s is not None and time.monotonic() - self._began > self._rules.max_s:
            self._end("out of time")
        if self._flights:
            return True
        # With a full disk, outcomes in memory would be lost by leaving.
        waits_for_disk = bool(self._store.trouble) and not self._stop.asked
        return waits_for_disk or bool(self._todo and not self._ending)

    def _end(self, why: str) -> None:
        """Give no more points, and take back those that wait in the farm."""
        if not self._ending:
            self._ending = why
            # The oldest without an answer, as many as there are workers, are those that run.
            if self._window.workers:
                self._take_back(self._window.workers)

    # Giving

    def _give(self) -> None:
        now = time.monotonic()
        if self._ending or self._store.trouble or not self._todo:
            return
        room = self._window.size(now) - len(self._flights)
        if room > 0 and self._lost_since is not None and not self._found_again(now):
            return
        for _ in range(min(room, len(self._todo))):
            point = self._todo.popleft()
            try:
                flight = send(self._evaluator, self._plan, point, self._rules.hints)
            except FarmError as error:
                self._settle(Flight(point), error, time.time())
                if self._window.size(time.monotonic()) == 0:
                    return
            else:
                self._adopt(flight)

    def _adopt(self, flight: Flight) -> None:
        self._flights[flight.point] = flight
        # Called on a thread of the client; the work is done on ours.
        flight.when_landed(lambda flight, k: self._answers.put((flight, k)))

    def _found_again(self, now: float) -> bool:
        """Whether there is an evaluator to try again with."""
        if self._reconnect is None:
            return True
        try:
            self._evaluator = self._reconnect()
        except FarmError as error:
            self._wait_for_farm(error, now)
            return False
        return True

    # Taking

    def _take(self) -> None:
        try:
            self._answered(self._answers.get(timeout=TICK_S))
            for _ in range(AT_ONCE):
                self._answered(self._answers.get_nowait())
        except queue.Empty:
            pass

    def _answered(self, answer: tuple[Flight, int]) -> None:
        flight, k = answer
        if self._flights.get(flight.point) is not flight:
            return  # settled by another of its calls, or taken back
        at = flight.landed.get(k, time.time())
        try:
            flight.futures[k].result()
        except (FarmError, CancelledError) as error:
            self._settle(flight, error, at)
        except Exception as error:  # a client's own fault, which must not stop a sweep of days
            detail = "".join(traceback.format_exception(error))
            known = FarmError(f"{type(error).__name__}: {error}", detail=detail)
            self._settle(flight, known, at)
        else:
            if len(flight.results()) == len(flight.futures):
                self._settle(flight, None, at)

    def _settle(self, flight: Flight, error: BaseException | None, at: float) -> None:
        """A point is finished, or goes back to be given again when it is not at fault."""
        self._flights.pop(flight.point, None)
        flight.cancel()
        if isinstance(error, Overloaded | Unavailable | ModelNotFound):
            self._todo.appendleft(flight.point)
            self._wait_for_farm(error, time.monotonic())
            return
        results = flight.results()
        worker = results[0].worker if results else ""
        attempt = int(self._store.known.attempts[flight.point]) + 1
        row = row_of(
            self._plan,
            flight,
            error,
            attempt=attempt,
            worker=self._store.worker_id(worker),
            answered=at,
        )
        if row.status is not Status.CANCELLED:
            self._window.answered(worker, time.monotonic())
            self._lost_since, self._message = None, ""
        self._store.add(row)
        self._on_row(row)
        if row.status is not Status.DONE:
            self._failures += 1
            limit = self._rules.max_failures
            if limit is not None and self._failures > limit:
                self._end("too many failures")

    def _wait_for_farm(self, error: BaseException, now: float) -> None:
        if isinstance(error, Overloaded):
            self._window.refused(len(self._flights), now)
            self._message = f"the farm is full ({error}); the sweep waits"
            return
        self._window.lost(now)
        if self._lost_since is None:
            self._lost_since = now
            log.warning("the farm cannot be reached (%s): the sweep waits for it", error)
        self._message = f"the farm cannot be reached ({error}); the sweep waits"
        if now - self._lost_since > self._rules.lost_s:
            self._end("farm lost")

    def _take_back(self, keep: int) -> None:
        """Take back the points that have no answer, but the `keep` oldest; they are pending."""
        waiting = [point for point, flight in self._flights.items() if not flight.landed]
        for point in reversed(waiting[keep:]):
            self._flights.pop(point).cancel()
            self._todo.appendleft(point)

    def _leave(self) -> None:
        for point, flight in self._flights.items():
            flight.cancel()
            self._todo.append(point)
        self._flights.clear()

    # Telling and ending

    def _tell_if_due(self) -> None:
        if time.monotonic() - self._told >= STATUS_S:
            self._tell(RUNNING)

    def _tell(self, state: str) -> Progress:
        self._told = time.monotonic()
        stopping = f"stopping: {self._ending}" if self._ending and state == RUNNING else ""
        message = self._store.trouble or self._message or stopping
        progress = self._meter.now(state, in_flight=len(self._flights), message=message)
        write_status(status_of(self._store.path), progress)
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


def pending_points(store: Store, *, retry_failed: bool) -> Array:
    """The points to evaluate, in the plan's order: the pending, and if asked the failed ones."""
    order = store.plan.order()
    status = store.known.status[order]
    wanted = status == Status.PENDING
    if retry_failed:
        wanted |= status > Status.DONE
    points: Array = order[wanted]
    return points
