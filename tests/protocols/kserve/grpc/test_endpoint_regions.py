"""Shared memory over gRPC: its methods, inferences and streams, and who may use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import farm
from farm.bodies.body import HEAVY_BYTES
from farm.errors import InvalidInput, InvalidRequest, UnsupportedFeature
from farm.grpc.call import Caller
from farm.grpc.messages import GrpcFailure
from farm.model import Config
from farm.protocols.kserve.grpc.codec import decode, messages
from farm.protocols.kserve.grpc.endpoint import SERVICE, KServeGrpc
from farm.protocols.kserve.shared_memory.regions import is_offered
from tests.protocols.kserve.in_process import infer, inference
from tests.protocols.models import Count, double
from tests.support.shared_objects import SharedObject, shared_object

pytestmark = pytest.mark.skipif(not is_offered(), reason="this system has no /dev/shm")

OWNER = Caller("127.0.0.1", "", {}, None, lambda: True)
OTHER = Caller("127.0.0.1", "", {}, None)


@farm.model(inputs={"x": -1}, outputs={"y": -1})
def grow(x: Any, config: Config) -> Any:
    return np.arange(x[0])


@asynccontextmanager
async def methods() -> AsyncIterator[KServeGrpc]:
    async with inference({"double": double, "grow": grow, "count": Count()}) as of:
        yield KServeGrpc(of)


@pytest.fixture
def made() -> Iterator[SharedObject]:
    with shared_object(64) as made:
        yield made


async def tell(service: KServeGrpc, method: str, caller: Caller = OWNER, /, **asked: Any) -> Any:
    request = messages()[f"inference.SystemSharedMemory{method}Request"](**asked)
    path = f"/{SERVICE}/SystemSharedMemory{method}"
    body = await service.unary[path](request.SerializeToString(), caller)
    assert isinstance(body, bytes)
    return decode(f"inference.SystemSharedMemory{method}Response", body)


def place(parameters: Any, size: int, offset: int = 0, region: str = "r") -> None:
    parameters["shared_memory_region"].string_param = region
    parameters["shared_memory_byte_size"].int64_param = size
    if offset:
        parameters["shared_memory_offset"].int64_param = offset


def question(
    size: int = 16,
    offset: int = 0,
    region: str = "r",
    model: str = "double",
    size_of_y: int = 16,
    lead: tuple[int, ...] = (),
    **outputs: int,
) -> bytes:
    """Build a request whose input is at `offset`; outputs: their offsets."""
    message = messages()["inference.ModelInferRequest"](model_name=model, id="7")
    tensor = message.inputs.add(name="x", datatype="FP64", shape=[*lead, size // 8])
    place(tensor.parameters, size, offset, region)
    for name, at in outputs.items():
        place(message.outputs.add(name=name).parameters, size_of_y, at)
    return bytes(message.SerializeToString())


async def stream(service: KServeGrpc, *bodies: bytes, caller: Caller = OWNER) -> list[Any]:
    answers = []

    async def requests() -> AsyncIterator[bytes]:
        for body in bodies:
            yield body

    async def write(message: bytes | memoryview) -> None:
        answers.append(decode("inference.ModelStreamInferResponse", bytes(message)))

    await service.bidirectional[f"/{SERVICE}/ModelStreamInfer"](requests(), write, caller)
    return answers


async def test_cuda_is_refused_by_name() -> None:
    async with methods() as service:
        for name in ("Status", "Unregister"):
            assert await service.unary[f"/{SERVICE}/CudaSharedMemory{name}"](b"", OTHER) == b""
        with pytest.raises(
            UnsupportedFeature, match=r"CUDA shared memory is not offered here.*use system shared"
        ):
            await service.unary[f"/{SERVICE}/CudaSharedMemoryRegister"](b"", OWNER)
        with pytest.raises(InvalidRequest):
            await service.unary[f"/{SERVICE}/SystemSharedMemoryStatus"](b"\xff\xff", OWNER)


async def infer_directly(service: KServeGrpc, body: bytes, caller: Caller = OWNER) -> Any:
    """Return the answer of an inference that runs without a task; None: it needs one."""
    came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if service.direct[f"/{SERVICE}/ModelInfer"](body, caller, came.set_result) is None:
        return None
    answer = await came
    if isinstance(answer, Exception):
        raise answer
    return decode("inference.ModelInferResponse", bytes(answer))


async def test_short_tensors_need_no_task(made: SharedObject) -> None:
    async with methods() as service:
        await tell(service, "Register", name="r", key=made.key, byte_size=64)
        made.write(np.array([1.0, 2.0]).tobytes())
        answer = await infer_directly(service, question(y=16))
        assert list(answer.raw_output_contents) == [b""]
        assert np.frombuffer(made.read()[16:32]).tolist() == [2, 4]
        answer = await infer_directly(service, question(y=16, lead=(1,)))
        assert list(answer.outputs[0].shape) == [1, 2]
        with pytest.raises(InvalidInput, match="should be at least 16 bytes"):
            await infer_directly(service, question(y=48, size_of_y=15))
        with pytest.raises(GrpcFailure, match="Unable to find shared memory region") as caught:
            await infer_directly(service, question(region="q"))
        assert caught.value.status == "NOT_FOUND"
        with pytest.raises(GrpcFailure, match="programs of the user"):
            await infer_directly(service, question(), OTHER)


async def test_long_tensors_need_one(made: SharedObject) -> None:
    size = 2 * HEAVY_BYTES
    made.cut(2 * size)
    async with methods() as service:
        await tell(service, "Register", name="r", key=made.key, byte_size=2 * size)
        assert await infer_directly(service, question(size, model="grow")) is None
        made.write(np.array([size / 8]).tobytes())
        body = question(8, model="grow", y=size, size_of_y=size)
        answer = await infer_directly(service, body)
        assert list(answer.outputs[0].shape) == [size // 8]
        assert list(answer.raw_output_contents) == [b""]
        assert np.array_equal(np.frombuffer(made.read()[size:]), np.arange(size // 8))
        with pytest.raises(InvalidInput, match=f"at least {size} bytes"):
            await infer_directly(service, question(8, model="grow", y=size, size_of_y=size - 1))


async def test_a_stream_goes_on_after_an_error(made: SharedObject) -> None:
    async with methods() as service:
        await tell(service, "Register", name="r", key=made.key, byte_size=64)
        made.write(np.array([3.0, 2.0]).tobytes())
        first, unknown, beyond, last = await stream(
            service, question(y=16), question(region="q"), question(offset=56), question(y=32)
        )
        assert not first.error_message
        assert "Unable to find shared memory region: 'q'" in unknown.error_message
        assert unknown.infer_response.id == "7"
        assert "Invalid offset + byte size" in beyond.error_message
        assert list(last.infer_response.raw_output_contents) == [b""]
        assert np.frombuffer(made.read()[16:48]).tolist() == [6, 4, 6, 4]
        answers = await stream(service, question(8, model="count", i=48))
        assert [list(a.infer_response.raw_output_contents) for a in answers] == [[b""]] * 3
        assert np.frombuffer(made.read()[48:56]).tolist() == [2]


async def test_others_get_nothing(made: SharedObject) -> None:
    async with methods() as service:
        await tell(service, "Register", name="r", key=made.key, byte_size=64)
        for method, asked in (
            ("Register", {"name": "q", "key": made.key, "byte_size": 8}),
            ("Status", {}),
            ("Unregister", {}),
        ):
            with pytest.raises(GrpcFailure, match="programs of the user") as caught:
                await tell(service, method, OTHER, **asked)
            assert caught.value.status == "PERMISSION_DENIED"
        with pytest.raises(GrpcFailure, match="programs of the user") as caught:
            await infer(service, question(), OTHER)
        assert caught.value.status == "PERMISSION_DENIED"
        (answer,) = await stream(service, question(), caller=OTHER)
        assert "programs of the user" in answer.error_message
        assert set((await tell(service, "Status")).regions) == {"r"}
