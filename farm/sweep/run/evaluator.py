"""The evaluators of a sweep: what they must do, what they may do, and how much a farm runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from farm.call import NO_HINTS, Call, Hints, ModelInfo, Result
from farm.errors import FarmError
from farm.sweep.file.progress import Progress

Outcome = Result | BaseException


class CallEvaluator(Protocol):
    """Evaluates calls for a sweep; `farm.client.Client` is one."""

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Return the model's description for a config. Raises FarmError."""

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        """Submit a call; the future has its result or a FarmError, and `cancel()` cancels it."""


class AnswerReceiver(Protocol):
    """Takes the outcomes of calls, on any thread."""

    def put(self, key: Any, outcome: Outcome) -> None:
        """Take the outcome of the call that was sent with `key`."""

    def flush(self) -> None:
        """Wake who waits: no more outcomes for now."""


class CallLine(Protocol):
    """Takes many calls together; the line of `farm.client.Client` is one."""

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: AnswerReceiver
    ) -> Sequence[Any]:
        """Send calls, each with a key for its outcome at `receiver`; return their ids.

        Raises FarmError if they are not all accepted; then none is open.
        """

    def cancel(self, ids: Iterable[Any]) -> bool:
        """Cancel calls; False if each of them had an outcome."""


@runtime_checkable
class ManyCallsEvaluator(Protocol):
    """An evaluator that takes many calls together; `farm.client.Client` is one."""

    @property
    def line(self) -> CallLine:
        """The line that takes them."""


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


class FutureLine:
    """The line of an evaluator that takes calls one by one; ids are the futures."""

    def __init__(self, evaluator: CallEvaluator) -> None:
        self._evaluator = evaluator

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: AnswerReceiver
    ) -> list[Future[Result]]:
        """Submit the calls, each by itself."""
        futures: list[Future[Result]] = []
        try:
            for _, call in calls:
                futures.append(self._evaluator.submit(call, hints))
        except BaseException:
            self.cancel(futures)
            raise
        for (key, _), future in zip(calls, futures, strict=True):
            future.add_done_callback(partial(self._answered, receiver, key))
        return futures

    def cancel(self, ids: Iterable[Future[Result]]) -> bool:
        """Cancel the calls."""
        return True in [future.cancel() for future in ids]

    def _answered(self, receiver: AnswerReceiver, key: Any, future: Future[Result]) -> None:
        try:
            outcome: Outcome = future.result()
        except BaseException as error:  # with its traceback here
            outcome = error
        receiver.put(key, outcome)
        receiver.flush()


def line_of(evaluator: CallEvaluator) -> CallLine:
    """Return the line that takes calls for an evaluator."""
    return evaluator.line if isinstance(evaluator, ManyCallsEvaluator) else FutureLine(evaluator)
