"""Farms that evaluate the points of a closed loop: the one around it, or one that is a client's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from farm.call import Call, Hints, ModelInfo, Result
from farm.client import Client
from farm.errors import UnsupportedFeature


class Backend(Protocol):
    """The part of a dispatcher that a loop needs."""

    async def submit(self, call: Call, hints: Hints = ...) -> Result:
        """The call's result. Raises FarmError."""

    async def describe(self, model: str, config: str = ...) -> ModelInfo:
        """What the model says of itself. Raises FarmError."""

    def snapshot(self) -> dict[str, Any]:
        """Workers and more, as JSON data."""


class Around:
    """The farm that the loop is part of."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def describe(self, model: str, config: str) -> ModelInfo:
        """The model's tensors for a config. Raises FarmError."""
        return await self._backend.describe(model, config)

    async def submit(self, call: Call, hints: Hints) -> Result:
        """The result of a call. Raises FarmError; cancelling takes the call back."""
        return await self._backend.submit(call, hints)

    async def places(self, model: str) -> int:
        """How many calls of the model run at once, at least 1."""
        return _places(self._backend.snapshot()["workers"], model)


class Remote:
    """A farm, or UM-Bridge server, that a client has a line to. On the loop that made it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def describe(self, model: str, config: str) -> ModelInfo:
        """The model's tensors for a config. Raises FarmError."""
        return await asyncio.to_thread(self._client.line.describe, model, config)

    async def submit(self, call: Call, hints: Hints) -> Result:
        """The result of a call. Raises FarmError; cancelling takes the call back."""
        return await asyncio.wrap_future(self._client.submit(call, hints))

    async def places(self, model: str) -> int:
        """How many calls of the model run at once, at least 1; of a server that is no farm one.

        Raises FarmError.
        """
        try:
            status = await asyncio.to_thread(self._client.status)
        except UnsupportedFeature:
            return 1
        return _places(status["workers"], model)


def _places(workers: Iterable[Mapping[str, Any]], model: str) -> int:
    slots = [int(w["slots"]) for w in workers if model in w.get("models", [model])]
    return max(1, sum(slots))
