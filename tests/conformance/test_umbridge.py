"""UM-Bridge from outside: the stock client and the conformity suite's checks, against `farm serve`
with a worker process, and malformed messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
from tests.support.front_door import front_door
from tests.support.time_limits import scaled
from tests.support.umbridge_models import Smooth

A, B = [0.1, 0.2, 0.3], [4.0, 5.0]
POINT = [A, B]
TIMEOUT_S = scaled(20.0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = [f"{umbridge_models.__file__}:{name}" for name in ("Smooth", "Odd", "Echo")]
    with serving(tmp_path_factory.mktemp("farm"), *models, "--workers", "1") as served:
        yield served.connection.url


# The stock client, call by call


@pytest.fixture(scope="module")
def smooth(url: str) -> Any:
    return umbridge.HTTPModel(url, "smooth")


def test_names_sizes_and_support(url: str, smooth: Any) -> None:
    assert umbridge.supported_models(url) == ["smooth", "odd", "echo"]
    with pytest.raises(Exception, match="Model nope not supported by server"):
        umbridge.HTTPModel(url, "nope")
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


def test_questions_are_answered_by_their_schemas(suite: Suite) -> None:
    response = requests.get(suite.url + "/Info", timeout=TIMEOUT_S)
    assert response.status_code == 200
    data = response.json()
    assert set(data) == {"protocolVersion", "models"}
    assert data["protocolVersion"] == 1.0
    assert isinstance(data["protocolVersion"], float)
    assert all(isinstance(name, str) for name in data["models"])

    def asked(path: str, key: str) -> Any:
        response = ask(suite.url, path, {"name": suite.name})
        assert (response.status_code, list(response.json())) == (200, [key])
        return response.json()[key]

    support = asked("/ModelInfo", "support")
    assert set(support) == {"Evaluate", "Gradient", "ApplyJacobian", "ApplyHessian"}
    assert all(isinstance(value, bool) for value in support.values())
    for path, key in (("/InputSizes", "inputSizes"), ("/OutputSizes", "outputSizes")):
        assert asked(path, key)
        assert all(type(n) is int for n in asked(path, key))


@pytest.mark.parametrize("path", [path for path in Endpoint if path != "/Info"])
def test_a_wrong_name_is_not_found_whatever_else_is_missing(url: str, path: str) -> None:
    assert error(ask(url, path, {"name": "no such model"})) == (400, "ModelNotFound")


@pytest.mark.parametrize("path", ["/Evaluate", "/Gradient", "/ApplyJacobian", "/ApplyHessian"])
def test_answers_have_their_schema_and_lengths(suite: Suite, path: str) -> None:
    response = suite.ask(path)
    assert response.status_code == 200
    assert list(response.json()) == ["output"]
    output = response.json()["output"]
    vectors = output if path == "/Evaluate" else [output]
    of_inputs = path in ("/Gradient", "/ApplyHessian")
    lengths = suite.inputs[:1] if of_inputs else suite.outputs[: len(vectors)]
    assert [len(vector) for vector in vectors] == lengths
    assert (path == "/Evaluate") <= (len(vectors) == len(suite.outputs))
    assert all(isinstance(y, int | float) for vector in vectors for y in vector)


def test_indices_one_past_the_end_and_longer_vectors_are_invalid(suite: Suite) -> None:
    assert error(suite.ask("/Evaluate", longer=1)) == (400, "InvalidInput")
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


@pytest.fixture(scope="module", autouse=True)
def alive(url: str) -> Iterator[None]:
    """Check that the farm still answers correctly after all this."""
    yield
    assert umbridge.HTTPModel(url, "smooth")(POINT) == Smooth()(POINT, {})
