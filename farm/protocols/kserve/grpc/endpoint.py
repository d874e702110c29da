"""KServe v2 over gRPC: the methods of its service and of the health check."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from farm.bodies.body import QUICK_BYTES, Body, HeldBody
from farm.bodies.readers import READS_HERE, Reads
from farm.bodies.reading import Reading, carried_out
from farm.bodies.unpacking import Refused
from farm.call import CancelCall, Hints, ModelInfo, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.encoding.tensors import shown
from farm.errors import FarmError, InvalidRequest, ModelNotFound, UnsupportedFeature
from farm.grpc.call import (
    Answer,
    Bidirectional,
    Caller,
    Direct,
    Noted,
    Requests,
    ServerStream,
    Unary,
    Write,
)
from farm.grpc.messages import LONG, GrpcFailure
from farm.http.request import hints_of, reused_header
from farm.http.turns import Turns
from farm.protocols.kserve.answers import takes_long
from farm.protocols.kserve.dialect import GRPC, OPEN, OpenDialect
from farm.protocols.kserve.grpc.codec import decode, encode, encode_infer, messages, parameters_of
from farm.protocols.kserve.grpc.endpoint_stream import InferStream, read_infer
from farm.protocols.kserve.grpc.repeated import RepeatedRequests, StreamRequest
from farm.protocols.kserve.metadata import model_config, model_metadata, statistics_of
from farm.protocols.kserve.repository import Repository
from farm.protocols.kserve.request import (
    InferRequest,
    config_of,
    hints_of_parameters,
    uses_regions,
    without_axis,
)
from farm.protocols.kserve.shared_memory.endpoint_carrier import Carried, Carrier
from farm.protocols.kserve.shared_memory.regions import Regions, check_owner, refuse_cuda

SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
HEALTH_REQUEST, HEALTH_RESPONSE = f"{HEALTH}CheckRequest", f"{HEALTH}CheckResponse"

NOT_OFFERED = ("TraceSetting", "LogSettings")
"""Methods of Triton's service that are answered with UNIMPLEMENTED."""

WATCH_S = 1.0
"""Seconds between two checks of a watched health."""


