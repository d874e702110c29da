"""One point in the farm: its calls on their way, and the row that their answers make."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from farm.call import NO_HINTS, Array, Call, Hints, ModelInfo, Result
from farm.errors import Cancelled, DeadlineExceeded, InvalidOutput, TimeLimitExceeded
from farm.sweep.journal import Row, Status
from farm.sweep.plan import Plan

STATUS_OF: Mapping[type[BaseException], Status] = {
    Cancelled: Status.CANCELLED,
    CancelledError: Status.CANCELLED,
    TimeLimitExceeded: Status.TIMEOUT,
    DeadlineExceeded: Status.TIMEOUT,
}
"""What errors make of a point; all others make it failed."""

UNKNOWN = float("nan")


class Evaluator(Protocol):
    """What a sweep needs of a farm; `farm.client.Client` is one."""

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """The model's tensors for a config. Raises FarmError."""

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        """The result to come, or a FarmError; `cancel()` takes the call back."""


@dataclass(slots=True, eq=False)
class Flight:
    """A point that was given to the farm at Unix time `given`, with the futures of its calls.

    landed: Unix time at which each future was done, as far as that is noted.
    """

    point: int
    given: float = field(default_factory=time.time)
    futures: list[Future[Result]] = field(default_factory=list)
    landed: dict[int, float] = field(default_factory=dict)

    def cancel(self) -> None:
        """Take back the calls that have no answer."""
        for future in self.futures:
            future.cancel()

    def results(self) -> list[Result]:
        """The answers there are, up to the first call that has none or an error."""
        answers = []
        for future in self.futures:
            if not future.done() or future.cancelled() or future.exception() is not None:
                break
            answers.append(future.result())
        return answers

    def when_landed(self, tell: Callable[[Flight, int], None]) -> None:
        """Call `tell` with the index of each call that is done, on whatever thread that is."""
        for k, future in enumerate(self.futures):
            future.add_done_callback(partial(_tell, tell, self, k))


def send(evaluator: Evaluator, plan: Plan, point: int, hints: Hints) -> Flight:
    """Give a point to the farm. Raises FarmError when it does not take all calls of it."""
    flight = Flight(point)
    try:
        for call in plan.calls(point):
            flight.futures.append(evaluator.submit(call, hints))
    except BaseException:
        flight.cancel()
        raise
    flight.when_landed(_note_landing)
    return flight


def _note_landing(flight: Flight, k: int) -> None:
    flight.landed[k] = time.time()


def _tell(
    tell: Callable[[Flight, int], None], flight: Flight, k: int, future: Future[Result]
) -> None:
    tell(flight, k)


def row_of(
    plan: Plan,
    flight: Flight,
    error: BaseException | None,
    *,
    attempt: int,
    worker: int,
    answered: float,
) -> Row:
    """The outcome of a point whose calls all have an answer, or one of which has an error.

    answered: Unix time of the last answer, or of the error.
    """
    results = flight.results()
    values: Array | None = None
    if error is None:
        try:
            values = numbers_of(plan, results)
        except InvalidOutput as misfit:
            error = misfit
    t_run = sum(result.run_time_s for result in results) if results else UNKNOWN
    return Row(
        point=flight.point,
        status=Status.DONE if error is None else STATUS_OF.get(type(error), Status.FAILED),
        attempt=attempt,
        worker=worker,
        # From its end: a call may also wait where it runs, behind others of the same message.
        t_start=answered - (t_run if results else 0.0),
        t_run=t_run,
        t_queue=results[0].queue_time_s if results else UNKNOWN,
        t_total=answered - flight.given,
        values=values,
        error="" if error is None else f"{type(error).__name__}: {error}",
        traceback=getattr(error, "detail", ""),
    )


def numbers_of(plan: Plan, results: Sequence[Result]) -> Array:
    """The numbers of a finished point in the order of the plan's columns.

    Gradients that were not asked for are NaN. Raises InvalidOutput when sizes are not those of the
    plan, which happens when they depend on a config that varies.
    """
    evaluated, *gradients = results
    if len(evaluated.outputs) != len(plan.info.outputs):
        raise InvalidOutput(
            f"{len(evaluated.outputs)} outputs, the sweep's file has {len(plan.info.outputs)}"
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
            "sweep configs with other sizes into files of their own"
        )
    return array
