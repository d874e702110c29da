"""Points in flight: submits the calls of points and turns their results into rows."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from farm.call import NO_HINTS, Array, Call, Hints, ModelInfo, Result
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidOutput,
    Overloaded,
    TimeLimitExceeded,
    Unavailable,
)
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.progress import Progress
from farm.wording import worded

STATUS_OF: Mapping[type[BaseException], PointStatus] = {
    Cancelled: PointStatus.CANCELLED,
    CancelledError: PointStatus.CANCELLED,
    TimeLimitExceeded: PointStatus.TIMEOUT,
    DeadlineExceeded: PointStatus.TIMEOUT,
}
"""Status of a point by the type of its error; all other errors mean FAILED."""

UNKNOWN = float("nan")
ASK_S = 1.0
"""Longest wait in seconds for the status of the farm."""


class CallEvaluator(Protocol):
    """Evaluates calls for a sweep; `farm.client.Client` is one."""

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Return the model's description for a config. Raises FarmError."""

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        """Submit a call; the future has its result or a FarmError, and `cancel()` cancels it."""


@runtime_checkable
class StatusReporter(Protocol):
    """An evaluator that reports its use; `farm.client.Client` is one."""

    def status(self) -> Mapping[str, Any]:
        """Return the rows of `farm status` in "queues" and "workers". Raises FarmError."""


@runtime_checkable
class ProgressListener(Protocol):
    """An evaluator that shows the progress of a sweep to others; `farm.client.Client` is one."""

    def report_progress(self, kind: str, name: str, **values: Any) -> None:
        """Take a report and return at once."""


def report(evaluator: CallEvaluator, progress: Progress, client: str) -> None:
    """Let an evaluator show the progress of a sweep, if it can."""
    if isinstance(evaluator, ProgressListener):
        evaluator.report_progress(
            "sweep",
            progress.title,
            done=progress.done,
            failed=progress.unsuccessful,
            total=progress.total,
            per_s=progress.rate_per_s,
            ends_in_s=progress.eta_s,
            state=progress.state,
            identity=progress.run_id,
            client=client,
        )


class FarmUse(NamedTuple):
    """A model's calls at workers, None if unknown; how many calls these run at once, or 0."""

    running: int | None = None
    slots: int = 0


def use_of(evaluator: CallEvaluator, model: str) -> FarmUse:
    """Return how much an evaluator runs, as far as it reports that."""
    if not isinstance(evaluator, StatusReporter):
        return FarmUse()
    try:
        status = evaluator.status()
        running = [int(row["in_flight"]) for row in status["queues"] if row["model"] == model]
        slots = [int(row.get("slots", 0)) for row in status.get("workers", ())]
        return FarmUse(sum(running), max(0, sum(slots)))
    except (FarmError, KeyError, TypeError, ValueError, OverflowError):
        return FarmUse()  # not a farm, or one that cannot be reached


Answers = queue.SimpleQueue["tuple[PointInFlight, int]"]


@dataclass(slots=True, eq=False)
class PointInFlight:
    """A point submitted to the farm at Unix time `submitted_at`, with the futures of its calls.

    answers: receives (this point, index) when a future is done, on the thread that completes it.
    answered_at: Unix time at which each future was done, by its index.
    """

    point: int
    answers: Answers = field(default_factory=queue.SimpleQueue)
    submitted_at: float = field(default_factory=time.time)
    futures: list[Future[Result]] = field(default_factory=list)
    answered_at: dict[int, float] = field(default_factory=dict)

    def cancel(self) -> None:
        """Cancel the calls that have no result yet."""
        for future in self.futures:
            future.cancel()

    def results(self) -> list[Result]:
        """Return the results so far, up to the first call without a result or with an error."""
        results = []
        for future in self.futures:
            if not future.done() or future.cancelled() or future.exception() is not None:
                break
            results.append(future.result())
        return results

    def _answered(self, k: int, future: Future[Result]) -> None:
        self.answered_at[k] = time.time()
        self.answers.put((self, k))

    def submit(self, evaluator: CallEvaluator, plan: Plan, hints: Hints) -> None:
        """Submit all calls of the point. Raises FarmError if the farm does not accept them all."""
        try:
            for call in plan.calls(self.point):
                self.futures.append(evaluator.submit(call, hints))
        except BaseException:
            self.cancel()
            raise
        for k, future in enumerate(self.futures):
            future.add_done_callback(partial(self._answered, k))


