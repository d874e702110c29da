"""Long requests and answers are identical, byte for byte, in this and in reader processes.

Each request of HTTP is sent short, long in this process, and long with reader processes. Blanks,
which JSON allows after a value, make a request long.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.bodies.body import HEAVY_BYTES, Body
from farm.bodies.readers import Readers, Reads
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import FarmError
from farm.grpc.call import Caller, Noted
from farm.model import Config
from farm.protocols.graphpipe.client import encode_call
from farm.protocols.kserve.endpoint_inference import Inference
from farm.protocols.kserve.grpc.codec import is_quick, messages
from farm.protocols.kserve.grpc.endpoint import SERVICE, KServeGrpc
from farm.protocols.kserve.repository import Repository
from farm.protocols.mip.packets import HEAD, VERSION, PacketKind
from farm.protocols.umbridge.codec import OPERATIONS
from farm.settings import Settings
from farm.transports.threads import LocalTransport
from tests.support.body_bytes import body_of
from tests.support.coroutines import LIMIT_S
from tests.support.experiment_clients import asked
from tests.support.front_door import Door, front_door
from tests.support.mip_farm import mip_served

PADDING = b" " * (HEAVY_BYTES + 1)


@farm.model(inputs={"x": -1}, outputs={"y": -1})
def echo(x: Any, config: Config) -> Any:
    if "length" in config:
        return np.full(config["length"], config.get("value", np.nan))
    return x


@farm.model(inputs={"x": 2, "k": farm.TensorInfo("k", (1,), "int32")}, outputs={"y": 1})
def two(x: Any, k: Any) -> Any:
    return [x.sum() * k]


@farm.model(
    inputs={"t": farm.TensorInfo("t", (-1,), "bytes")},
    outputs={"u": farm.TensorInfo("u", (-1,), "bytes")},
)
def texts(t: Any) -> Any:
    return t


MODELS = {"echo": echo, "two": two, "texts": texts}
Doors = tuple[Door, Door, Readers]
Ask = Callable[[Door, str, bytes], object]


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    """Run a front door that reads in this process, and one with reader processes."""
    pool = Readers(most=2)
    settings = Settings(port=0, max_body_bytes=64 << 20)
    with (
        front_door(MODELS, settings=settings, readers=Reads()) as here,
        front_door(MODELS, settings=settings, readers=pool) as there,
    ):
        yield here, there, pool

        async def stop() -> None:
            pool.stop()

        there.wait(stop())


def answer(
    door: Door, path: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    got = door.ask("POST", path, body, headers)
    return got.status, got.data


def check_alike(doors: Doors, path: str, bodies: list[bytes], ask: Ask = answer) -> None:
    """Check that each body has one answer: short and long, here and with reader processes."""
    here, there, _ = doors
    for body in bodies:
        short = ask(here, path, body)
        assert short == ask(there, path, body)
        assert short == ask(here, path, body + PADDING), body
        assert short == ask(there, path, body + PADDING), body


UMBRIDGE = [
    b"{]",
    b"[]",
    b"{}",
    b'{"name":1}',
    b'{"name":"nobody"}',
    b'{"name":"echo"}',
    b'{"name":"echo","input":5}',
    b'{"name":"echo","input":[1,2]}',
    b'{"name":"echo","input":[[1,"2"]]}',
    b'{"name":"echo","input":[[1,NaN,-Infinity]]}',
    b'{"name":"echo","input":[[1e999]]}',
    b'{"name":"echo","input":[[1],[2]]}',
    b'{"name":"echo","input":[[1,2,3.5]]}',
    b'{"name":"echo","input":[[1]],"config":[]}',
    b'{"name":"echo","input":[[1]],"config":{"length":3}}',
    b'{"name":"echo","input":[[1]],"config":{"deep":%b}}' % (b"[" * 200 + b"]" * 200),
    b'{"name":"two","input":[[1,2],[3]]}',
    b'{"name":"two","input":[[1,2],[3.5]]}',
    b'{"name":"two","input":[[1,2,3],[3]]}',
    b'{"name":"echo","input":[[1]],"outWrt":0}',
    b"[" * 2000,
    b'{"name":"\xff"}',
]


@pytest.mark.parametrize("path", [*OPERATIONS, "/InputSizes", "/OutputSizes", "/ModelInfo"])
def test_umbridge(doors: Doors, path: str) -> None:
    check_alike(doors, path, UMBRIDGE)


def tensor(**changes: Any) -> bytes:
    item = {"name": "x", "datatype": "FP64", "shape": [2], "data": [1.5, 2]}
    return json.dumps({"inputs": [item | changes]}).encode()


KSERVE = [
    b"{]",
    b"[]",
    b"{}",
    b'{"inputs":[1]}',
    tensor(),
    tensor(data=[[1.5], [2]], shape=[2, 1]),
    tensor(data=[1.5]),
    tensor(data=["a", 1]),
    tensor(name="z"),
    tensor(datatype="FP32"),
    tensor(datatype="INT99"),
    tensor(shape=[-1]),
    tensor(data=[1e308, float("nan")]),
    json.dumps({"id": "é", "inputs": []}).encode(),
    json.dumps({"parameters": {"farm_config": '{"length": 4, "value": 2}'}}).encode()[:-1]
    + b","
    + tensor()[1:],
    json.dumps({"parameters": {"farm_config": "["}}).encode()[:-1] + b"," + tensor()[1:],
    json.dumps({"parameters": {"timeout": -1}}).encode()[:-1] + b"," + tensor()[1:],
    json.dumps({"outputs": [{"name": "no"}]}).encode()[:-1] + b"," + tensor()[1:],
]


@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v2/models/echo/generate"])
def test_kserve(doors: Doors, path: str) -> None:
    check_alike(doors, path, [*KSERVE, b'{"x":[1,2]}', b'{"x":1,"id":5}'])


FARM = [
    b"{]",
    b"{}",
    b'{"inputs":5}',
    b'{"inputs":[],"other":1}',
    b'{"inputs":[]}',
    b'{"inputs":[[[1,2]],[[3]],7,[["a"]]]}',
    b'{"inputs":[{"x":[1,2]},{"z":[1]}]}',
    b'{"inputs":[[[1]]],"config":{"length":3}}',
    b'{"inputs":[[[1]]],"config":{"length":50000},"non_finite":"null"}',
    b'{"inputs":[[[1]]],"operation":"gradient","outWrt":0,"inWrt":0,"sens":[1]}',
    b'{"inputs":[[[1]]],"operation":"nothing"}',
]


def lines(door: Door, path: str, body: bytes) -> tuple[int, list[Any]]:
    """Return status and sorted lines of an answer, without times and positions."""
    status, data = answer(door, path, body)
    read = [json.loads(line) for line in data.splitlines()]
    for line in read:
        for key in ("run_time_s", "queue_time_s", "worker"):
            line.pop(key, None)
    return status, sorted(read, key=lambda line: line.get("index", 0))


@pytest.mark.parametrize("name", ["echo", "nobody"])
def test_points(doors: Doors, name: str) -> None:
    check_alike(doors, f"/farm/models/{name}/evaluate", FARM, lines)


@pytest.mark.parametrize("end", ["infer_stream", "generate_stream"])
def test_events(doors: Doors, end: str) -> None:
    bodies = [*KSERVE, b'{"x":[1,2]}', b'{"x":1,"farm_config":"{\\"length\\":50000}"}']
    check_alike(doors, f"/v2/models/echo/{end}", bodies)


def test_kserve_raw_tensors(doors: Doors) -> None:
    here, there, pool = doors
    numbers = np.random.default_rng(0).normal(size=HEAVY_BYTES // 8 + 1)
    for size in (numbers.nbytes, numbers.nbytes - 8):
        head = tensor(
            data=None, shape=[numbers.size], parameters={"binary_data_size": size}
        ).replace(b'"data": null, ', b"")
        headers = {"Inference-Header-Content-Length": str(len(head))}
        body = head + numbers.tobytes()
        one = answer(here, "/v2/models/echo/infer", body, headers)
        assert one == answer(there, "/v2/models/echo/infer", body, headers)
    items = [b"abc"] * 100_000
    raw = b"".join(len(item).to_bytes(4, "little") + item for item in items)
    item: dict[str, Any] = {"name": "t", "datatype": "BYTES", "shape": [len(items)]}
    item["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [item]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    one = answer(here, "/v2/models/texts/infer", head + raw, headers)
    assert one[0] == 200
    assert json.loads(one[1])["outputs"][0]["data"] == ["abc"] * 100_000
    assert one == answer(there, "/v2/models/texts/infer", head + raw, headers)
    assert pool.pids


@pytest.mark.parametrize("value", ["1.5", '"x"', "null"])
def test_long_answers(doors: Doors, value: str) -> None:
    here, there, _ = doors
    config = b'{"length":100000%b}' % (b',"value":' + value.encode() if value != "null" else b"")
    body = b'{"name":"echo","input":[[1]],"config":%b}' % config
    one = answer(here, "/Evaluate", body)
    assert one == answer(there, "/Evaluate", body)
    assert len(one[1]) > HEAVY_BYTES or one[0] != 200
    body = json.dumps({"parameters": {"farm_config": config.decode()}}).encode()[:-1]
    for headers in (None, {"accept-encoding": "gzip"}):
        asked = (body + b"," + tensor()[1:], headers)
        one = answer(here, "/v2/models/echo/infer", *asked)
        assert one == answer(there, "/v2/models/echo/infer", *asked)


@pytest.mark.parametrize("path", ["/Evaluate", "/v2/models/echo/infer", "/graphpipe/echo"])
def test_compressed_bodies(doors: Doors, path: str) -> None:
    here, there, _ = doors
    plain = b'{"name":"echo","input":[[1]]}' if path == "/Evaluate" else tensor()
    bodies = [
        ("gzip", gzip.compress(plain + PADDING)),
        ("deflate", zlib.compress(plain + PADDING)),
        ("gzip", gzip.compress(plain + PADDING)[:-1]),
        ("gzip", gzip.compress(plain + PADDING) + b"tail"),
        ("gzip", PADDING),
        ("br", PADDING),
        ("deflate", zlib.compress(bytes(65 << 20))),
    ]
    for encoding, body in bodies:
        one = answer(here, path, body, {"content-encoding": encoding})
        assert one == answer(there, path, body, {"content-encoding": encoding}), encoding


def test_graphpipe(doors: Doors) -> None:
    here, there, _ = doors
    numbers = np.random.default_rng(0).normal(size=HEAVY_BYTES // 8 + 1)
    infos = {name: there.dispatcher.description(name) for name in MODELS}
    many = np.array([b"abc"] * 50_000, object)
    for name, array in (("echo", numbers), ("texts", many)):
        info = infos[name]
        assert info is not None
        call = farm.Call(name, farm.Operation.EVALUATE, (array,))
        body = b"".join(bytes(part) for part in [encode_call(call, info)])
        one = answer(here, f"/graphpipe/{name}", body)
        assert one[0] == 200
        assert one == answer(there, f"/graphpipe/{name}", body)
        assert one == answer(here, f"/graphpipe/{name}", body)
        for cut in (len(body) // 2, 300_000):
            broken = answer(here, f"/graphpipe/{name}", body[:cut])
            assert broken == answer(there, f"/graphpipe/{name}", body[:cut])


# Other protocols

CALLER = Caller("127.0.0.1", "", {}, None)


@asynccontextmanager
async def both() -> AsyncIterator[tuple[Reads, Readers]]:
    pool = Readers(most=2)
    try:
        yield Reads(), pool
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

AEPSYCH = [
    b'{"type":"info","message":{}}',
    b'{"type":"nothing"}',
    b'{"message":1}',
    b'{"type":"tell","message":{"config":{"x":[1]},"outcome":1}}',
    b'{"type":"info","message":"\xe9"}',
    b'{"type":"info","message":1e999}',
]


async def test_aepsych(tmp_path: Path) -> None:
    async with asked(tmp_path / "journal.db") as served:

        async def answer(request: bytes) -> dict[str, Any]:
            client = await served.connect()
            client.send(request)
            return await client.answer()

        for request in AEPSYCH:
            short, long = await answer(request), await answer(b"{" + PADDING + request[1:])
            # The part that was received is shown.
            if isinstance(short.get("message"), str):
                short["message"] = long["message"] = ""
            assert strip(short) == strip(long)
        few, many = (AEPSYCH[3].replace(b"[1]", b"[0.5" + b",0.5" * n + b"]") for n in (0, 200_000))
        assert (await answer(few))["server_error"] == (await answer(many))["server_error"]


def strip(answer: dict[str, Any]) -> dict[str, Any]:
    """Remove the positions of mistakes, which blanks change."""
    error = str(answer.get("server_error", ""))
    return answer | {"server_error": error.split(" at ")[0].split(": line")[0]}