class KServeGrpc:
    """The methods by path, as a `farm.grpc.call.Service`. Raises Unavailable without protobuf."""

    def __init__(
        self,
        backend: Dispatcher,
        repository: Repository,
        readers: Reads = READS_HERE,
        dialect: OpenDialect = OPEN,
        carrier: Carrier | None = None,
    ) -> None:
        messages()
        self._dialect = dialect
        self._carrier = carrier or Carrier(Regions(), readers)
        self._backend = backend
        self._readers = readers
        self._repository = repository
        self._repeated = RepeatedRequests()
        self._ending = asyncio.Event()
        # Schedules the decoding of long messages.
        self._turns = Turns(asyncio.get_running_loop(), 1)
        known: dict[str, Callable[[Any], Mapping[str, Any]]] = {
            "ServerLive": lambda asked: {"live": True},
            "ServerReady": lambda asked: {"ready": repository.all_ready()},
            "ServerMetadata": lambda asked: dialect.server_metadata(),
            "ModelReady": lambda asked: {"ready": repository.is_ready(asked.name, asked.version)},
            "ModelStatistics": self._statistics,
            "RepositoryIndex": lambda asked: {"models": repository.index(ready_only=asked.ready)},
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        unary: dict[str, Unary] = {name: _told(name, tell) for name, tell in known.items()}
        of_model: dict[str, Callable[[Any], Mapping[str, Any]]] = {
            "ModelMetadata": lambda asked: model_metadata(
                self._named(asked), asked.name, repository.versions(asked.name)
            ),
            "ModelConfig": lambda asked: {
                "config": model_config(self._named(asked), asked.name, reuses=repository.reuses)
            },
        }
        unary |= {
            name: _told(name, tell, backend.first_worker.known) for name, tell in of_model.items()
        }
        unary |= {name: _not_offered(name) for name in NOT_OFFERED}
        unary["ModelInfer"] = self._infer
        unary |= region_methods(self._carrier.regions, _short)
        self.unary: Mapping[str, Unary] = MappingProxyType(
            {f"/{SERVICE}/{name}": method for name, method in unary.items()}
            | {f"/{HEALTH}/Check": self._check}
        )
        self.direct: Mapping[str, Direct] = {f"/{SERVICE}/ModelInfer": self._infer_directly}
        self.server_streams: Mapping[str, ServerStream] = {f"/{HEALTH}/Watch": self._watch}
        self.bidirectional: Mapping[str, Bidirectional] = {
            f"/{SERVICE}/ModelStreamInfer": self._stream_infer
        }

    def end_streams(self) -> None:
        """End the open streams because the server stops: they finish running requests and close."""
        self._ending.set()

    # Inference

    async def _infer(self, body: Body, caller: Caller) -> Answer:
        hints = hints_for(caller)
        request, raw = await read_infer(
            self._dialect.decode_grpc, body, self._readers, self._turns, hints
        )
        if not uses_regions(request):
            return await self._answer_to(request, raw, hints, None)
        try:
            is_owner = caller.is_owner_here()
            async with self._carrier.carried(request, is_owner, hints) as carried:
                return await self._answer_to(carried.request, raw, hints, carried)
        except Refused as refused:
            raise failure_of(refused) from None

    async def _answer_to(
        self, request: InferRequest, raw: bool, hints: Hints, carried: Carried | None
    ) -> Answer:
        call, hints, wish, lead, _ = await self.asked(request, hints)
        result = await self._backend.submit(call, hints)
        if carried is not None:
            wish, result = await carried.put(wish, result, lead)
        about = (wish, result.outputs, raw, lead, result.reused)
        message: bytes | memoryview
        if takes_long(wish, result, raw=raw):
            message = await carried_out(self._readers, encode_infer, *about, hints=hints)
        else:
            message = encode_infer(*about)
        return _noted(message, result)

    def _infer_directly(
        self, body: bytes, caller: Caller, answer: Callable[[Answer | Exception], None]
    ) -> CancelCall | None:
        """Start an inference that needs nothing first; None: it has to wait for something."""
        known = self._repeated.find(body)
        if known is None and len(body) > QUICK_BYTES:
            return None
        hints, backend, carried = hints_for(caller), self._backend, None
        if known is not None and (
            self._repository.model(known.model, known.version) is known.info
        ):  # the usual case
            asked = known.asked(body, hints)
            return _Inference(backend, self._readers, asked, True, answer, None).undo
        request, raw = self._dialect.decode_grpc(body)
        if not self._repository.knows(request.model) and (
            not backend.models() or backend.first_worker.expected.incomplete
        ):
            return None
        if uses_regions(request):
            try:
                is_owner = caller.is_owner_here()
                carried = self._carrier.carried_now(request, is_owner, hints)
            except Refused as refused:
                raise failure_of(refused) from None
            if carried is None:
                return None
            request = carried.request
        info = self._repository.model(request.model, request.version)
        if request.parameters:
            hints = hints_of_parameters(request.parameters, hints)
            described = backend.description(info.name, config_of(request.parameters))
            if described is None:
                return None
            info = described
        asked = self._stream_request(request, hints, info)
        if raw and carried is None and asked.call.step is None:
            asked = self._repeated.keep(body, request, info, asked)
        return _Inference(backend, self._readers, asked, raw, answer, carried).undo

    async def asked(
        self, request: InferRequest, hints: Hints, *, streaming: bool = False
    ) -> StreamRequest:
        """Return the call of a request, for the model's description for its config."""
        await self._repository.known(request.model)
        info = self._repository.model(request.model, request.version)
        if request.parameters:
            hints = hints_of_parameters(request.parameters, hints)
            config = config_of(request.parameters)
            info = self._backend.description(info.name, config) or await self._backend.describe(
                info.name, config
            )
        return self._stream_request(request, hints, info, streaming=streaming)

    def _stream_request(
        self, request: InferRequest, hints: Hints, info: ModelInfo, *, streaming: bool = False
    ) -> StreamRequest:
        call, wish = self._dialect.call_of(request, info, streaming=streaming, by=GRPC)
        if call.rows == 1:
            return StreamRequest(without_axis(call), hints, wish, (1,))
        return StreamRequest(call, hints, wish, ())

    async def _stream_infer(self, requests: Requests, write: Write, caller: Caller) -> None:
        # The RPC's deadline ends the whole stream, with all that is running.
        hints = hints_for(caller._replace(remaining_s=None))

        def carried(request: InferRequest) -> AbstractAsyncContextManager[Carried]:
            return self._carrier.carried(request, caller.is_owner_here(), hints)

        stream = InferStream(
            self._backend,
            self.asked,
            write,
            hints,
            self._readers,
            self._turns,
            self._dialect,
            carried,
        )
        await stream.serve(requests, self._ending)

    # Methods that run no model

    def _named(self, asked: Any) -> ModelInfo:
        return self._repository.model(asked.name, asked.version)

    def _statistics(self, asked: Any) -> Mapping[str, Any]:
        models = self._repository.numbered(asked.name, asked.version)
        rows = statistics_of(models, self._backend.statistics())["model_stats"]
        return {"model_stats": [{k: v for k, v in row.items() if v} for row in rows]}

    def _load(self, asked: Any) -> Mapping[str, Any]:
        self._repository.load(asked.model_name, parameters_of(asked.parameters))
        return {}

    def _unload(self, asked: Any) -> Mapping[str, Any]:
        self._repository.unload(asked.model_name, parameters_of(asked.parameters))
        return {}

    # grpc.health.v1

    def _health(self, service: str) -> str:
        if service not in ("", SERVICE):
            return "SERVICE_UNKNOWN"
        return "SERVING" if self._repository.all_ready() else "NOT_SERVING"

    async def _check(self, body: Body, caller: Caller) -> bytes:
        service = decode(HEALTH_REQUEST, _short(body)).service
        status = self._health(service)
        if status == "SERVICE_UNKNOWN":
            raise ModelNotFound(f"there is no service {shown(service)}; there is {SERVICE!r}")
        return encode(HEALTH_RESPONSE, {"status": status})

    async def _watch(self, body: Body, write: Write, caller: Caller) -> None:
        service = decode(HEALTH_REQUEST, _short(body)).service
        told = ""
        while True:
            status = self._health(service)
            if status != told:
                await write(encode(HEALTH_RESPONSE, {"status": status}))
                told = status
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), WATCH_S)
                return