class PointsInFlight:
    """The submitted points of one sweep, and the calls that they wait for; used by one thread.

    points: by number, oldest first; its owner removes those that are settled. answers: the queue of
    all answers, which also has those of points that are removed. hints: of all calls.
    """

    def __init__(self, evaluator: CallEvaluator, plan: Plan, hints: Hints) -> None:
        self.evaluator = evaluator
        self.hints = hints
        self.points: dict[int, PointInFlight] = {}
        self.answers: Answers = queue.SimpleQueue()
        self._plan = plan
        self._asker: threading.Thread | None = None
        self._use = FarmUse()

    def submit(self, point: int) -> PointInFlight:
        """Submit a point to the farm. Raises FarmError if the farm does not accept its calls."""
        sent = PointInFlight(point, self.answers)
        sent.submit(self.evaluator, self._plan, self.hints)
        self.points[point] = sent
        return sent

    def continue_at(self, evaluator: CallEvaluator) -> None:
        """Submit later points to another evaluator, as after a restart of the farm."""
        self.evaluator = evaluator

    def cancel(self, keep: int = 0) -> list[int]:
        """Cancel the points without an answer except the `keep` oldest; return them, newest first.

        They are no longer in flight.
        """
        waiting = [point for point, sent in self.points.items() if not sent.answered_at]
        cancelled = waiting[keep:][::-1]
        for point in cancelled:
            self.points.pop(point).cancel()
        return cancelled

    def cancel_all(self) -> list[int]:
        """Cancel all points, with an answer or not, and return them."""
        cancelled = list(self.points)
        for point in cancelled:
            self.points.pop(point).cancel()
        return cancelled

    def use(self) -> FarmUse:
        """Return how much the farm runs, whoever submitted it; unknown while it does not answer."""
        if self._asker is None or not self._asker.is_alive():
            self._use = self._use._replace(running=None)
            self._asker = threading.Thread(target=self._ask, name="asker", daemon=True)
            self._asker.start()
        self._asker.join(ASK_S)
        return self._use

    def _ask(self) -> None:
        self._use = use_of(self.evaluator, self._plan.info.name)


def row_of(
    plan: Plan,
    sent: PointInFlight,
    error: BaseException | None,
    *,
    attempt: int,
    worker: int,
    answered: float,
) -> Row:
    """Return the outcome of a point, all of whose calls are answered or one of which failed.

    answered: Unix time of the last answer, or of the error.
    """
    results = sent.results()
    values: Array | None = None
    if error is None:
        try:
            values = numbers_of(plan, results)
        except InvalidOutput as misfit:
            error = misfit
    t_run = sum(result.run_time_s for result in results) if results else UNKNOWN
    return Row(
        point=sent.point,
        status=PointStatus.DONE
        if error is None
        else STATUS_OF.get(type(error), PointStatus.FAILED),
        attempt=attempt,
        worker=worker,
        # Computed from the end: a call may also wait at the worker, behind others of its message.
        t_start=answered - (t_run if results else 0.0),
        t_run=t_run,
        t_queue=results[0].queue_time_s if results else UNKNOWN,
        t_total=answered - sent.submitted_at,
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
    plan: Plan, evaluator: CallEvaluator, hints: Hints = NO_HINTS, *, patience_s: float = PATIENCE_S
) -> PointsInFlight:
    """Submit the first points until one succeeds or `patience_s` have passed, and return them.

    They are part of the sweep, which continues with them. Raises SweepError if all of them fail,
    and FarmError if the farm does not accept calls.
    """
    started = PointsInFlight(evaluator, plan, hints)
    failure: Exception | None = None
    until = time.monotonic() + patience_s
    for point in plan.mixed()[:TRIES].tolist():
        sent = started.submit(point)
        if wait(sent.futures, max(0.0, until - time.monotonic())).not_done:
            return started
        try:
            numbers_of(plan, [future.result() for future in sent.futures])
        except (Overloaded, Unavailable):
            started.cancel_all()
            raise
        except (FarmError, CancelledError) as error:
            failure = error
        else:
            return started
    option = worded("--no-probe", "probe=False")
    raise SweepError(
        f"the first {len(started.points)} points failed, the last with "
        f"{type(failure).__name__}: {failure} ({option} skips this test)",
        detail=getattr(failure, "detail", ""),
    ) from failure
