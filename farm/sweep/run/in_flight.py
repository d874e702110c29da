"""Points in flight: submits the calls of points and turns their results into rows."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, cast

import numpy as np

from farm.call import RUN_BYTES, Array, Call, Hints, Result
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidOutput,
    Overloaded,
    TimeLimitExceeded,
    Unavailable,
)
from farm.machine.daemon_pool import aside
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import (
    HEAD,
    MARKS,
    MOST_ATTEMPTS,
    DoneRows,
    PointStatus,
    Row,
)
from farm.sweep.run.evaluator import (
    CallEvaluator,
    CallLine,
    FarmUse,
    FutureLine,
    Outcome,
    line_of,
    use_of,
)
from farm.wording import worded

STATUS_OF: Mapping[type[BaseException], PointStatus] = {
    Cancelled: PointStatus.CANCELLED,
    CancelledError: PointStatus.CANCELLED,
    TimeLimitExceeded: PointStatus.TIMEOUT,
    DeadlineExceeded: PointStatus.TIMEOUT,
}
"""Status of a point by the type of its error; all other errors mean FAILED."""

MOST_TOGETHER = 512
"""Most points to submit together: the calls of one message of farm's client."""

ASK_S = 1.0
"""Longest wait in seconds for the status of the farm."""


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """Points that were submitted together at Unix time `at`; ids: of their calls at the line."""

    line: CallLine
    at: float = field(default_factory=time.time)
    ids: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class PointInFlight:
    """A point that was submitted to the farm.

    first: the place of its first call in the submission. answers: the outcome of each of its calls
    and the Unix time at which it came, None so far; the thread that completes a call enters them.
    is_taken_back: it was to be cancelled if it waited, so Cancelled means that.
    """

    point: int
    submission: Submission
    first: int
    answers: list[tuple[Outcome, float] | None]
    is_taken_back: bool = False

    def cancel(self) -> None:
        """Cancel the calls that have no outcome yet."""
        if None in self.answers:
            ids = self.submission.ids[self.first : self.first + len(self.answers)]
            self.submission.line.cancel(ids)

    def taken_back(self) -> Any:
        """Mark a point, whose call is to be cancelled if it waits; return the call's id."""
        self.is_taken_back = True
        return self.submission.ids[self.first]

    def results(self) -> list[Result]:
        """Return the results so far, up to the first call without a result or with an error."""
        found = takewhile(lambda answer: answer and isinstance(answer[0], Result), self.answers)
        return [cast(Result, answer[0]) for answer in found if answer is not None]

    def error(self) -> BaseException | None:
        """Return the error of one of its calls, if any has failed so far."""
        for answer in self.answers:
            if answer is not None and not isinstance(answer[0], Result):
                return answer[0]
        return None


def hints_of(plan: Plan, priority: int = 0) -> Hints:
    """Return the hints of all calls of a sweep, which is one caller, however many are open."""
    return Hints(f"sweep-{plan.run_id[:8]}", priority, chain="")


