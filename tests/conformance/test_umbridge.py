"""UM-Bridge from outside: the stock client and the conformity suite's checks, against `farm serve`
with two worker processes, and other, also malformed, messages.
"""

from __future__ import annotations

import gzip
import http.client
import itertools
import json
import math
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import requests
import umbridge
from hypothesis import given, settings
from hypothesis import strategies as st

import farm
from farm.protocols.umbridge.codec import Endpoint
from tests.support import umbridge_models
from tests.support.dispatcher_farm import serving
from tests.support.front_door import front_door, read_answer
from tests.support.time_limits import scaled
from tests.support.umbridge_models import Smooth

A, B = [0.1, 0.2, 0.3], [4.0, 5.0]
POINT = [A, B]
TIMEOUT_S = scaled(20.0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = [f"{umbridge_models.__file__}:{name}" for name in ("Smooth", "Odd", "Echo")]
    with serving(tmp_path_factory.mktemp("farm"), *models, "--workers", "2") as served:
        yield served.connection.url


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


# The stock client, call by call


@pytest.fixture(scope="module")
def smooth(url: str) -> Any:
    return umbridge.HTTPModel(url, "smooth")


def test_the_models_are_listed(url: str) -> None:
    assert umbridge.supported_models(url) == ["smooth", "odd", "echo"]


def test_an_unknown_name_is_refused_by_the_client(url: str) -> None:
    with pytest.raises(Exception, match="Model nope not supported by server"):
        umbridge.HTTPModel(url, "nope")


def test_sizes_and_support(url: str, smooth: Any) -> None:
    assert (smooth.get_input_sizes(), smooth.get_output_sizes()) == ([3, 2], [2, 1])
    echo = umbridge.HTTPModel(url, "echo")
    assert echo.get_input_sizes({"size": 5}) == [5]
    assert [echo.supports_evaluate(), echo.supports_gradient()] == [True, False]
    assert smooth.supports_gradient()
    assert smooth.supports_apply_jacobian()
    assert smooth.supports_apply_hessian()


@pytest.mark.parametrize("config", [{}, {"scale": 10.0}])
def test_evaluate_gives_what_the_model_gives(smooth: Any, config: dict[str, Any]) -> None:
    assert smooth(POINT, config) == Smooth()(POINT, config)


@pytest.mark.parametrize(("out_wrt", "in_wrt"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_derivatives_give_what_the_model_gives(smooth: Any, out_wrt: int, in_wrt: int) -> None:
    sens, vec = [[1.0, 2.0], [3.0]][out_wrt], [[1.0, 2.0, 3.0], [4.0, 5.0]]
    direct = Smooth()
    assert smooth.gradient(out_wrt, in_wrt, POINT, sens) == direct.gradient(
        out_wrt, in_wrt, POINT, sens, {}
    )
    assert smooth.apply_jacobian(out_wrt, in_wrt, POINT, vec[in_wrt]) == direct.apply_jacobian(
        out_wrt, in_wrt, POINT, vec[in_wrt], {}
    )
    for other in (0, 1):
        asked = (out_wrt, in_wrt, other, POINT, sens, vec[other])
        assert smooth.apply_hessian(*asked) == direct.apply_hessian(*asked, {})


def test_the_client_shows_our_errors(url: str, smooth: Any) -> None:
    odd = umbridge.HTTPModel(url, "odd")
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: smooth([A]), "InvalidInput: model 'smooth' expects 2 input vectors, got 1"),
        (lambda: smooth([A, A]), "InvalidInput: input 1"),
        (lambda: smooth.gradient(0, 2, POINT, [1.0, 1.0]), "InvalidInput: inWrt is 2"),
        (lambda: smooth.gradient(0, 0, POINT, [1.0]), "InvalidInput: sens has length 1"),
        (lambda: odd([[1.0]], {"give": "raise"}), "ModelFailed: RuntimeError: the mesh is empty"),
        (lambda: odd([[1.0]], {"give": "long"}), "InvalidOutput: output 'out0' of model 'odd'"),
        (lambda: odd([[1.0]], {"give": "none"}), "InvalidOutput: output 'out0' of model 'odd'"),
    ]
    for call, expected in calls:
        with pytest.raises(Exception, match="Model returned error of type") as caught:
            call()
        assert expected in str(caught.value)


def test_non_finite_values_arrive_as_the_numbers_they_are(url: str) -> None:
    (values,) = umbridge.HTTPModel(url, "odd")([[1.0]], {"give": "nonfinite"})
    np.testing.assert_array_equal(values, [math.nan, math.inf, -math.inf])


def test_a_client_that_tries_shared_memory_goes_on_without(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = umbridge.HTTPModel(url, "smooth", use_shmem=True)
    assert "Using HTTP instead" in capsys.readouterr().out
    assert model(POINT) == Smooth()(POINT, {})


def test_an_address_with_a_slash_or_a_user_works(url: str) -> None:
    for written in (url + "/", url.replace("http://", "http://ann:secret@")):
        assert umbridge.HTTPModel(written, "smooth")(POINT) == Smooth()(POINT, {})


@pytest.mark.slow
def test_a_million_doubles_go_there_and_back(url: str) -> None:
    echo = umbridge.HTTPModel(url, "echo")
    values = np.random.default_rng(5).normal(size=10**6).tolist()
    assert echo([values], {"size": len(values)}) == [values]


def test_64_clients_at_once_get_their_own_answers(url: str) -> None:
    def client(i: int) -> bool:
        model = umbridge.HTTPModel(url, "odd")
        return all(model([[float(i + k)]]) == [[float(i + k) ** 2]] for k in range(5))

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(client, range(64)))


def test_200_idle_and_half_open_connections_hold_up_nobody(url: str, smooth: Any) -> None:
    begun = (
        b"",
        b"GET /In",
        b"POST /Evaluate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    )
    with ExitStack() as opened:
        for _, start in zip(range(200), itertools.cycle(begun), strict=False):
            connection = socket.create_connection(address(url), timeout=TIMEOUT_S)
            opened.enter_context(connection)
            connection.sendall(start)
        assert smooth(POINT) == Smooth()(POINT, {})
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: smooth(POINT), range(40)))


