"""Runs inference requests: what the endpoints of HTTP and gRPC share.

An encoder of answers is a function of one of farm's codecs, called as
`function(wish, result, *rest)`, in a reader process if that takes long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from farm.bodies.readers import READS_HERE, Reads
from farm.bodies.reading import Reading, carried_out
from farm.call import Call, CancelCall, Hints, ModelInfo, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import FarmError
from farm.protocols.kserve.dialect import HTTP, OpenDialect
from farm.protocols.kserve.metadata import statistics_of
from farm.protocols.kserve.repository import Repository
from farm.protocols.kserve.request import (
    InferRequest,
    Wish,
    config_of,
    hints_of_parameters,
    takes_long,
    uses_regions,
)
from farm.protocols.kserve.shared_memory.endpoint_carrier import Carried, Carrier
from farm.protocols.kserve.shared_memory.regions import Regions


class Prepared(NamedTuple):
    """A request as a call."""

    call: Call
    hints: Hints
    wish: Wish


class Inference:
    """Turns requests into calls, and results into answers."""

    def __init__(
        self,
        backend: Dispatcher,
        repository: Repository,
        readers: Reads = READS_HERE,
        carrier: Carrier | None = None,
        dialect: OpenDialect | None = None,
    ) -> None:
        """dialect: of requests and their errors, by default that of the repository."""
        self.backend = backend
        self.repository = repository
        self.readers = readers
        self.carrier = carrier or Carrier(Regions(), readers)
        self.dialect = dialect or repository.dialect

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of a model, or of all. Raises as `Repository.numbered`."""
        return statistics_of(self.repository.numbered(name, version), self.backend.statistics())

    def prepared_now(
        self, request: InferRequest, hints: Hints, info: ModelInfo, by: str = HTTP
    ) -> Prepared | None:
        """Return the call of a request; None: a worker has to describe the model first.

        info: the model that the request names. by: HTTP or GRPC. Raises FarmError.
        """
        if request.parameters:
            hints = hints_of_parameters(request.parameters, hints)
            described = self.backend.description(info.name, config_of(request.parameters))
            if described is None:
                return None
            info = described
        return self._prepared(request, hints, info, by, streaming=False)

    async def prepared(
        self, request: InferRequest, hints: Hints, by: str = HTTP, *, streaming: bool = False
    ) -> Prepared:
        """Return the call of a request once its model is known and described."""
        await self.repository.known(request.model)
        info = self.repository.model(request.model, request.version)
        if request.parameters:
            hints = hints_of_parameters(request.parameters, hints)
            config = config_of(request.parameters)
            info = await self.backend.describe(info.name, config, hints)
        return self._prepared(request, hints, info, by, streaming=streaming)

    def _prepared(
        self, request: InferRequest, hints: Hints, info: ModelInfo, by: str, *, streaming: bool
    ) -> Prepared:
        call, wish = self.dialect.call_of(request, info, streaming=streaming, by=by)
        return Prepared(call, hints, wish)

    @asynccontextmanager
    async def carried(
        self, request: InferRequest, is_owner: Callable[[], bool], hints: Hints
    ) -> AsyncIterator[tuple[InferRequest, Carried | None]]:
        """Read the inputs of a request that are in shared memory; None: none is.

        Raises InvalidInput, and Refused if the caller is another or a region is unknown.
        """
        if not uses_regions(request):
            yield request, None
            return
        async with self.carrier.carried(request, is_owner(), hints) as carried:
            yield carried.request, carried

    async def encoded(
        self,
        prepared: Prepared,
        result: Result,
        function: Callable[..., Any],
        *rest: Any,
        raw: bool = False,
        carried: Carried | None = None,
    ) -> Any:
        """Return an answer, after writing the outputs that belong into shared memory.

        raw: no tensor of it is text.
        """
        wish = prepared.wish
        if carried is not None:
            wish, result = await carried.put(wish, result)
        about = (wish, result, *rest)
        if takes_long(wish, result, raw=raw):
            return await carried_out(self.readers, function, *about, hints=prepared.hints)
        return function(*about)


class InferenceRun:
    """A call that runs without a task, and the encoding of its answer."""

    __slots__ = ("_carried", "_form", "_inference", "_prepared", "_reply", "_task_id", "_undo")

    def __init__(
        self,
        inference: Inference,
        prepared: Prepared,
        form: tuple[Callable[..., Any], tuple[Any, ...], bool],
        reply: tuple[Any, Any],
        carried: Carried | None = None,
    ) -> None:
        """Start the call. Raises FarmError.

        form: the encoder, the rest of its arguments, and whether no tensor of the answer is text.
        reply: for `send` and `fail`.
        """
        self._inference = inference
        self._prepared = prepared
        self._form = form
        self._reply = reply
        self._carried = carried
        self._undo: CancelCall | None = None  # after the call
        self._task_id = inference.backend.start_call(prepared.call, prepared.hints, self.done)

    def send(self, result: Result, encoded: Any) -> None:
        """Send the answer."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Answer with an error of any kind."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel it, whatever is running: the client has left."""
        if self._undo is not None:
            self._undo()
        else:
            self._inference.backend.cancel(self._task_id)

    def done(self, outcome: Result | FarmError) -> None:
        """Answer with the call's outcome, a long one when it is encoded."""
        try:
            if isinstance(outcome, FarmError):
                raise outcome
            if self._carried is None:
                self._answer(self._prepared.wish, outcome)
                return
            put = self._carried.put_now(self._prepared.wish, outcome)
            if put is not None:
                self._answer(*put)
                return
            task = asyncio.get_running_loop().create_task(self._put(outcome, self._carried))
            self._undo = lambda: (task.cancel(), None)[1]
        except Exception as error:
            self.fail(error)

    async def _put(self, result: Result, carried: Carried) -> None:
        """Write long outputs into their regions, then answer."""
        try:
            self._answer(*await carried.put(self._prepared.wish, result))
        except Exception as error:
            self.fail(error)

    def _answer(self, wish: Wish, result: Result) -> None:
        function, rest, raw = self._form
        about = (wish, result, *rest)
        if takes_long(wish, result, raw=raw):
            writing, hints = Reading(partial(self.send, result), self.fail), self._prepared.hints
            self._undo = writing.begin(self._inference.readers, function, *about, hints=hints)
        else:
            self.send(result, function(*about))
