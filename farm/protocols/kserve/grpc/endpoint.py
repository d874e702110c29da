"""KServe v2 over gRPC: the methods of its service and of the health check."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from farm.bodies.body import QUICK_BYTES, Body, HeldBody
from farm.bodies.unpacking import Refused
from farm.call import CancelCall, Result
from farm.encoding.tensors import shown
from farm.errors import FarmError, InvalidRequest, ModelNotFound, UnsupportedFeature
from farm.grpc.call import (
    Answer,
    Caller,
    Noted,
    Requests,
    Service,
    Unary,
    Write,
)
from farm.grpc.messages import LONG, GrpcFailure
from farm.http1.request import reused_header
from farm.http1.turns import Turns
from farm.protocols.kserve.dialect import GRPC
from farm.protocols.kserve.endpoint_inference import Inference, InferenceRun
from farm.protocols.kserve.grpc.codec import decode, encode, encode_infer, messages, parameters_of
from farm.protocols.kserve.grpc.endpoint_stream import InferStream, hints_for, read_infer
from farm.protocols.kserve.grpc.repeated import RepeatedRequests
from farm.protocols.kserve.request import uses_regions
from farm.protocols.kserve.shared_memory.regions import Regions, check_owner, refuse_cuda

SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
HEALTH_REQUEST, HEALTH_RESPONSE = f"{HEALTH}CheckRequest", f"{HEALTH}CheckResponse"

NOT_OFFERED = ("TraceSetting", "LogSettings")
"""Methods of Triton's service that are answered with UNIMPLEMENTED."""

WAIT = ("ModelMetadata", "ModelConfig")
"""Methods that wait for the first models, of those that run none."""

Tell = Callable[[Any, Caller], Mapping[str, Any] | None]
"""Returns the answer to a message of a caller, as JSON data; None: an empty one."""

RAW = (encode_infer, (True,), True)
"""The form of raw answers."""

WATCH_S = 1.0
"""Seconds between two checks of a watched health."""


class KServeGrpc(Service):
    """KServe's service and the health check. Raises Unavailable without protobuf."""

    def __init__(self, inference: Inference) -> None:
        messages()
        self._inference = inference
        self._repository = repository = inference.repository
        self._repeated = RepeatedRequests()
        self._ending = asyncio.Event()
        # Schedules the decoding of long messages.
        self._turns = Turns(asyncio.get_running_loop(), 1)
        known = inference.backend.first_worker.known
        tellers: dict[str, Tell] = {
            "ServerLive": lambda asked, caller: {"live": True},
            "ServerReady": lambda asked, caller: {"ready": repository.all_ready()},
            "ServerMetadata": lambda asked, caller: inference.dialect.server_metadata(),
            "ModelReady": lambda asked, caller: {
                "ready": repository.is_ready(asked.name, asked.version)
            },
            "ModelMetadata": lambda asked, caller: repository.metadata(asked.name, asked.version),
            "ModelConfig": lambda asked, caller: {
                "config": repository.config(asked.name, asked.version)
            },
            "ModelStatistics": self._statistics,
            "RepositoryIndex": lambda asked, caller: {
                "models": repository.index(ready_only=asked.ready)
            },
            "RepositoryModelLoad": lambda asked, caller: repository.load(
                asked.model_name, parameters_of(asked.parameters)
            ),
            "RepositoryModelUnload": lambda asked, caller: repository.unload(
                asked.model_name, parameters_of(asked.parameters)
            ),
            "SystemSharedMemoryStatus": lambda asked, caller: {
                "regions": {r["name"]: r for r in self._regions(caller).status(asked.name)}
            },
            "SystemSharedMemoryRegister": lambda asked, caller: self._regions(caller).register(
                asked.name, asked.key, asked.offset, asked.byte_size
            ),
            "SystemSharedMemoryUnregister": lambda asked, caller: self._regions(caller).unregister(
                asked.name
            ),
        }
        unary = {
            name: _told(name, tell, known if name in WAIT else None)
            for name, tell in tellers.items()
        }
        for name in NOT_OFFERED:
            unary[name] = _refusing(UnsupportedFeature(f"{name} is not offered here"))
        unary |= {
            "ModelInfer": self._infer,
            "CudaSharedMemoryStatus": _nothing,
            "CudaSharedMemoryRegister": _refusing(refuse_cuda()),
            # Nothing is registered; clients unregister all of both kinds before they begin.
            "CudaSharedMemoryUnregister": _nothing,
        }
        self.unary = {f"/{SERVICE}/{name}": method for name, method in unary.items()}
        self.unary[f"/{HEALTH}/Check"] = self._check
        self.direct = {f"/{SERVICE}/ModelInfer": self._infer_directly}
        self.server_streams = {f"/{HEALTH}/Watch": self._watch}
        self.bidirectional = {f"/{SERVICE}/ModelStreamInfer": self._stream_infer}

    def end_streams(self) -> None:
        """End the open streams because the server stops: they finish running requests and close."""
        self._ending.set()

    # Inference

    async def _infer(self, body: Body, caller: Caller) -> Answer:
        inference, hints = self._inference, hints_for(caller)
        request, raw = await read_infer(
            inference.dialect.decode_grpc, body, inference.readers, self._turns, hints
        )
        try:
            carrying = inference.carried(request, caller.is_owner_here, hints)
            async with carrying as (request, carried):
                prepared = await inference.prepared(request, hints, GRPC)
                result = await inference.backend.submit(prepared.call, prepared.hints)
                message = await inference.encoded(
                    prepared, result, encode_infer, raw, raw=raw, carried=carried
                )
                return _noted(message, result)
        except Refused as refused:
            raise failure_of(refused) from None

    def _infer_directly(
        self, body: bytes, caller: Caller, answer: Callable[[Answer | Exception], None]
    ) -> CancelCall | None:
        """Start an inference that needs nothing first; None: it has to wait for something."""
        known, inference = self._repeated.find(body), self._inference
        if known is None and len(body) > QUICK_BYTES:
            return None
        hints = hints_for(caller)
        if known is not None and (
            self._repository.model(known.model, known.version) is known.info
        ):  # the usual case
            return _GrpcRun(inference, known.prepared(body, hints), RAW, (answer, known)).cancel
        request, raw = inference.dialect.decode_grpc(body)
        first_worker = inference.backend.first_worker
        if not self._repository.knows(request.model) and (
            not inference.backend.models() or first_worker.expected.incomplete
        ):
            return None
        carried = None
        if uses_regions(request):
            try:
                is_owner = caller.is_owner_here()
                carried = inference.carrier.carried_now(request, is_owner, hints)
            except Refused as refused:
                raise failure_of(refused) from None
            if carried is None:
                return None
            request = carried.request
        info = self._repository.model(request.model, request.version)
        prepared = inference.prepared_now(request, hints, info, GRPC)
        if prepared is None:
            return None
        if raw and carried is None and prepared.call.step is None:
            known = self._repeated.keep(body, request, info, prepared)
        else:
            known = None
        form = (encode_infer, (raw,), raw)
        return _GrpcRun(inference, prepared, form, (answer, known), carried).cancel

    async def _stream_infer(self, requests: Requests, write: Write, caller: Caller) -> None:
        stream = InferStream(self._inference, self._turns, write, caller)
        await stream.serve(requests, self._ending)

    # Methods that run no model

    def _statistics(self, asked: Any, caller: Caller) -> Mapping[str, Any]:
        rows = self._inference.statistics(asked.name, asked.version)["model_stats"]
        return {"model_stats": [{k: v for k, v in row.items() if v} for row in rows]}

    def _regions(self, caller: Caller) -> Regions:
        """Return the regions of shared memory. Raises Refused if the caller is another user."""
        check_owner(caller.is_owner_here())
        return self._inference.carrier.regions

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


