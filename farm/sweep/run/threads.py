"""Evaluates models on threads of this process, for notebooks and tests.

Models that hold the GIL do not benefit from several threads; `farm serve` uses processes instead.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from farm.call import NO_HINTS, Call, Hints, ModelInfo, Operation, Result, canonical_config
from farm.errors import FarmError
from farm.model import Config, Inputs, Model
from farm.worker.runner import Runner


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
