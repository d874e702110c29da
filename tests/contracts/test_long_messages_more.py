"""Like `test_long_messages`, for the protocols other than HTTP: gRPC, MIP and AEPsych."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.bodies.body import HEAVY_BYTES, Body
from farm.bodies.readers import Readers, Reads, ReadsHere
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import FarmError
from farm.grpc.call import Caller, Noted
from farm.protocols.kserve.endpoint_inference import Inference
from farm.protocols.kserve.grpc.codec import is_quick, messages
from farm.protocols.kserve.grpc.endpoint import SERVICE, KServeGrpc
from farm.protocols.kserve.repository import Repository
from farm.protocols.mip.packets import HEAD, VERSION, PacketKind
from farm.transports.threads import LocalTransport
from tests.support.body_bytes import body_of
from tests.support.coroutines import LIMIT_S, on_loop
from tests.support.experiment_clients import asked
from tests.support.mip_farm import mip_served

CALLER = Caller("127.0.0.1", "", {}, None)


@farm.model(inputs={"x": -1}, outputs={"y": -1})
def echo(x: Any) -> Any:
    return x


@farm.model(
    inputs={"t": farm.TensorInfo("t", (-1,), "bytes")},
    outputs={"u": farm.TensorInfo("u", (-1,), "bytes")},
)
def texts(t: Any) -> Any:
    return t


@asynccontextmanager
async def both() -> AsyncIterator[tuple[ReadsHere, Readers]]:
    pool = Readers(most=2)
    try:
        yield ReadsHere(), pool
    finally:
        pool.stop()


# gRPC


def typed(message: Any, values: np.ndarray[Any, Any]) -> None:
    message.inputs.add(name="x", datatype="FP64", shape=[values.size])
    message.inputs[0].contents.fp64_contents.extend(values)


def wrong_shape(message: Any, values: np.ndarray[Any, Any]) -> None:
    typed(message, values)
    message.inputs[0].shape[:] = [values.size + 1]


def many_inputs(message: Any, values: np.ndarray[Any, Any]) -> None:
    for number in range(3000):
        message.inputs.add(name=f"x{number}" + "y" * 100, datatype="FP64", shape=[0])


def raw(message: Any, values: np.ndarray[Any, Any]) -> None:
    message.inputs.add(name="x", datatype="FP64", shape=[values.size])
    message.raw_input_contents.append(values.tobytes())


def raw_texts(message: Any, values: np.ndarray[Any, Any]) -> None:
    message.model_name = "texts"
    message.inputs.add(name="t", datatype="BYTES", shape=[values.size])
    message.raw_input_contents.append(b"\x03\0\0\0abc" * values.size)


def cut_texts(message: Any, values: np.ndarray[Any, Any]) -> None:
    raw_texts(message, values)
    message.raw_input_contents[0] = message.raw_input_contents[0][:-1]


GRPC = [typed, wrong_shape, many_inputs, raw, raw_texts, cut_texts]


def grpc_body(fill: Callable[[Any, Any], None]) -> bytes:
    message = messages()["inference.ModelInferRequest"](model_name="echo", id="7")
    fill(message, np.random.default_rng(0).normal(size=50_000))
    body = bytes(message.SerializeToString())
    assert len(body) > HEAVY_BYTES
    return body


@pytest.mark.slow
@on_loop
async def test_grpc() -> None:
    dispatcher = Dispatcher([LocalTransport({"echo": echo, "texts": texts})])
    dispatcher.start()
    await dispatcher.wait_for_workers(1, timeout_s=LIMIT_S)

    async def answer(readers: Reads, body: bytes) -> Any:
        service = KServeGrpc(Inference(dispatcher, Repository(dispatcher), readers))
        try:
            told = await service.unary[f"/{SERVICE}/ModelInfer"](body_of(body), CALLER)
            assert not isinstance(told, Noted)
            return bytes(told)
        except FarmError as error:
            return type(error), error.message

    async def streamed(readers: Reads, body: bytes) -> list[bytes]:
        service = KServeGrpc(Inference(dispatcher, Repository(dispatcher), readers))
        written: list[bytes] = []

        async def requests() -> AsyncIterator[Body]:
            yield body_of(body)

        async def write(message: bytes | memoryview) -> None:
            written.append(bytes(message))

        method = service.bidirectional[f"/{SERVICE}/ModelStreamInfer"]
        await method(requests(), write, CALLER)
        return written

    async with both() as (here, pool):
        bodies = [grpc_body(fill) for fill in GRPC]
        bodies += [b"\xff" * (HEAVY_BYTES + 1), bodies[0][:-1]]
        for body in bodies:
            one = await answer(here, body)
            assert one == await answer(pool, body)
            assert await streamed(here, body) == await streamed(pool, body)
        assert pool.pids
    await dispatcher.close(grace_s=0.0)


def test_which_grpc_requests_are_quick() -> None:
    quick = {fill for fill in GRPC if is_quick(grpc_body(fill))}
    assert quick == {raw}
    assert is_quick(b"")
    assert not is_quick(b"\xff" * 1000)
    assert not is_quick(b"\x3a\x01a" * 1001)


# MIP


def entries(count: int, value: bytes = b"[1.5]") -> bytes:
    each = struct.pack("!2L", 2, len(value)) + value
    payload = struct.pack("!2BH", 1, 1, count) + each * count
    return HEAD.pack(VERSION, PacketKind.INFERENCE, 0, 0, len(payload)) + payload


MIP = [
    entries(3000),
    entries(1, b"[" + b"1.5, " * 100_000 + b"2]"),
    entries(3000, b'["a"]'),
    entries(3000, b"[1.5"),
    entries(300, b"[[1], [2]]"),
    entries(65535, b""),
]


@on_loop
async def test_mip() -> None:
    async with both() as (here, pool):
        for packet in MIP:
            answers = []
            for readers in (here, pool):
                async with mip_served(echo, readers=readers) as served:
                    client = await served.connect()
                    # The answer is sent before that of a later request that is read at once.
                    client.send(packet + entries(1))
                    answers.append((await client.packet(), await client.packet()))
            assert answers[0] == answers[1]
        assert pool.pids


# AEPsych

BLANKS = b" " * (HEAVY_BYTES + 1)


@pytest.mark.parametrize(
    "request_",
    [
        b'{"type":"info","message":{}}',
        b'{"type":"nothing"}',
        b'{"message":1}',
        b'{"type":"tell","message":{"config":{"x":[1]},"outcome":1}}',
        b'{"type":"info","message":"\xe9"}',
        b'{"type":"info","message":1e999}',
    ],
)
def test_aepsych(tmp_path: Path, request_: bytes) -> None:
    async def main() -> None:
        async with asked(tmp_path / "journal.db") as served:
            client = await served.connect()

            async def answer(request: bytes) -> Any:
                client.writer.write(request)
                async with asyncio.timeout(LIMIT_S):
                    said = await client.reader.read(1 << 16)
                return json.loads(said)

            short = await answer(request_)
            long = await answer(b"{" + BLANKS + request_[1:])
            # The part that was received is shown.
            if isinstance(short.get("message"), str):
                short["message"] = long["message"] = ""
            assert strip(short) == strip(long)

    asyncio.run(main())


def strip(answer: dict[str, Any]) -> dict[str, Any]:
    """Remove the positions of mistakes, which blanks change."""
    error = str(answer.get("server_error", ""))
    return answer | {"server_error": error.split(" at ")[0].split(": line")[0]}


def test_a_long_list_of_trials_arrives_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with asked(tmp_path / "journal.db") as served:
            client = await served.connect()
            numbers = [0.5] * 200_000
            tell = {"type": "tell", "message": {"config": {"x": numbers}, "outcome": 1}}
            short = {"type": "tell", "message": {"config": {"x": [0.5]}, "outcome": 1}}
            answers = []
            for message in (short, tell):
                client.writer.write(json.dumps(message).encode())
                async with asyncio.timeout(LIMIT_S):
                    answers.append(json.loads(await client.reader.read(1 << 16)))
            assert answers[0]["server_error"] == answers[1]["server_error"]

    asyncio.run(main())