class _GrpcRun(InferenceRun):
    """A call and the encoding of its answer to a gRPC call."""

    __slots__ = ()

    def done(self, outcome: Result | FarmError) -> None:
        """Answer with the call's outcome, a long one when it is encoded."""
        answer, known = self._reply
        if known is not None and isinstance(outcome, Result):
            message = known.answer(outcome)
            if message is not None:
                answer(message)
                return
        super().done(outcome)

    def send(self, result: Result, encoded: bytes | memoryview) -> None:
        """Send the answer."""
        answer, known = self._reply
        if known is not None and isinstance(encoded, bytes):
            known.keep(result, encoded)
        answer(_noted(encoded, result))

    def fail(self, error: Exception) -> None:
        """Answer with an error of any kind."""
        self._reply[0](error)


def _noted(message: bytes | memoryview, result: Result) -> Answer:
    return Noted(message, reused_header(result)) if result.reused else message


def _short(body: Body) -> bytes:
    """Return the body of a request without tensors. Raises InvalidRequest if it is long."""
    if isinstance(body, HeldBody):
        raise InvalidRequest(
            f"the request has {body.size} bytes; expected at most {LONG} of one without tensors"
        )
    return body


def _told(name: str, tell: Tell, wait: Callable[[], Awaitable[None]] | None) -> Unary:
    """Return the method `name`, which answers with the result of `tell`, after `wait` if given."""

    async def method(body: Body, caller: Caller) -> bytes:
        asked = decode(f"inference.{name}Request", _short(body))
        if wait is not None:
            await wait()
        try:
            told = tell(asked, caller)
        except Refused as refused:
            raise failure_of(refused) from None
        return encode(f"inference.{name}Response", told or {})

    return method


def _refusing(error: FarmError) -> Unary:
    async def method(body: Body, caller: Caller) -> bytes:
        raise type(error)(error.message)

    return method


async def _nothing(body: Body, caller: Caller) -> bytes:
    return b""


STATUSES = {"Forbidden": "PERMISSION_DENIED", "NotFound": "NOT_FOUND"}
"""The status that answers each kind of refusal; the others of shared memory are ALREADY_EXISTS."""


def failure_of(refused: Refused) -> GrpcFailure:
    """Return the same refusal for a gRPC call."""
    return GrpcFailure(STATUSES.get(refused.kind, "ALREADY_EXISTS"), refused.message)