class _Inference:
    """A call that runs without a task, and the encoding of its answer."""

    __slots__ = ("_answer", "_asked", "_carried", "_raw", "_readers", "cancel")

    def __init__(
        self,
        backend: Dispatcher,
        readers: Reads,
        asked: StreamRequest,
        raw: bool,
        answer: Callable[[Answer | Exception], None],
        carried: Carried | None,
    ) -> None:
        """Start it. Raises FarmError."""
        self._carried = carried
        self._readers = readers
        self._asked = asked
        self._raw = raw
        self._answer = answer
        task_id = backend.start_call(asked.call, asked.hints, self._done)
        self.cancel: CancelCall = partial(backend.cancel, task_id)

    def _done(self, outcome: Result | FarmError) -> None:
        if isinstance(outcome, FarmError):
            self._answer(outcome)
            return
        known = self._asked.known
        message: Answer | None = None
        try:
            if known is not None:
                message = known.answer(outcome)
            if message is None:
                message = self._encoded(outcome)
        except Exception as error:
            self._answer(error)
        else:
            if message is not None:
                self._answer(message)

    def _encoded(self, outcome: Result) -> Answer | None:
        """Return the answer; None: it takes long and is sent when it is ready."""
        asked, raw = self._asked, self._raw
        if self._carried is not None:
            now = self._carried.put_now(asked.wish, outcome, asked.lead)
            if now is None:
                self._put(outcome, self._carried)
                return None
            self._carried = None
            self._asked = asked = asked._replace(wish=now[0])
            outcome = now[1]
        about = (asked.wish, outcome.outputs, raw, asked.lead, outcome.reused)
        if takes_long(asked.wish, outcome, raw=raw):
            writing = Reading(lambda message: self._answer(_noted(message, outcome)), self._answer)
            self.cancel = writing.begin(self._readers, encode_infer, *about, hints=asked.hints)
            return None
        message = encode_infer(*about)
        if asked.known is not None:
            asked.known.keep(outcome, message)
        return _noted(message, outcome)

    def undo(self) -> None:
        """Cancel it, whatever is running."""
        self.cancel()  # which changes when a long answer is encoded

    def _put(self, result: Result, carried: Carried) -> None:
        """Write long outputs into their regions, then answer."""

        async def put() -> None:
            try:
                wish, left = await carried.put(self._asked.wish, result, self._asked.lead)
            except Exception as error:
                self._answer(error)
            else:
                self._carried = None
                self._asked = self._asked._replace(wish=wish)
                self._done(left)

        task = asyncio.get_running_loop().create_task(put())
        self.cancel = lambda: (task.cancel(), None)[1]