@farm.model(inputs={"x": 2}, outputs={"y": 1})
def forward(x: Any, config: dict[str, Any]) -> Any:
    return x.sum() + config.get("level", 0)


def test_the_lines_of_the_manual_run(capsys: pytest.CaptureFixture[str]) -> None:
    manual = Path(__file__).parents[2].joinpath("docs", "umbridge.md").read_text()
    (python,) = re.findall(r"```python\n(.*?)```", manual, re.DOTALL)
    lines = re.findall(r"^curl .* -d '(.*)' http://127.0.0.1:4242(\S+)$", manual, re.MULTILINE)
    lines += re.findall(r"^curl -d '(.*)' http://127.0.0.1:4242(\S+)$", manual, re.MULTILINE)
    assert [path for _, path in lines] == ["/farm/models/forward/evaluate", "/Evaluate"]
    with front_door({"forward": forward}) as door:
        exec(python.replace("http://127.0.0.1:4242", door.url), {})
        for body, path in lines:
            assert door.ask("POST", path, body.encode()).status == 200
    assert capsys.readouterr().out == "[2] [1]\n[[3.0]]\n[[4.0]]\n"


# The checks of the official conformity suite, protocol version 1.0


def ask(url: str, path: str, message: Any) -> requests.Response:
    """Send a request like the suite: indented JSON without a content type."""
    body = "" if message is None else json.dumps(message, indent=4)
    return requests.post(url + path, data=body.encode(), timeout=TIMEOUT_S)