class PointsInFlight:
    """The submitted points of one sweep, for one thread. points: by number, oldest first."""

    def __init__(self, evaluator: CallEvaluator, plan: Plan, priority: int = 0) -> None:
        self.continue_at(evaluator)
        self.hints = hints_of(plan, priority)
        self.points: dict[int, PointInFlight] = {}
        self._plan = plan
        self._use: Future[FarmUse] = Future()
        self._use.set_result(FarmUse())
        self._slots = 0
        # Also used by the threads that complete calls.
        self._answered: deque[PointInFlight] = deque()
        self._is_answered = threading.Event()

    @property
    def most_together(self) -> int:
        """Most points to submit together: 1 if the evaluator takes calls one by one."""
        if isinstance(self._line, FutureLine):
            return 1
        row_bytes = 8 * sum(tensor.size for tensor in self._plan.info.inputs)
        return max(1, min(MOST_TOGETHER, RUN_BYTES // (1 + row_bytes)))

    def submit(self, points: Array) -> None:
        """Submit points to the farm. Raises FarmError if it does not accept all their calls."""
        submission = Submission(self._line)
        sent: list[PointInFlight] = []
        calls: list[tuple[Any, Call]] = []
        for point, some in zip(points.tolist(), self._plan.calls_at(points), strict=True):
            one = PointInFlight(point, submission, len(calls), [None] * len(some))
            sent.append(one)
            for k, call in enumerate(some):
                calls.append(((one, k), call))
        submission.ids.extend(submission.line.send(calls, self.hints, self))
        self.points.update(zip(points.tolist(), sent, strict=True))

    def unsent(self, point: int) -> PointInFlight:
        """Return a point that the farm did not accept."""
        return PointInFlight(point, Submission(self._line), 0, [])

    def put(self, key: tuple[PointInFlight, int], outcome: Outcome) -> None:
        """Take the outcome of a call, on the thread that completes it."""
        sent, k = key
        sent.answers[k] = outcome, time.time()
        self._answered.append(sent)

    def flush(self) -> None:
        """Wake the thread of the sweep."""
        self._is_answered.set()

    def ended(
        self, timeout_s: float, most: int
    ) -> tuple[list[PointInFlight], list[tuple[PointInFlight, BaseException]]]:
        """Return points all of whose calls are done, and points with an error.

        The first are no longer in flight; `drop` the others. Waits for an answer if there is none,
        and takes `most` at most.
        """
        answered = self._answered
        if not answered:
            self._is_answered.clear()
            if not answered:
                self._is_answered.wait(timeout_s)
        done: list[PointInFlight] = []
        failed: dict[int, tuple[PointInFlight, BaseException]] = {}
        for _ in range(min(most, len(answered))):
            sent = answered.popleft()
            if self.points.get(sent.point) is not sent:
                continue  # it has ended by another of its calls, or was cancelled
            error = sent.error()
            if error is not None:
                failed.setdefault(sent.point, (sent, error))
            elif None not in sent.answers:
                done.append(sent)
                del self.points[sent.point]
        return done, list(failed.values())

    def drop(self, sent: PointInFlight) -> None:
        """Cancel the calls of a point that have no outcome; it is no longer in flight."""
        self.points.pop(sent.point, None)
        sent.cancel()

    def wait_for(self, sent: PointInFlight, timeout_s: float) -> bool:
        """Wait until all calls of a point are answered; False if that takes longer."""
        until = time.monotonic() + timeout_s
        while None in sent.answers:
            self._is_answered.clear()
            left_s = until - time.monotonic()
            if None in sent.answers and not (left_s > 0 and self._is_answered.wait(left_s)):
                return None not in sent.answers
        return True

    def continue_at(self, evaluator: CallEvaluator) -> None:
        """Submit later points to this evaluator, as after a restart of the farm."""
        self.evaluator = evaluator
        self._line = line_of(evaluator)

    def cancel(self, keep: int = 0) -> list[int]:
        """Cancel the points without an answer except the `keep` oldest; return them, newest first.

        They are no longer in flight.
        """
        waiting = [point for point, sent in self.points.items() if not any(sent.answers)]
        return self._cancel(waiting[keep:][::-1])

    def take_back(self) -> bool:
        """Cancel the points that no worker has; each then ends with Cancelled, and is marked.

        None that has just begun is cancelled. False if only `cancel` can do it: over other lines,
        or where one of a point's calls may have an outcome to keep.
        """
        cancel_waiting = getattr(self._line, "cancel_waiting", None)
        if self._plan.derivatives or cancel_waiting is None:
            return False
        sent = [sent for sent in self.points.values() if sent.submission.line is self._line]
        cancel_waiting([one.taken_back() for one in sent if None in one.answers])
        return True

    def cancel_all(self) -> list[int]:
        """Cancel all points, with an answer or not, and return them."""
        return self._cancel(list(self.points))

    def _cancel(self, points: list[int]) -> list[int]:
        for point in points:
            self.points.pop(point).cancel()
        return points

    def use(self) -> FarmUse:
        """Return how much the farm runs, whoever submitted it; unknown while it does not answer."""
        if self._use.done():
            self._slots = self._use.result().slots
            self._use = aside(use_of, self.evaluator, self._plan.info.name)
        try:
            return self._use.result(ASK_S)
        except TimeoutError:
            return FarmUse(None, self._slots)


def done_rows(
    plan: Plan, done: list[PointInFlight], attempts: Array, worker_id: Callable[[str], int]
) -> DoneRows | None:
    """Return the outcomes of done points together; None: `row_of` is needed for each.

    That is so with gradients, and if outputs do not fit the plan. attempts: so far, of all points.
    """
    if plan.derivatives or len(done) == 1:
        return None
    answers: list[Any] = [sent.answers[0] for sent in done]
    results: list[Result] = [result for result, _ in answers]
    values = _values_together(plan, results)
    if values is None:
        return None
    names = [result.worker for result in results]
    workers = {name: worker_id(name) for name in dict.fromkeys(names)}
    heads = np.empty(len(done), HEAD)
    heads["point"] = points = np.array([sent.point for sent in done])
    heads["status"] = PointStatus.DONE
    heads["status"][[result.copied for result in results]] |= MARKS["copied"]
    heads["status"][[result.reused for result in results]] |= MARKS["reused"]
    heads["attempts"] = np.minimum(attempts[points], MOST_ATTEMPTS - 1) + 1
    heads["worker"] = [workers[name] for name in names]
    times = times_of(
        np.array([at for _, at in answers]),
        np.array([sent.submission.at for sent in done]),
        np.array([result.run_time_s for result in results]),
        np.array([result.queue_time_s for result in results]),
    )
    for name, numbers in times.items():
        heads[name] = numbers
    return DoneRows(heads, values)


def _values_together(plan: Plan, results: list[Result]) -> Array | None:
    """Return the outputs of results, a row for each; None if they do not fit the plan."""
    count = len(results)
    try:
        outputs = zip(*[result.outputs for result in results], strict=True)
        parts = [np.array(arrays, np.float64).reshape(count, -1) for arrays in outputs]
    except ValueError:
        return None
    if [part.shape[1] for part in parts] != [tensor.size for tensor in plan.info.outputs]:
        return None
    return np.concatenate([*parts, np.empty((count, 0))], axis=1)


def times_of(answered: Any, submitted: Any, t_run: Any, t_queue: Any) -> dict[str, Any]:
    """Return the times of a point by the names of `POINT_FIELDS`, or those of many as arrays."""
    return {
        # Computed from the end: a call may also wait at the worker, behind others of its message.
        "t_start": answered - t_run,
        "t_run": t_run,
        "t_queue": t_queue,
        "t_total": answered - submitted,
    }


def row_of(
    plan: Plan, sent: PointInFlight, error: BaseException | None, *, attempt: int, worker: int
) -> Row:
    """Return the outcome of a point, all of whose calls are answered or one of which failed."""
    answered = max([answer[1] for answer in sent.answers if answer], default=time.time())
    results = sent.results()
    values: Array | None = None
    if error is None:
        try:
            values = numbers_of(plan, results)
        except InvalidOutput as misfit:
            error = misfit
    t_run = sum(result.run_time_s for result in results)
    times = times_of(
        answered, sent.submission.at, t_run, results[0].queue_time_s if results else np.nan
    )
    return Row(
        point=sent.point,
        status=PointStatus.DONE
        if error is None
        else STATUS_OF.get(type(error), PointStatus.FAILED),
        attempt=attempt,
        worker=worker,
        **times | ({} if results else {"t_run": np.nan}),
        values=values,
        error="" if error is None else f"{type(error).__name__}: {error}",
        traceback=getattr(error, "detail", ""),
        copied=any(result.copied for result in results),
        reused=any(result.reused for result in results),
    )


def numbers_of(plan: Plan, results: Sequence[Result]) -> Array:
    """Return the values of a finished point in the order of the plan's columns.

    Gradients that were not requested are NaN. Raises InvalidOutput if sizes differ from the plan's,
    which happens if they depend on a config that varies.
    """
    evaluated, *gradients = results
    if len(evaluated.outputs) != len(plan.info.outputs):
        raise InvalidOutput(
            f"got {len(evaluated.outputs)} outputs, the sweep's file has {len(plan.info.outputs)}"
        )
    parts: dict[str, Array] = {}
    for i, tensor in enumerate(plan.info.outputs):
        array = np.asarray(evaluated.outputs[i], dtype=np.float64).ravel()
        parts[f"out_{i}"] = _sized(array, tensor.size, f"output {tensor.name!r}")
    for derivative, result in zip(plan.derivatives, gradients, strict=True):
        i, j = derivative.out_wrt, derivative.in_wrt
        rows, size = plan.info.outputs[i].size, plan.info.inputs[j].size
        block = parts.setdefault(f"grad_{i}_{j}", np.full((rows, size), np.nan))
        assert derivative.sens is not None
        array = np.asarray(result.outputs[0], dtype=np.float64).ravel()
        what = f"gradient by {plan.info.inputs[j].name!r}"
        block[int(np.argmax(derivative.sens))] = _sized(array, size, what)
    pieces = [parts[column.name].ravel() for column in plan.columns]
    return np.concatenate(pieces) if pieces else np.empty(0)


def _sized(array: Array, size: int, what: str) -> Array:
    if array.size != size:
        raise InvalidOutput(
            f"{what} has {array.size} entries, the sweep's file has {size} for each point: "
            "use a separate sweep for configs with other sizes"
        )
    return array


TRIES = 3
"""Points to try: a single point may fail by itself, but if the first three fail, all will."""

PATIENCE_S = 10.0
"""Longest wait in seconds. Mistakes show early; a slow model must not leave workers idle."""


def probe(
    plan: Plan, evaluator: CallEvaluator, priority: int = 0, *, patience_s: float = PATIENCE_S
) -> PointsInFlight:
    """Submit the first points until one succeeds or `patience_s` have passed, and return them.

    They are part of the sweep, which continues with them. Raises SweepError if all of them fail,
    and FarmError if the farm does not accept calls.
    """
    started = PointsInFlight(evaluator, plan, priority)
    failure: Exception | None = None
    until = time.monotonic() + patience_s
    for point in plan.mixed()[:TRIES].tolist():
        started.submit(np.array([point]))
        sent = started.points[point]
        if not started.wait_for(sent, until - time.monotonic()):
            return started
        try:
            if (error := sent.error()) is not None:
                raise error
            numbers_of(plan, sent.results())
        except (Overloaded, Unavailable):
            started.cancel_all()
            raise
        except (FarmError, CancelledError) as why:
            failure = why
        else:
            return started
    option = worded("--no-probe", "probe=False")
    raise SweepError(
        f"the first {len(started.points)} points failed, the last with "
        f"{type(failure).__name__}: {failure} ({option} skips this test)",
        detail=getattr(failure, "detail", ""),
    ) from failure
