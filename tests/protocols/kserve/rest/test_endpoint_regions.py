"""Shared memory over real HTTP connections: paths, inferences, streams, and who may use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import farm
from farm.bodies.body import HEAVY_BYTES
from farm.model import Config
from farm.protocols.kserve.shared_memory.regions import is_offered
from farm.settings import Settings
from tests.protocols.models import Count, Gate, posted
from tests.support.front_door import Door, front_door, until
from tests.support.shared_objects import SharedObject, open_of, shared_object
from tests.support.strangers import connect_as_stranger

pytestmark = pytest.mark.skipif(not is_offered(), reason="this system has no /dev/shm")

PATH = "/v2/systemsharedmemory"
LIMIT = 10**6


@farm.model(inputs={"x": -1}, outputs={"y": -1, "total": 1})
def double(x: Any, config: Config) -> Any:
    return [2 * x, [x.sum()]]


GATE = Gate()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    models = {"double": double, "count": Count(), "gate": GATE}
    settings = Settings(port=0, max_body_bytes=LIMIT)
    with front_door(models, token="t0ken", settings=settings) as made:
        yield made


@pytest.fixture
def made(door: Door) -> Iterator[SharedObject]:
    with shared_object(4 * HEAVY_BYTES) as made:
        register(door, "r", made, 4 * HEAVY_BYTES)
        yield made
        assert door.ask("POST", f"{PATH}/unregister").status == 200


def register(door: Door, name: str, made: SharedObject, size: int) -> None:
    body = {"key": made.key, "offset": 0, "byte_size": size}
    answer = door.ask("POST", f"{PATH}/region/{name}/register", body)
    assert (answer.status, answer.data) == (200, b"")


def place(size: int, offset: int = 0, region: str = "r") -> dict[str, Any]:
    named = {"shared_memory_region": region, "shared_memory_byte_size": size}
    return {"parameters": named | ({"shared_memory_offset": offset} if offset else {})}


def x_at(size: int, offset: int = 0, region: str = "r") -> dict[str, Any]:
    return {"name": "x", "datatype": "FP64", "shape": [size // 8], **place(size, offset, region)}


def infer(door: Door, body: dict[str, Any], model: str = "double", **headers: str) -> Any:
    answer = door.ask("POST", f"/v2/models/{model}/infer", body, headers)
    return answer.status, answer.json()


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/region/r/register", b"", 400, "has no 'key' field"),
        ("/region/r/register", {"key": "/k"}, 400, "has no 'byte_size' field"),
        ("/region/r/register", b"[]", 400, "expected a JSON object"),
        ("/region/r/register", b" " * (HEAVY_BYTES + 1), 413, "the limit here"),
        ("/register", {"key": "/k", "byte_size": 1}, 400, "name of the region is ''"),
        ("/region/r/register", {"key": "/k", "byte_size": 1}, 400, "no such object"),
        ("/region/r/register", {"key": ["/k"], "byte_size": 1}, 400, "expected a string"),
    ],
)
def test_bodies_that_are_wrong(door: Door, path: str, body: Any, status: int, text: str) -> None:
    answer = door.ask("POST", PATH + path, body)
    assert (answer.status, text in answer.json()["error"]) == (status, True)


def test_cuda_is_refused_by_name(door: Door) -> None:
    path = "/v2/cudasharedmemory"
    assert door.ask("GET", f"{path}/status").data == b"[]"
    assert door.ask("POST", f"{path}/unregister").status == 200  # clients begin with this
    answer = door.ask("POST", f"{path}/region/r/register", {"raw_handle": {"b64": ""}})
    assert (answer.status, "not offered here" in answer.json()["error"]) == (501, True)


def test_raw_tensors_beside_those_in_a_region(door: Door, made: SharedObject) -> None:
    made.write(np.array([1.0, 2.0]).tobytes())
    raw = {"name": "total", "parameters": {"binary_data": True}}
    body = {"inputs": [x_at(16)], "outputs": [raw, {"name": "y", **place(16, 16)}]}
    answer = door.ask("POST", "/v2/models/double/infer", body)
    end = int(answer.headers["inference-header-content-length"])
    told = [o.get("parameters") for o in json.loads(answer.data[:end])["outputs"]]
    assert told == [{"binary_data_size": 8}, None]
    assert np.frombuffer(answer.data[end:]).tolist() == [3]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"inputs": [x_at(16, region="q")]}, 404, "Unable to find shared memory region: 'q'"),
        ({"inputs": [x_at(LIMIT // 8 * 8 + 8)]}, 400, f"{LIMIT} is the limit here"),
        (
            {"inputs": [x_at(16)], "outputs": [{"name": "y", **place(8)}]},
            400,
            "shared memory size specified with the request for output 'y' (8 bytes) should be at "
            "least 16 bytes to hold the results",
        ),
    ],
)
def test_requests_that_are_wrong_fail_alone(
    door: Door, made: SharedObject, body: dict[str, Any], status: int, text: str
) -> None:
    got, answer = infer(door, body)
    assert (got, text in answer["error"]) == (status, True), answer
    assert infer(door, {"inputs": [x_at(16)]})[0] == 200


def test_a_client_that_leaves_frees_its_region(door: Door, made: SharedObject) -> None:
    body = json.dumps({"inputs": [x_at(8)]}).encode()
    with posted(door, "/v2/models/gate/infer", body):
        until(lambda: GATE.calls == 1, "it runs")
        assert door.ask("POST", f"{PATH}/unregister").status == 200
    until(lambda: open_of(made.path) == 0, "the descriptor is closed")
    GATE.open.set()


def test_answers_of_a_stream_go_into_a_region_one_by_one(door: Door, made: SharedObject) -> None:
    made.write(np.array([3.0]).tobytes())
    body = {"inputs": [x_at(8)], "outputs": [{"name": "i", **place(8, 8)}]}
    answer = door.ask("POST", "/v2/models/count/infer_stream", body)
    assert answer.status == 200
    events = [json.loads(line[6:]) for line in answer.data.split(b"\n\n") if line]
    assert [event["outputs"] for event in events] == [
        [{"name": "i", "datatype": "FP64", "shape": [1]}]
    ] * 3
    assert np.frombuffer(made.read()[8:16]).tolist() == [2]
    small = {"inputs": [x_at(8)], "outputs": [{"name": "i", **place(7, 8)}]}
    answer = door.ask("POST", "/v2/models/count/infer_stream", small)
    assert answer.status == 400
    assert "should be at least 8 bytes" in answer.json()["error"]


@pytest.mark.parametrize("headers", [{"X-Forwarded-For": "10.0.0.9"}, {"Host": "farm.example.org"}])
def test_clients_behind_a_proxy_get_nothing_even_with_the_token(
    door: Door, made: SharedObject, headers: dict[str, str]
) -> None:
    headers = headers | {"Authorization": "Bearer t0ken"}
    register_body = {"key": made.key, "byte_size": 8}
    for method, path, body in (
        ("GET", f"{PATH}/status", None),
        ("POST", f"{PATH}/region/q/register", register_body),
        ("POST", f"{PATH}/unregister", b""),
        ("POST", "/v2/models/double/infer", {"inputs": [x_at(8)]}),
        ("POST", "/v2/models/count/infer_stream", {"inputs": [x_at(8)]}),
    ):
        answer = door.ask(method, path, body, headers)
        assert answer.status == 403, path
        assert "shared memory is for programs of the user" in answer.json()["error"]
    assert [region["name"] for region in door.ask("GET", f"{PATH}/status").json()] == ["r"]
    plain = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1]}]}
    assert infer(door, plain, **headers)[0] == 200


@pytest.mark.root
def test_another_user_of_this_machine_gets_nothing_even_with_the_token(
    door: Door, made: SharedObject
) -> None:
    body = json.dumps({"inputs": [x_at(8)]}).encode()
    for line in ("GET /v2/systemsharedmemory/status", "POST /v2/models/double/infer"):
        head = f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t0ken\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        with connect_as_stranger(*door.address) as other:
            other.send(head.encode() + body)
            answer = other.read()
        assert answer.startswith(b"HTTP/1.1 403"), answer
        assert b"programs of the user who runs this farm" in answer
