"""Shared memory over real HTTP connections: paths, inferences, streams, and who may use it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import farm
from farm.bodies.body import HEAVY_BYTES
from farm.model import Config, Inputs
from farm.protocols.kserve.rest.endpoint import NO_REGIONS
from farm.protocols.kserve.shared_memory.regions import is_offered
from farm.settings import Settings
from tests.support.front_door import WAIT_S, Door, front_door, until
from tests.support.shared_objects import SharedObject, open_of, shared_object
from tests.support.strangers import connect_as_stranger

pytestmark = pytest.mark.skipif(not is_offered(), reason="this system has no /dev/shm")

PATH = "/v2/systemsharedmemory"
LIMIT = 10**6


@farm.model(inputs={"x": -1}, outputs={"y": -1, "total": 1})
def double(x: Any, config: Config) -> Any:
    return [2 * x, [x.sum()]]


class Count(farm.Model):
    inputs = {"n": 1}
    outputs = {"i": 1}

    def stream(self, inputs: Inputs, config: Config) -> Any:
        for i in range(int(inputs["n"][0])):
            yield [i]


class Gate(farm.Model):
    """Stays in evaluate until the test opens it."""

    inputs = {"x": 1}
    outputs = {"y": 1}

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.begun.set()
        assert self.open.wait(WAIT_S)
        return inputs["x"]


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


def test_regions_are_registered_shown_and_unregistered(door: Door) -> None:
    with shared_object(80) as made:
        body = {"key": made.key, "byte_size": 40, "offset": 8, "unknown": [1]}
        answer = door.ask("POST", f"{PATH}/region/a%2Fb/register", body)
        assert (answer.status, answer.data) == (200, b"")
        region = {"name": "a/b", "key": made.key, "offset": 8, "byte_size": 40}
        assert door.ask("GET", f"{PATH}/status").json() == [region]
        assert door.ask("GET", f"{PATH}/region/a/b/status").json() == [region]
        again = door.ask("POST", f"{PATH}/region/a%2Fb/register", body)
        assert again.status == 400
        assert again.json() == {"error": "shared memory region 'a/b' already in manager"}
        assert open_of(made.path) == 1
        assert door.ask("POST", f"{PATH}/region/a%2Fb/unregister").status == 200
        assert open_of(made.path) == 0
    assert door.ask("GET", f"{PATH}/status").json() == []
    missing = door.ask("GET", f"{PATH}/region/a%2Fb/status")
    assert missing.status == 404
    assert missing.json() == {"error": "Unable to find system shared memory region: 'a/b'"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/region/r/register", b"", 400, "has no 'key' field"),
        ("POST", "/region/r/register", {"key": "/k"}, 400, "has no 'byte_size' field"),
        ("POST", "/region/r/register", b"[]", 400, "expected a JSON object"),
        ("POST", "/region/r/register", b"{", 400, "JSON"),
        ("POST", "/region/r/register", b" " * (HEAVY_BYTES + 1), 413, "the limit here"),
        ("POST", "/register", {"key": "/k", "byte_size": 1}, 400, "name of the region is ''"),
        ("POST", "/region/r/register", {"key": "/k", "byte_size": 1}, 400, "no such object"),
        ("POST", "/region/r/register", {"key": "/a/b", "byte_size": 1}, 400, "a key is a slash"),
        ("POST", "/region/r/register", {"key": "/\0", "byte_size": 1}, 400, "a key is a slash"),
        ("POST", "/region/r/register", {"key": ["/k"], "byte_size": 1}, 400, "expected a string"),
        ("GET", "/region/r/register", None, 405, "asked with POST"),
        ("GET", "/unregister", None, 405, "asked with POST"),
        ("POST", "/status", b"", 405, "asked with GET"),
        ("GET", "/region/status", None, 404, "nothing is at"),
        ("GET", "/elsewhere/r/status", None, 404, "nothing is at"),
        ("GET", "", None, 404, "nothing is at"),
    ],
)
def test_paths_and_bodies_that_are_wrong(
    door: Door, method: str, path: str, body: Any, status: int, text: str
) -> None:
    answer = door.ask(method, PATH + path, body)
    assert answer.status == status
    assert text in answer.json()["error"]


def test_cuda_is_refused_by_name(door: Door) -> None:
    path = "/v2/cudasharedmemory"
    assert door.ask("GET", f"{path}/status").data == NO_REGIONS
    assert door.ask("POST", f"{path}/unregister").status == 200  # clients begin with this
    answer = door.ask("POST", f"{path}/region/r/register", {"raw_handle": {"b64": ""}})
    assert answer.status == 501
    assert "CUDA shared memory is not offered here" in answer.json()["error"]


@pytest.mark.parametrize("count", [3, HEAVY_BYTES // 8 + 1])
def test_tensors_travel_through_a_region(door: Door, made: SharedObject, count: int) -> None:
    size = 8 * count
    values = np.arange(float(count))
    made.write(values.tobytes())
    outputs = [{"name": "y", **place(size, size)}, {"name": "total"}]
    body = {"id": "7", "inputs": [x_at(size)], "outputs": outputs}
    status, answer = infer(door, body)
    assert status == 200, answer
    assert answer["id"] == "7"
    y, total = answer["outputs"]
    assert y == {"name": "y", "datatype": "FP64", "shape": [count]}
    assert total["data"] == [values.sum()]
    assert np.array_equal(np.frombuffer(made.read()[size : 2 * size]), 2 * values)


def test_one_row_of_a_batch_keeps_its_axis(door: Door, made: SharedObject) -> None:
    made.write(np.array([1.0, 2.0]).tobytes())
    x = x_at(16) | {"shape": [1, 2]}
    status, answer = infer(door, {"inputs": [x], "outputs": [{"name": "y", **place(16)}]})
    assert (status, answer["outputs"][0]["shape"]) == (200, [1, 2])
    assert np.frombuffer(made.read()[:16]).tolist() == [2, 4]


def test_raw_tensors_beside_those_in_a_region(door: Door, made: SharedObject) -> None:
    made.write(np.array([1.0, 2.0]).tobytes())
    outputs = [
        {"name": "total", "parameters": {"binary_data": True}},
        {"name": "y", **place(16, 16)},
    ]
    body = {"inputs": [x_at(16)], "outputs": outputs}
    answer = door.ask("POST", "/v2/models/double/infer", body)
    end = int(answer.headers["inference-header-content-length"])
    assert [o.get("parameters") for o in json.loads(answer.data[:end])["outputs"]] == [
        {"binary_data_size": 8},
        None,
    ]
    assert np.frombuffer(answer.data[end:]).tolist() == [3]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"inputs": [x_at(16, region="q")]}, 404, "Unable to find shared memory region: 'q'"),
        ({"inputs": [x_at(16, 2**62)]}, 400, "Invalid offset for shared memory region: 'r'"),
        ({"inputs": [x_at(16, -8)]}, 400, "shared_memory_offset of input 'x' is -8"),
        ({"inputs": [x_at(16, 2**63)]}, 400, "expected a whole number from 0 to 2^63-1"),
        ({"inputs": [x_at(16) | {"shape": [3]}]}, 400, "input 'x' has 16 bytes; expected 24"),
        ({"inputs": [x_at(16) | {"shape": [10**12, 4]}]}, 400, "input 'x' has 16 bytes"),
        ({"inputs": [x_at(16) | {"datatype": "FP65"}]}, 400, "datatype of input 'x'"),
        ({"inputs": [x_at(16) | {"data": [1, 2]}]}, 400, "both shared_memory_region and data"),
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


def test_an_object_that_is_cut_while_the_model_runs(door: Door, made: SharedObject) -> None:
    GATE.begun.clear()
    GATE.open.clear()
    got: list[Any] = []
    body = {"inputs": [x_at(8)], "outputs": [{"name": "y", **place(8, 8)}]}
    asking = threading.Thread(target=lambda: got.append(infer(door, body, "gate")))
    asking.start()
    assert GATE.begun.wait(WAIT_S)
    made.cut(8)
    GATE.open.set()
    asking.join()
    ((status, answer),) = got
    assert status == 400
    assert "shared memory region 'r' was cut" in answer["error"]
    status, answer = infer(door, {"inputs": [x_at(8, 8)]})
    assert (status, "was cut" in answer["error"]) == (400, True)
    assert infer(door, {"inputs": [x_at(8)]})[0] == 200


def test_a_region_that_is_unregistered_while_the_model_runs(door: Door, made: SharedObject) -> None:
    GATE.begun.clear()
    GATE.open.clear()
    made.write(np.array([5.0]).tobytes())
    got: list[Any] = []
    body = {"inputs": [x_at(8)], "outputs": [{"name": "y", **place(8, 8)}]}
    asking = threading.Thread(target=lambda: got.append(infer(door, body, "gate")))
    asking.start()
    assert GATE.begun.wait(WAIT_S)
    assert door.ask("POST", f"{PATH}/unregister").status == 200
    assert door.ask("GET", f"{PATH}/status").json() == []
    assert open_of(made.path) == 1
    GATE.open.set()
    asking.join()
    assert got[0][0] == 200
    assert np.frombuffer(made.read()[8:16]).tolist() == [5]
    until(lambda: open_of(made.path) == 0, "the descriptor is closed")
    assert infer(door, {"inputs": [x_at(8)]})[0] == 404


def test_a_client_that_leaves_frees_its_region(door: Door, made: SharedObject) -> None:
    GATE.begun.clear()
    GATE.open.clear()
    body = json.dumps({"inputs": [x_at(8)]}).encode()
    head = f"POST /v2/models/gate/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    head = head.replace("Host: a", "Host: localhost")
    with door.connect() as connection:
        connection.sendall(head.encode() + body)
        assert GATE.begun.wait(WAIT_S)
        assert door.ask("POST", f"{PATH}/unregister").status == 200
    GATE.open.set()
    until(lambda: open_of(made.path) == 0, "the descriptor is closed")


def test_answers_of_a_stream_go_into_a_region_one_by_one(door: Door, made: SharedObject) -> None:
    made.write(np.array([3.0]).tobytes())
    x = x_at(8) | {"name": "n"}
    body = {"inputs": [x], "outputs": [{"name": "i", **place(8, 8)}]}
    answer = door.ask("POST", "/v2/models/count/infer_stream", body)
    assert answer.status == 200
    events = [json.loads(line[6:]) for line in answer.data.split(b"\n\n") if line]
    assert [event["outputs"] for event in events] == [
        [{"name": "i", "datatype": "FP64", "shape": [1]}]
    ] * 3
    assert np.frombuffer(made.read()[8:16]).tolist() == [2]
    small = {"inputs": [x], "outputs": [{"name": "i", **place(7, 8)}]}
    answer = door.ask("POST", "/v2/models/count/infer_stream", small)
    assert answer.status == 400
    assert "should be at least 8 bytes" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "10.0.0.9"},
        {"Forwarded": "for=10.0.0.9"},
        {"Host": "farm.example.org"},
    ],
)
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
        ("POST", "/v2/models/count/infer_stream", {"inputs": [x_at(8) | {"name": "n"}]}),
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