def error(response: requests.Response) -> tuple[int, str]:
    data = response.json()
    assert list(data) == ["error"]
    assert set(data["error"]) == {"type", "message"}
    assert all(isinstance(text, str) for text in data["error"].values())
    return response.status_code, data["error"]["type"]


class Suite:
    """Sends the suite's requests to the first model, with every vector constant 0."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = requests.get(url + "/Info", timeout=TIMEOUT_S).json()["models"][0]
        self.inputs = ask(url, "/InputSizes", {"name": self.name}).json()["inputSizes"]
        self.outputs = ask(url, "/OutputSizes", {"name": self.name}).json()["outputSizes"]

    def ask(self, path: str, *, longer: int = 0, **changes: Any) -> requests.Response:
        message = {
            "name": self.name,
            "input": [[0.0] * (n + longer) for n in self.inputs],
            "config": {},
        }
        if path != "/Evaluate":
            message |= {"outWrt": 0, "inWrt": 0, "inWrt1": 0, "inWrt2": 0}
            message |= {"sens": [0.0] * self.outputs[0], "vec": [0.0] * self.inputs[0]}
        return ask(self.url, path, message | changes)


@pytest.fixture(scope="module")
def suite(url: str) -> Suite:
    return Suite(url)


def test_the_root_answers_head(url: str) -> None:
    assert requests.head(url, timeout=TIMEOUT_S).status_code == 200


def test_info_has_its_schema(url: str) -> None:
    response = requests.get(url + "/Info", timeout=TIMEOUT_S)
    assert response.status_code == 200
    data = response.json()
    assert set(data) == {"protocolVersion", "models"}
    assert data["protocolVersion"] == 1.0
    assert isinstance(data["protocolVersion"], float)
    assert all(isinstance(name, str) for name in data["models"])


def test_model_info_has_its_schema(suite: Suite) -> None:
    response = ask(suite.url, "/ModelInfo", {"name": suite.name})
    assert response.status_code == 200
    assert set(response.json()) == {"support"}
    support = response.json()["support"]
    assert set(support) == {"Evaluate", "Gradient", "ApplyJacobian", "ApplyHessian"}
    assert all(isinstance(value, bool) for value in support.values())


@pytest.mark.parametrize("path", [path for path in Endpoint if path != "/Info"])
def test_a_wrong_name_is_not_found_whatever_else_is_missing(url: str, path: str) -> None:
    assert error(ask(url, path, {"name": "no such model"})) == (400, "ModelNotFound")


@pytest.mark.parametrize("key", ["inputSizes", "outputSizes"])
def test_sizes_have_their_schema(suite: Suite, key: str) -> None:
    response = ask(suite.url, "/" + key[0].upper() + key[1:], {"name": suite.name})
    assert response.status_code == 200
    assert list(response.json()) == [key]
    sizes = response.json()[key]
    assert sizes
    assert all(type(n) is int for n in sizes)


def test_evaluate_has_its_schema_and_shape(suite: Suite) -> None:
    response = suite.ask("/Evaluate")
    assert response.status_code == 200
    assert list(response.json()) == ["output"]
    output = response.json()["output"]
    assert [len(vector) for vector in output] == suite.outputs
    assert all(isinstance(y, int | float) for vector in output for y in vector)


@pytest.mark.parametrize("path", ["/Gradient", "/ApplyJacobian", "/ApplyHessian"])
def test_derivatives_have_their_schema_and_length(suite: Suite, path: str) -> None:
    response = suite.ask(path)
    assert response.status_code == 200
    assert list(response.json()) == ["output"]
    output = response.json()["output"]
    assert len(output) == (suite.outputs if path == "/ApplyJacobian" else suite.inputs)[0]
    assert all(isinstance(y, int | float) for y in output)


@pytest.mark.parametrize("path", ["/Evaluate", "/Gradient", "/ApplyJacobian", "/ApplyHessian"])
def test_vectors_that_are_too_long_are_invalid(suite: Suite, path: str) -> None:
    assert error(suite.ask(path, longer=1)) == (400, "InvalidInput")


def test_indices_one_past_the_end_are_invalid(suite: Suite) -> None:
    for change in ({"inWrt": len(suite.inputs)}, {"outWrt": len(suite.outputs)}, {"inWrt": -1}):
        for path in ("/Gradient", "/ApplyJacobian"):
            assert error(suite.ask(path, **change)) == (400, "InvalidInput")
    for key in ("inWrt1", "inWrt2"):
        change = {key: len(suite.inputs)}
        assert error(suite.ask("/ApplyHessian", **change)) == (400, "InvalidInput")


class Unable(farm.Model):
    """A model without operations."""

    inputs, outputs = {"x": 1}, {"y": 1}
    operations = frozenset()


def test_what_the_first_model_cannot_do_is_unsupported() -> None:
    with front_door({"unable": Unable()}) as door:
        for path in ("/Gradient", "/ApplyJacobian", "/ApplyHessian"):
            asked = ask(door.url, path, {"name": "unable"})
            assert error(asked) == (400, "UnsupportedFeature")
        assert error(ask(door.url, "/Evaluate", None)) == (400, "UnsupportedFeature")


# Other messages


def request(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address(url), timeout=TIMEOUT_S)
    connection.request("POST", "/Evaluate", body, headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, data


BODY = json.dumps({"name": "odd", "input": [[3.0]]}).encode()
NINE = (200, b'{"output":[[9.0]]}')


def test_bodies_come_packed_chunked_and_announced(url: str) -> None:
    assert request(url, gzip.compress(BODY), {"Content-Encoding": "gzip"}) == NINE
    pieces = requests.post(url + "/Evaluate", data=iter([BODY[:9], BODY[9:]]), timeout=TIMEOUT_S)
    assert (pieces.status_code, pieces.content) == NINE
    with socket.create_connection(address(url), timeout=TIMEOUT_S) as connection:
        head = (
            b"POST /Evaluate HTTP/1.1\r\nHost: localhost\r\n"
            b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        )
        connection.sendall(head % len(BODY))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_answer(connection) == NINE


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
keys = ["input", "config", "outWrt", "inWrt", "inWrt1", "inWrt2", "sens", "vec"]
names = st.fixed_dictionaries(
    {"name": st.sampled_from(["smooth", "odd", "echo"])}, optional=dict.fromkeys(keys, json_values)
)
bodies = st.binary(max_size=200) | (json_values | names).map(lambda data: json.dumps(data).encode())


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(path=st.sampled_from([*Endpoint, "/farm/status", "/farm/models/odd/evaluate"]), body=bodies)
def test_no_body_brings_the_server_down_or_to_answer_anything_but_json(
    url: str, path: str, body: bytes
) -> None:
    response = requests.post(url + path, data=body, timeout=TIMEOUT_S)
    if response.status_code != 200:
        error(response)
        assert response.headers["content-type"] == "application/json"
    assert response.status_code in (200, 400, 405) or response.json()["error"]["type"] in (
        "ModelFailed",
        "InvalidOutput",
    )


@settings(max_examples=100, deadline=None)
@given(sent=st.binary(max_size=300) | st.binary(max_size=100).map(lambda b: b"POST /Evaluate " + b))
def test_no_bytes_bring_the_server_down(url: str, sent: bytes) -> None:
    with socket.create_connection(address(url), timeout=TIMEOUT_S) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while part := connection.recv(10**5):
                received += part
        except ConnectionResetError:
            received = b""
    if received:
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 ")
        first, _ = json.JSONDecoder().raw_decode(body.decode())
        assert "error" in first or head.startswith(b"HTTP/1.1 200 ")


@pytest.fixture(scope="module", autouse=True)
def alive(url: str) -> Iterator[None]:
    """Check that the farm still answers correctly after all this."""
    yield
    assert umbridge.HTTPModel(url, "smooth")(POINT) == Smooth()(POINT, {})
