"""The evaluators of a sweep: what they must do and may do, how much a farm runs, and threads.

Models that hold the GIL do not benefit from several threads; `farm serve` uses processes instead.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from farm.call import NO_HINTS, Call, Hints, ModelInfo, Operation, Result, canonical_config
from farm.errors import FarmError
from farm.model import Config, Inputs, Model
from farm.sweep.file.progress import Progress
from farm.worker.runner import Runner

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


@runtime_checkable
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

    # A line may also have `cancel_waiting(ids)`: those that no worker has fail with Cancelled.


def report(evaluator: CallEvaluator, progress: Progress, client: str) -> None:
    """Let an evaluator show the progress of a sweep, if it can, as `farm.client.Client`."""
    if (show := getattr(evaluator, "report_progress", None)) is not None:
        show(
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


def use_of(evaluator: Any, model: str) -> FarmUse:
    """Return how much an evaluator runs, if its `status` has the rows of `farm status`."""
    try:
        status = evaluator.status()
        running = [int(row["in_flight"]) for row in status["queues"] if row["model"] == model]
        slots = [int(row.get("slots", 0)) for row in status.get("workers", ())]
        return FarmUse(sum(running), max(0, sum(slots)))
    except Exception:  # not a farm, or one that cannot be reached, or a bug in a client
        return FarmUse()


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
    line = getattr(evaluator, "line", None)
    return line if isinstance(line, CallLine) else FutureLine(evaluator)


class Threads:
    """An evaluator with a pool of `workers` threads, which share the model objects."""

    def __init__(self, models: Mapping[str, Model], *, workers: int = 1) -> None:
        self._models = dict(models)
        self._runner = Runner(models)
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="worker")
        self._name = f"{platform.node()}/{os.getpid()}"

    def models(self) -> list[str]:
        """Return the names of the models."""
        return [info.name for info in self._runner.models()]

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Return the model's description for a config. Raises FarmError."""
        result = self._run(Call(model, Operation.DESCRIBE, config=canonical_config(config)))
        assert result.info is not None, "a description has an info"
        return result.info

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        """Submit a call; the future has its result or a FarmError."""
        return self._pool.submit(self._run, call, time.monotonic())

    def cost_of(self, model: str) -> Callable[[Inputs, Config], float] | None:
        """Return a model's method `cost`; None if it has none."""
        cost: Callable[[Inputs, Config], float] | None = getattr(self._models[model], "cost", None)
        return cost

    def status(self) -> dict[str, Any]:
        """Return how many calls run at once, in the form of `farm status`: one per thread."""
        return {"queues": [{"model": name, "in_flight": self._workers} for name in self.models()]}

    def close(self) -> None:
        """Cancel the queued calls and wait for the running ones."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, call: Call, since: float | None = None) -> Result:
        waited = 0.0 if since is None else time.monotonic() - since
        (outcome,) = self._runner.execute([call])
        if isinstance(outcome, FarmError):
            raise outcome
        thread = threading.current_thread().name.replace("_", "-")
        return replace(outcome, worker=f"{self._name}-{thread}", queue_time_s=waited)
