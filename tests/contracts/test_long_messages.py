"""Long requests and answers are identical, byte for byte, in this and in reader processes.

Each request is sent short, long in this process, and long with reader processes. Blanks, which JSON
allows after a value, make a request long.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import farm
from farm.bodies.body import HEAVY_BYTES
from farm.bodies.readers import Readers, ReadsHere
from farm.model import Config
from farm.protocols.umbridge.codec import OPERATIONS
from farm.settings import Settings
from tests.support.front_door import Door, front_door

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


@pytest.fixture(scope="module")
def doors() -> Iterator[tuple[Door, Door, Readers]]:
    """Run a front door that reads in this process, and one with reader processes."""
    pool = Readers(most=2)
    settings = Settings(port=0, max_body_bytes=64 << 20)
    with (
        front_door(MODELS, settings=settings, readers=ReadsHere()) as here,
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
def test_umbridge(doors: tuple[Door, Door, Readers], path: str) -> None:
    here, there, _ = doors
    for body in UMBRIDGE:
        short = answer(here, path, body)
        assert short == answer(there, path, body)
        assert short == answer(here, path, body + PADDING), body
        assert short == answer(there, path, body + PADDING), body


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
def test_kserve(doors: tuple[Door, Door, Readers], path: str) -> None:
    here, there, _ = doors
    for body in [*KSERVE, b'{"x":[1,2]}', b'{"x":1,"id":5}']:
        short = answer(here, path, body)
        assert short == answer(there, path, body)
        assert short == answer(here, path, body + PADDING), body
        assert short == answer(there, path, body + PADDING), body


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


def lines(door: Door, name: str, body: bytes) -> tuple[int, list[Any]]:
    """Return status and sorted lines of an answer, without times and positions."""
    status, data = answer(door, f"/farm/models/{name}/evaluate", body)
    read = [json.loads(line) for line in data.splitlines()]
    for line in read:
        for key in ("run_time_s", "queue_time_s", "worker"):
            line.pop(key, None)
    return status, sorted(read, key=lambda line: line.get("index", 0))


@pytest.mark.parametrize("name", ["echo", "nobody"])
def test_points(doors: tuple[Door, Door, Readers], name: str) -> None:
    here, there, _ = doors
    for body in FARM:
        short = lines(here, name, body)
        assert short == lines(there, name, body)
        assert short == lines(here, name, body + PADDING), body
        assert short == lines(there, name, body + PADDING), body


@pytest.mark.parametrize("end", ["infer_stream", "generate_stream"])
def test_events(doors: tuple[Door, Door, Readers], end: str) -> None:
    here, there, _ = doors
    path = f"/v2/models/echo/{end}"
    for body in [*KSERVE, b'{"x":[1,2]}', b'{"x":1,"farm_config":"{\\"length\\":50000}"}']:
        short = answer(here, path, body)
        assert short == answer(there, path, body)
        assert short == answer(here, path, body + PADDING), body
        assert short == answer(there, path, body + PADDING), body


def test_kserve_raw_tensors(doors: tuple[Door, Door, Readers]) -> None:
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
def test_long_answers(doors: tuple[Door, Door, Readers], value: str) -> None:
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
def test_compressed_bodies(doors: tuple[Door, Door, Readers], path: str) -> None:
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


def test_graphpipe(doors: tuple[Door, Door, Readers]) -> None:
    from farm.protocols.graphpipe.client import encode_call

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
