"""Farms that evaluate the points of a closed loop: the surrounding one, or one used as a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from farm.call import Call, Hints, ModelInfo, Result, canonical_config
from farm.client import Client
from farm.client.reports import report_of
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import FarmError, Unavailable, UnsupportedFeature
from farm.experiment.config.evaluated_model import BoundModel, EvaluatedModel
from farm.machine.daemon_pool import aside

T = TypeVar("T")


class PointEvaluator(Protocol):
    """The interface that a loop needs from a farm."""

    async def describe(self, model: str, config: str) -> ModelInfo:
        """Return the model's tensors for a config. Raises FarmError."""

    async def submit(self, call: Call, hints: Hints) -> Result:
        """Return the result of a call. Raises FarmError; cancelling cancels the call."""

    async def places(self, model: str) -> int:
        """Return how many calls of the model run at once; at least 1. Raises FarmError."""

    async def report_progress(self, kind: str, name: str, **values: Any) -> None:
        """Show the progress of an experiment. Raises FarmError."""


def details_of(result: Result, attempts: int) -> Mapping[str, Any]:
    """Return the details of an evaluation that are stored with its outcome."""
    tries = attempts if attempts > 1 else 0
    marks = {"copied": result.copied, "reused": result.reused, "attempts": tries}
    kept = {"run_time": result.run_time_s, "worker": result.worker}
    return kept | {name: mark for name, mark in marks.items() if mark}


async def fitting_model(model: EvaluatedModel, farm: PointEvaluator) -> BoundModel:
    """Return the model as the farm describes it. Raises FarmError if missing or unsuitable."""
    return model.bound(await farm.describe(model.name, canonical_config(model.config)))


class Around:
    """The farm that the loop is part of."""

    def __init__(self, backend: Dispatcher) -> None:
        self._backend = backend

    async def describe(self, model: str, config: str) -> ModelInfo:
        """Return the model's tensors for a config, once models are known. Raises FarmError."""
        await self._backend.first_worker.known(model)
        return await self._backend.describe(model, config)

    async def submit(self, call: Call, hints: Hints) -> Result:
        """Return the result of a call. Raises FarmError; cancelling cancels the call."""
        return await self._backend.submit(call, hints)

    async def places(self, model: str) -> int:
        """Return how many calls of the model run at once, at least 1."""
        return _places(self._backend.snapshot()["workers"], model)

    async def report_progress(self, kind: str, name: str, **values: Any) -> None:
        """Show the progress of an experiment. Raises FarmError."""
        await self._backend.questions.ask("progress", report_of(kind, name, **values))


class RemoteEvaluator:
    """A farm, or UM-Bridge server, reached by a client; belongs to one event loop.

    reconnect: replaces and closes a client that cannot reach a restarted farm. Raises FarmError.
    """

    def __init__(self, client: Client, reconnect: Callable[[], Client] | None = None) -> None:
        self._client = client
        self._reconnect = reconnect
        self._is_lost = False
        self._flying = 0
        self._finding = asyncio.Lock()

    async def describe(self, model: str, config: str) -> ModelInfo:
        """Return the model's tensors for a config. Raises FarmError."""
        return await _aside(self._client.line.describe, model, config)

    async def submit(self, call: Call, hints: Hints) -> Result:
        """Return the result of a call. Raises FarmError; cancelling cancels the call."""
        await self._find()
        self._flying += 1
        try:
            result = await asyncio.wrap_future(self._client.submit(call, hints))
        except Unavailable:
            self._is_lost = True
            raise
        finally:
            self._flying -= 1
        self._is_lost = False
        return result

    async def _find(self) -> None:
        """Reconnect to a farm that was lost. Raises Unavailable.

        Not while calls are in it: the error may concern only a single worker.
        """
        if self._reconnect is None or not self._is_lost:
            return
        async with self._finding:
            if self._flying or not self._is_lost:
                return
            try:
                self._client = await _aside(self._reconnect)
            except FarmError as error:
                raise Unavailable(error.message) from error
            self._is_lost = False

    async def places(self, model: str) -> int:
        """Return how many calls of the model run at once; 1 if the server is not a farm.

        Raises FarmError.
        """
        try:
            status = await _aside(self._client.status)
        except UnsupportedFeature:
            return 1
        return _places(status["workers"], model)

    async def report_progress(self, kind: str, name: str, **values: Any) -> None:
        """Show the progress of an experiment at the farm; errors are dropped."""
        self._client.report_progress(kind, name, **values)


async def _aside(work: Callable[..., T], *arguments: Any) -> T:
    """Like asyncio.to_thread, but the event loop can end while a farm takes hours to answer."""
    return await asyncio.wrap_future(aside(work, *arguments))


def _places(workers: Iterable[Mapping[str, Any]], model: str) -> int:
    slots = [int(w["slots"]) for w in workers if model in w.get("models", [model])]
    return max(1, sum(slots))
