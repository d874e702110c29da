"""Malformed requests to `farm serve`: it answers them and keeps running."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import urllib3
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.dispatcher_farm import Served, farm_of
from tests.support.front_door import read_answer
from tests.support.time_limits import scaled

MODEL = """
import farm

@farm.model(inputs={"x": 4}, outputs={"y": 4}, max_batch=32)
def twice(x):
    return 2 * x
"""
served = farm_of(MODEL)
WAIT_S = scaled(20.0)
FEW_BYTES = 64 << 20
"""Most memory growth of a process after hundreds of requests of up to 100 kB."""


@pytest.fixture(scope="module")
def connections() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager(maxsize=32) as pool:
        yield pool


ROW_BYTES = 32
"""Bytes of a row of the model `twice`: four numbers."""


def post(
    served: Served,
    connections: urllib3.PoolManager,
    body: bytes,
    length: object = None,
    path: str = "v2/models/twice/infer",
) -> tuple[int, Any]:
    """Return status and JSON of the answer to an inference request."""
    headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
    url = f"{served.connection.url}/{path}"
    response = connections.request("POST", url, body=body, headers=headers, timeout=WAIT_S)
    return response.status, json.loads(response.data)


def good(served: Served, connections: urllib3.PoolManager, number: float = 1.5) -> None:
    """Check that a correct request gets its own numbers."""
    body = x(data=[number] * 4, shape=[1, 4])
    status, told = post(served, connections, body)
    assert (status, told["outputs"][0]["data"]) == (200, [2 * number] * 4)


def x(**changes: Any) -> bytes:
    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP64", "data": [1.0] * 8} | changes
    return json.dumps({"inputs": [tensor]}).encode()


def raw(size: Any, **changes: Any) -> tuple[bytes, int]:
    """Return a request with 64 bytes after its JSON, and the length of the JSON."""
    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP64"} | changes
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": size}}]}).encode()
    return head + bytes(64), len(head)


DEEP = b"[" * 50_000 + b"]" * 50_000
HOSTILE: list[tuple[bytes, object]] = [
    (x(shape=[10**12, 4]), None),
    (x(shape=[2**62, 2**62]), None),
    (x(shape=[2**63 - 1, 0]), None),
    (x(shape=[10**12, 4], datatype="BYTES", data=["a"] * 8), None),
    (x(data=[1e308] * 7 + [10**400]), None),
    (x().replace(b"1.0", b"1e400"), None),
    (x().replace(b"1.0", b"null"), None),
    (x(data=[[True] * 4] * 2), None),
    (DEEP, None),
    (b'{"inputs":' + DEEP + b"}", None),
    (x().replace(b"[1.0", DEEP + b"[NaN"), None),
    (x(name="\ud800"), None),
    (b"\xff" * 100, None),
    (b"{" * 10_000, None),
    raw(64, shape=[10**12, 4]),
    raw(64, shape=[1, 10**6], datatype="BYTES"),
    raw(63),
    raw(32, shape=[1, 4]),
    raw(2**70),
    raw(-64),
    (raw(64)[0], 10**18),
    (raw(64)[0], -1),
    (raw(64)[0], "1e3"),
    (raw(64)[0], 5),
]


HOSTILE_V1 = [
    b'{"instances": %b}' % DEEP,
    b'{"instances": %b1%b}' % (b"[" * 1000, b"]" * 1000),
    b'{"inputs": {"x": %b}}' % (b"[" * 500 + b"]" * 500),
    b'{"instances": [[1, 2, 3, %d]]}' % 10**400,
    b'{"instances": [%b]}' % b",".join([b"{}"] * 20_000),
    b'{"instances": [%b[]]}' % (b"[1,2,3,4]," * 10_000),
    b'{"instances": [[1, 2, 3, 4]], "signature_name": %b}' % (b"[" * 500 + b"]" * 500),
    b'{"instances": [[1, 2, 3, 4]], "parameters": {"content_type": "\\ud800"}}',
    b"\xff" * 100,
]


def test_hostile_requests_are_refused_and_cost_nothing(
    served: Served, connections: urllib3.PoolManager
) -> None:
    process = psutil.Process(served.process.pid)
    good(served, connections)
    before = process.memory_info().rss
    hostile = [(body, length, "v2/models/twice/infer") for body, length in HOSTILE]
    hostile += [(body, None, "v1/models/twice:predict") for body in HOSTILE_V1]
    for _ in range(5):
        for body, length, path in hostile:
            status, told = post(served, connections, body, length, path)
            assert status == 400, (body[:200], length)
            assert list(told) == ["error"]
            assert len(told["error"]) < 1000
        good(served, connections)
    assert process.memory_info().rss - before < FEW_BYTES


@settings(max_examples=50)
@given(st.binary(max_size=200), st.none() | st.integers(-1, 250))
def test_any_bytes_are_answered_with_an_error(
    served: Served, connections: urllib3.PoolManager, body: bytes, length: int | None
) -> None:
    assume(length != 0 or not body or len(body) % ROW_BYTES)  # raw rows are no mistake
    status, told = post(served, connections, body, length)
    assert (status, list(told)) == (400, ["error"])


@settings(max_examples=30)
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40))
def test_any_path_is_answered_in_the_same_form(
    served: Served, connections: urllib3.PoolManager, path: str
) -> None:
    address = served.connection.url.removeprefix("http://")
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(f"GET /v2/{path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        status, body = read_answer(connection)
    assert status in (200, 400, 404, 405, 501)
    if status != 200:
        assert isinstance(json.loads(body)["error"], str)