def _noted(message: bytes | memoryview, result: Result) -> Answer:
    return Noted(message, reused_header(result)) if result.reused else message


def hints_for(caller: Caller) -> Hints:
    """Return the hints in a call's metadata, with the RPC's deadline."""
    hints = hints_of(caller.headers, caller.peer, caller.user, caller.end)
    remaining_s = caller.remaining_s
    if remaining_s is None:
        return hints
    if hints.deadline_s is not None:
        remaining_s = min(remaining_s, hints.deadline_s)
    return replace(hints, deadline_s=remaining_s)


def _short(body: Body) -> bytes:
    """Return the body of a request without tensors. Raises InvalidRequest if it is long."""
    if isinstance(body, HeldBody):
        raise InvalidRequest(
            f"the request has {body.size} bytes; expected at most {LONG} of one without tensors"
        )
    return body


def _told(
    name: str,
    tell: Callable[[Any], Mapping[str, Any]],
    wait: Callable[[], Awaitable[None]] | None = None,
) -> Unary:
    """Return the method `name`, which answers with the result of `tell`, after `wait` if given."""

    async def method(body: Body, caller: Caller) -> bytes:
        asked = decode(f"inference.{name}Request", _short(body))
        if wait is not None:
            await wait()
        return encode(f"inference.{name}Response", tell(asked))

    return method


def _not_offered(name: str) -> Unary:
    async def method(body: Body, caller: Caller) -> bytes:
        raise UnsupportedFeature(f"{name} is not offered here")

    return method


STATUSES = {"Forbidden": "PERMISSION_DENIED", "NotFound": "NOT_FOUND"}
"""The status that answers each kind of refusal; the others of shared memory are ALREADY_EXISTS."""


def failure_of(refused: Refused) -> GrpcFailure:
    """Return the same refusal for a gRPC call."""
    return GrpcFailure(STATUSES.get(refused.kind, "ALREADY_EXISTS"), refused.message)


def region_methods(regions: Regions, short: Callable[[Body], bytes]) -> dict[str, Unary]:
    """Return the methods by name; those of CUDA shared memory know no region.

    short: returns the body of a short message, and raises for a long one.
    """

    def method(name: str, tell: Callable[[Any], Mapping[str, Any]]) -> Unary:
        async def answer(body: Body, caller: Caller) -> bytes:
            asked = decode(f"inference.SystemSharedMemory{name}Request", short(body))
            try:
                check_owner(caller.is_owner_here())
                told = tell(asked)
            except Refused as refused:
                raise failure_of(refused) from None
            return encode(f"inference.SystemSharedMemory{name}Response", told)

        return answer

    def status(asked: Any) -> Mapping[str, Any]:
        return {"regions": {region["name"]: region for region in regions.status(asked.name)}}

    def register(asked: Any) -> Mapping[str, Any]:
        regions.register(asked.name, asked.key, asked.offset, asked.byte_size)
        return {}

    def unregister(asked: Any) -> Mapping[str, Any]:
        regions.unregister(asked.name)
        return {}

    async def refuse(body: Body, caller: Caller) -> bytes:
        raise refuse_cuda()

    async def nothing(body: Body, caller: Caller) -> bytes:
        return b""

    return {
        "SystemSharedMemoryStatus": method("Status", status),
        "SystemSharedMemoryRegister": method("Register", register),
        "SystemSharedMemoryUnregister": method("Unregister", unregister),
        "CudaSharedMemoryStatus": nothing,
        "CudaSharedMemoryRegister": refuse,
        # Nothing is registered; clients unregister all of both kinds before they begin.
        "CudaSharedMemoryUnregister": nothing,
    }
