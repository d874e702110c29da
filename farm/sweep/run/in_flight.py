"""Points in flight: submits the calls of a point and turns their results into a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from farm.call import NO_HINTS, Array, Call, Hints, ModelInfo, Result
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidOutput,
    TimeLimitExceeded,
)
from farm.sweep.design.plan import Plan
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.progress import Progress

STATUS_OF: Mapping[type[BaseException], PointStatus] = {
    Cancelled: PointStatus.CANCELLED,
    CancelledError: PointStatus.CANCELLED,
    TimeLimitExceeded: PointStatus.TIMEOUT,
    DeadlineExceeded: PointStatus.TIMEOUT,
}
"""Status of a point by the type of its error; all other errors mean FAILED."""

UNKNOWN = float("nan")


class CallEvaluator(Protocol):
    """Evaluates calls for a sweep; `farm.client.Client` is one."""

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Return the model's description for a config. Raises FarmError."""

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        """Submit a call; the future has its result or a FarmError, and `cancel()` cancels it."""


@runtime_checkable
class StatusReporter(Protocol):
    """An evaluator that reports how many calls run; `farm.client.Client` is one."""

    def status(self) -> Mapping[str, Any]:
        """Return a status with the rows of `farm status` in "queues". Raises FarmError."""


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


def running_calls(evaluator: CallEvaluator, model: str) -> int | None:
    """Return how many calls of a model are at workers, from all clients; None if unknown."""
    if not isinstance(evaluator, StatusReporter):
        return None
    try:
        queues = evaluator.status()["queues"]
        return sum(int(row["in_flight"]) for row in queues if row["model"] == model)
    except (FarmError, KeyError):
        return None  # not a farm, or one that cannot be reached


@dataclass(slots=True, eq=False)
class PointInFlight:
    """A point submitted to the farm at Unix time `submitted_at`, with the futures of its calls.

    answered_at: Unix time at which each future was done, by its index.
    """

    point: int
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

    def on_answer(self, tell: Callable[[PointInFlight, int], None]) -> None:
        """Call `tell` with the index of each call once it is done, on the thread that completes it.

        For calls that are done already, `tell` is called at once.
        """
        for k, future in enumerate(self.futures):
            future.add_done_callback(partial(_tell, tell, self, k))


def submit_point(evaluator: CallEvaluator, plan: Plan, point: int, hints: Hints) -> PointInFlight:
    """Submit a point to the farm. Raises FarmError if the farm does not accept all its calls."""
    sent = PointInFlight(point)
    try:
        for call in plan.calls(point):
            sent.futures.append(evaluator.submit(call, hints))
    except BaseException:
        sent.cancel()
        raise
    sent.on_answer(_note_time)
    return sent


def _note_time(sent: PointInFlight, k: int) -> None:
    sent.answered_at[k] = time.time()


def _tell(
    tell: Callable[[PointInFlight, int], None], sent: PointInFlight, k: int, future: Future[Result]
) -> None:
    tell(sent, k)


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
