"""Models of umbridge objects and servers: the official server, and quirks of others."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import urllib3

from farm.call import Array, Call, Derivative, Operation, Result
from farm.client import connect
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    Unavailable,
)
from farm.model import Inputs, Model, info_of
from farm.protocols.umbridge.remote import adapt_object, models_at
from farm.worker.runner import Runner
from tests.support.umbridge_models import RETURNED, Odd, Returns, Smooth, official_server

A, B = np.array([0.1, 0.2, 0.3]), np.array([4.0, 5.0])
SENS, VEC = np.array([1.0, 2.0]), np.array([0.5, -1.0])
EVERY = frozenset({"evaluate", "gradient", "apply_jacobian", "apply_hessian"})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with official_server(tmp_path_factory.mktemp("official") / "log") as address:
        yield address


@pytest.fixture(scope="module", params=["object", "server"])
def models(request: pytest.FixtureRequest, url: str) -> dict[str, Model]:
    """Return the same two models, as Python objects and from the official server."""
    if request.param == "object":
        return {model.name: model for model in map(adapt_object, (Smooth(), Odd()))}
    return models_at(url)


def outcome(models: dict[str, Model], call: Call) -> Result | FarmError:
    return Runner(models).execute([call])[0]


def outputs(models: dict[str, Model], call: Call) -> tuple[Array, ...]:
    result = outcome(models, call)
    assert isinstance(result, Result), result
    return result.outputs


def test_a_model_says_what_the_original_says(models: dict[str, Model]) -> None:
    smooth, odd = (info_of(models[name], {}) for name in ("smooth", "odd"))
    assert [(t.name, t.shape, t.dtype) for t in smooth.inputs] == [
        ("in0", (3,), "float64"),
        ("in1", (2,), "float64"),
    ]
    assert [(t.name, t.shape) for t in smooth.outputs] == [("out0", (2,)), ("out1", (1,))]
    assert smooth.operations == EVERY
    assert odd.operations == {Operation.EVALUATE}


def test_sizes_follow_the_config(models: dict[str, Model]) -> None:
    assert info_of(models["odd"], {"size": 7}).inputs[0].shape == (7,)


def test_evaluate_gives_the_value(models: dict[str, Model]) -> None:
    y, z = outputs(models, Call("smooth", Operation.EVALUATE, (A, B)))
    np.testing.assert_allclose(y, [0.1 * 4 + 0.2**2, 0.3 * 5])
    np.testing.assert_allclose(z, [0.6 * 9])


def test_the_config_reaches_the_model(models: dict[str, Model]) -> None:
    y, _ = outputs(models, Call("smooth", Operation.EVALUATE, (A, B), '{"scale":10}'))
    np.testing.assert_allclose(y[1], 10 * 0.3 * 5)


def derivative(models: dict[str, Model], operation: str, wrt: Derivative) -> Array:
    return outputs(models, Call("smooth", Operation(operation), (A, B), derivative=wrt))[0]


def test_derivatives_give_their_values(models: dict[str, Model]) -> None:
    # y = [a0 b0 + a1^2, a2 b1], so dy/da and dy/db are known by hand.
    by_a = np.array([[4.0, 0.4, 0.0], [0.0, 0.0, 5.0]])
    by_b = np.array([[0.1, 0.0], [0.0, 0.3]])
    for in_wrt, by in ((0, by_a), (1, by_b)):
        gradient = derivative(models, "gradient", Derivative(0, in_wrt, sens=SENS))
        np.testing.assert_allclose(gradient, by.T @ SENS, atol=1e-12)
    jacobian = derivative(models, "apply_jacobian", Derivative(0, 1, vec=VEC))
    np.testing.assert_allclose(jacobian, by_b @ VEC, atol=1e-12)
    # The gradient by a is [s0 b0, 2 s0 a1, s1 b1]; along vec in b it changes by [s0 v0, 0, s1 v1].
    hessian = derivative(models, "apply_hessian", Derivative(0, 0, 1, SENS, VEC))
    np.testing.assert_allclose(hessian, [SENS[0] * VEC[0], 0, SENS[1] * VEC[1]], atol=1e-12)


def odd(give: str) -> Call:
    return Call("odd", Operation.EVALUATE, (np.array([3.0]),), json.dumps({"give": give}))


def test_non_finite_values_arrive(models: dict[str, Model]) -> None:
    np.testing.assert_array_equal(
        outputs(models, odd("nonfinite"))[0], [math.nan, math.inf, -math.inf]
    )


def test_numpy_scalars_arrive(models: dict[str, Model]) -> None:
    np.testing.assert_array_equal(outputs(models, odd("numpy"))[0], [3.0])


def test_a_model_that_raises_has_failed(models: dict[str, Model]) -> None:
    assert isinstance(outcome(models, odd("raise")), ModelFailed)


@pytest.mark.parametrize("give", ["none", "long"])
def test_an_answer_that_does_not_fit_is_an_invalid_output(
    models: dict[str, Model], give: str
) -> None:
    assert isinstance(outcome(models, odd(give)), InvalidOutput)


def test_one_model_of_a_server_is_had_by_name(url: str) -> None:
    assert list(models_at(url)) == ["smooth", "odd"]
    assert list(models_at(url + "/", "odd")) == ["odd"]
    with pytest.raises(ModelNotFound, match="no model 'even'; its models are: 'smooth', 'odd'"):
        models_at(url, "even")


def test_threads_share_a_server(url: str) -> None:
    model = models_at(url, "odd")
    calls = [Call("odd", Operation.EVALUATE, (np.array([float(i)]),)) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda call: outputs(model, call)[0][0], calls))
    assert answers == [float(i) ** 2 for i in range(40)]


@pytest.mark.parametrize("thing", [object(), 3, print])
def test_other_objects_are_refused(thing: object) -> None:
    with pytest.raises(TypeError, match="expected an umbridge"):
        adapt_object(thing)


@dataclass
class Script:
    """Answers of a simulated server by path, and the requests it received."""

    answers: dict[str, tuple[int, Mapping[str, str], bytes]]
    url: str = ""
    heads: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: set[tuple[str, int]] = field(default_factory=set)

    def model(self) -> dict[str, Model]:
        return models_at(self.url)


@contextmanager
def serving(answers: Mapping[str, tuple[int, Mapping[str, str], bytes]]) -> Iterator[Script]:
    usual: dict[str, tuple[int, Mapping[str, str], bytes]] = {
        "/Info": (200, {}, b'{"protocolVersion":1.0,"models":["m"]}'),
        "/ModelInfo": (200, {}, b'{"support":{"Evaluate":true,"Gradient":true}}'),
        "/InputSizes": (200, {}, b'{"inputSizes":[1]}'),
        "/OutputSizes": (200, {}, b'{"outputSizes":[1]}'),
        "/Evaluate": (200, {}, b'{"output":[[4.0]]}'),
    }
    script = Script(usual | dict(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            script.heads.append({k.lower(): v for k, v in self.headers.items()})
            script.connections.add(self.client_address)
            script.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            status, headers, body = script.answers[self.path]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            script.url = f"http://127.0.0.1:{server.server_port}"
            yield script
        finally:
            server.shutdown()
            thread.join()


EVALUATE = Call("m", Operation.EVALUATE, (np.array([2.0]),))


def test_each_call_has_its_own_connection_and_says_that_it_will_be_closed() -> None:
    with serving({}) as server:
        model = server.model()
        for _ in range(3):
            assert outputs(model, EVALUATE)[0].tolist() == [4.0]
    assert len(server.connections) == len(server.heads)
    assert {head["connection"] for head in server.heads} == {"close"}


def test_a_cpp_model_that_throws_has_failed_with_its_text() -> None:
    with serving({"/Evaluate": (500, {"EXCEPTION_WHAT": "no convergence"}, b"")}) as server:
        failed = outcome(server.model(), EVALUATE)
    assert isinstance(failed, ModelFailed)
    assert failed.message == "no convergence"


def test_null_of_a_cpp_model_is_no_number() -> None:
    with serving({"/Evaluate": (200, {}, b'{"output":[[null]]}')}) as server:
        assert math.isnan(outputs(server.model(), EVALUATE)[0][0])


def test_the_wrong_check_of_old_python_servers_is_told() -> None:
    message = "Output vector has invalid length! Model declared 2 but returned 3."
    body = json.dumps({"error": {"type": "InvalidOutput", "message": message}}).encode()
    with serving({"/Evaluate": (500, {}, body)}) as server:
        failed = outcome(server.model(), EVALUATE)
    assert isinstance(failed, InvalidOutput)
    assert failed.message == message


def test_an_operation_that_the_server_does_not_name_is_not_offered() -> None:
    with serving({}) as server:
        assert info_of(server.model()["m"], {}).operations == {"evaluate", "gradient"}


def test_credentials_and_a_path_before_the_protocols_own_are_used() -> None:
    paths = ("/Info", "/ModelInfo")
    with serving({}) as server:
        server.answers |= {f"/lab/models{path}": server.answers[path] for path in paths}
        address = server.url.replace("http://", "http://ann:s%40cret@") + "/lab/models/"
        model = models_at(address)["m"]
    expected = "Basic " + base64.b64encode(b"ann:s@cret").decode()
    assert {head["authorization"] for head in server.heads} == {expected}
    assert "cret" not in model.description


def test_wrong_credentials_are_named() -> None:
    with (
        serving({"/Info": (401, {}, b"")}) as server,
        pytest.raises(Unavailable, match="user:pass"),
    ):
        server.model()


def test_another_kind_of_server_is_told_apart() -> None:
    with (
        serving({"/Info": (200, {}, b'{"detail":"hello"}')}) as server,
        pytest.raises(InvalidRequest, match="speaks UM-Bridge None"),
    ):
        server.model()
    with (
        serving({"/Info": (302, {"Location": "https://example.org/"}, b"")}) as server,
        pytest.raises(Unavailable, match="status 302"),
    ):
        server.model()


def test_a_server_that_hangs_up_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def hang_up() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10**6)

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port} does not answer"):
            models_at(f"http://127.0.0.1:{port}")
        thread.join()


def test_a_port_where_nobody_listens_is_unavailable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(Unavailable, match="does not answer"):
        models_at(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("url", ["ftp://host", "host:4242", "http://", "http:///Info"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Unavailable, match="expected http://host:port"):
        models_at(url)


def test_a_server_that_takes_a_wrong_length_is_not_asked() -> None:
    with serving({}) as server:
        model = server.model()
        asked = len(server.bodies)
        refused = outcome(model, Call("m", Operation.EVALUATE, (np.array([1.0, 2.0]),)))
        assert isinstance(refused, InvalidInput)
        assert len(server.bodies) == asked + 2  # its sizes, and no evaluation


@pytest.fixture(scope="module")
def returning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("returning") / "log"
    with official_server(log, returns=True) as address:
        yield address


def _official(url: str, path: str, body: dict[str, Any]) -> Any:
    """Return the output of the official server, or the type of its error."""
    answer = urllib3.request("POST", f"{url}/{path}", json={"name": "returns", **body})
    text = answer.data.decode()
    if answer.status == 200:
        names = {"nan": math.nan, "inf": math.inf, "np": np}
        return eval(text.split(":", 1)[1].rsplit("}", 1)[0], names)
    return json.loads(text)["error"]["type"] if text.startswith("{") else text


def _are_numbers(vectors: list[Any]) -> bool:
    entries = [entry for vector in vectors for entry in vector]
    return {*map(type, entries)} <= {int, float} and not any(
        x > 1e308 for x in entries if x != math.inf
    )


@pytest.mark.parametrize("operation", ["Evaluate", "Gradient"])
@pytest.mark.parametrize("expression", RETURNED)
def test_what_an_object_returns_is_checked_as_by_the_official_server(
    returning: str, expression: str, operation: str
) -> None:
    """The one difference is that farm refuses vectors of anything but numbers."""
    wrt = Derivative(0, 0, sens=np.ones(1)) if operation == "Gradient" else None
    if wrt and expression.startswith("[["):
        expression = expression[1:-1]  # a vector, not a list of one
    for sizes in [[1], [2], [1, 1]] if wrt is None else [[1]]:
        config = {"expression": expression, "sizes": sizes}
        body = {"input": [[0.5]], "config": config, "outWrt": 0, "inWrt": 0, "sens": [1.0]}
        theirs = _official(returning, operation, body)
        inputs = (np.array([0.5]),)
        call = Call("returns", Operation(operation.lower()), inputs, json.dumps(config), wrt)
        (ours,) = Runner({"returns": adapt_object(Returns())}).execute([call])
        expected = theirs if wrt is None else [theirs]
        if theirs == "InvalidOutput" or not _are_numbers(expected):
            assert isinstance(ours, InvalidOutput), theirs
            continue
        assert isinstance(ours, Result), ours
        for mine, other in zip(ours.outputs, expected, strict=True):
            np.testing.assert_array_equal(mine, other)


class Endless(BaseHTTPRequestHandler):
    """A server of a model with one number, whose answers to calls have no end."""

    def do_GET(self) -> None:
        if self.path == "/Info":
            self.answer({"protocolVersion": 1.0, "models": ["endless"]})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/ModelInfo":
            self.answer({"support": {"Evaluate": True}})
        elif self.path.endswith("Sizes"):
            self.answer({self.path[1].lower() + self.path[2:]: [1]})
        else:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(2**12):
                    self.wfile.write(b" " * 2**16)

    def answer(self, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize("of", ["server model", "client"])
def test_an_answer_longer_than_the_models_outputs_is_not_read(of: str) -> None:
    with HTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            if of == "client":
                called: Callable[[Array], Any] = connect(url).model("endless")
            else:
                model = models_at(url)["endless"]
                model.describe({})

                def called(x: Array) -> Any:
                    return model.evaluate(Inputs(in0=x), {})

            with pytest.raises(InvalidOutput, match=r"longer than 10\d{5} bytes, the most"):
                called(np.ones(1))
        finally:
            server.shutdown()
            thread.join()
