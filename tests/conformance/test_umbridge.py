"""UM-Bridge from outside: the stock client against `farm serve` with a worker process, the
conformity suite's further checks, and malformed messages.
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


# Other messages


def error(response: requests.Response) -> tuple[int, str]:
    data = response.json()
    assert list(data) == ["error"]
    assert set(data["error"]) == {"type", "message"}
    assert all(isinstance(text, str) for text in data["error"].values())
    return response.status_code, data["error"]["type"]


def test_what_the_official_conformity_suite_asks_beside_calls(url: str) -> None:
    """Protocol version 1.0. It sends indented JSON without a content type."""
    assert requests.head(url, timeout=TIMEOUT_S).status_code == 200
    unknown = json.dumps({"name": "no such model"}, indent=4).encode()
    for path in set(Endpoint) - {Endpoint.INFO}:
        answer = requests.post(url + path, data=unknown, timeout=TIMEOUT_S)
        assert error(answer) == (400, "ModelNotFound"), path


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
