"""The KServe v2 methods over gRPC, with models in threads of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from farm.bodies.body import QUICK_BYTES
from farm.call import Hints
from farm.errors import FarmError, InvalidRequest, ModelNotFound
from farm.grpc.call import Caller, Noted
from farm.grpc.messages import LONG
from farm.protocols.kserve.grpc.codec import decode, messages
from farm.protocols.kserve.grpc.endpoint import HEALTH, NOT_OFFERED, SERVICE, KServeGrpc
from farm.protocols.kserve.grpc.endpoint_stream import hints_for
from tests.protocols.kserve.in_process import infer, inference
from tests.protocols.models import Sized
from tests.support.body_bytes import body_of
from tests.support.coroutines import LIMIT_S, until

CALLER = Caller("127.0.0.1", "", {}, None)


@asynccontextmanager
async def methods() -> AsyncIterator[KServeGrpc]:
    async with inference({"sized": Sized(2)}) as of:
        yield KServeGrpc(of)


async def tell(service: KServeGrpc, method: str, /, **asked: Any) -> Any:
    """Return the answer of a method."""
    request = messages()[f"inference.{method}Request"](**asked)
    body = await service.unary[f"/{SERVICE}/{method}"](request.SerializeToString(), CALLER)
    assert not isinstance(body, Noted)
    return decode(f"inference.{method}Response", bytes(body))


def question(count: int, **parameters: Any) -> bytes:
    message = messages()["inference.ModelInferRequest"](model_name="sized")
    message.inputs.add(name="x", datatype="FP64", shape=[count])
    message.raw_input_contents.append(np.arange(float(count)).tobytes())
    for name, value in parameters.items():
        kind = {str: "string_param", int: "int64_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    return bytes(message.SerializeToString())


async def test_bytes_that_are_no_message_are_refused_by_every_method() -> None:
    async with methods() as service:
        for path, method in service.unary.items():
            name = path.rpartition("/")[2]
            if name not in NOT_OFFERED and not name.startswith("Cuda"):
                with pytest.raises(InvalidRequest):
                    await method(b"\xff\xff", CALLER)


async def test_health_check() -> None:
    async with methods() as service:
        check = service.unary[f"/{HEALTH}/Check"]
        named = messages()[f"{HEALTH}CheckRequest"](service=SERVICE).SerializeToString()
        other = messages()[f"{HEALTH}CheckRequest"](service="other").SerializeToString()
        assert await check(b"", CALLER) == b"\x08\x01"
        assert await check(named, CALLER) == b"\x08\x01"
        with pytest.raises(FarmError, match="no service 'other'"):
            await check(other, CALLER)
        await tell(service, "RepositoryModelUnload", model_name="sized")
        assert await check(b"", CALLER) == b"\x08\x02"


@pytest.mark.parametrize(
    "method", [f"{SERVICE}/ServerLive", f"{SERVICE}/ModelReady", f"{HEALTH}/Check"]
)
async def test_a_request_without_tensors_is_short(method: str) -> None:
    async with methods() as service:
        with pytest.raises(InvalidRequest, match=f"expected at most {LONG}"):
            await service.unary[f"/{method}"](body_of(bytes(LONG + 1)), CALLER)


async def test_health_is_watched_until_the_end() -> None:
    async with methods() as service:
        told: list[bytes | memoryview] = []

        async def write(body: bytes | memoryview) -> None:
            told.append(body)

        watch = service.server_streams[f"/{HEALTH}/Watch"]
        watching = asyncio.ensure_future(watch(b"", write, CALLER))
        await until(lambda: told == [b"\x08\x01"])
        await tell(service, "RepositoryModelUnload", model_name="sized")
        await until(lambda: told == [b"\x08\x01", b"\x08\x02"])
        service.end_streams()
        await asyncio.wait_for(watching, LIMIT_S)
        other = messages()[f"{HEALTH}CheckRequest"](service="other").SerializeToString()
        await watch(other, write, CALLER)
        assert told == [b"\x08\x01", b"\x08\x02", b"\x08\x03"]


async def directly(service: KServeGrpc, body: bytes) -> Any:
    """Return the answer, an error, or None if the method has to be started with a task."""
    came: list[Any] = []
    try:
        if service.direct[f"/{SERVICE}/ModelInfer"](body, CALLER, came.append) is None:
            return None
    except FarmError as error:
        return error
    await until(lambda: came)
    (answer,) = came
    return answer


async def test_an_inference_needs_no_task() -> None:
    async with methods() as service:
        method = service.unary[f"/{SERVICE}/ModelInfer"]
        body = question(2)
        assert await directly(service, body) == await method(body, CALLER)
        for wrong in (question(3), b"\xff", question(2, farm_config="{"), question(2, timeout=-1)):
            with pytest.raises(FarmError) as caught:
                await method(wrong, CALLER)
            error = await directly(service, wrong)
            assert (type(error), error.message) == (type(caught.value), caught.value.message)
        unknown = messages()["inference.ModelInferRequest"](model_name="nobody")
        assert isinstance(await directly(service, unknown.SerializeToString()), ModelNotFound)


async def test_an_inference_that_has_to_wait_needs_a_task() -> None:
    async with methods() as service:
        of_three = question(3, farm_config='{"n": 3}')
        assert await directly(service, of_three) is None  # the model has to be described first
        (raw,) = (await infer(service, of_three, CALLER)).raw_output_contents
        assert np.frombuffer(raw).tolist() == [3.0]
        assert isinstance(await directly(service, of_three), bytes)
        assert await directly(service, question(QUICK_BYTES // 8)) is None


def test_hints_come_from_the_metadata_and_the_deadline() -> None:
    assert hints_for(CALLER) == Hints(client="127.0.0.1")
    headers = {b"farm-client": b"me", b"farm-priority": b"3", b"farm-deadline": b"5"}
    asked = Caller("10.0.0.1", "", headers, None)
    assert hints_for(asked) == Hints(client="me", priority=3, deadline_s=5.0)
    assert hints_for(asked._replace(remaining_s=2.0)).deadline_s == 2.0
    assert hints_for(asked._replace(remaining_s=9.0)).deadline_s == 5.0
    assert hints_for(CALLER._replace(remaining_s=9.0)).deadline_s == 9.0
