"""Models of umbridge objects and servers: the official server, and quirks of others."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator
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
    ModelFailed,
    ModelNotFound,
)
from farm.model import Inputs, Model, info_of
from farm.protocols.umbridge.remote import adapt_object, models_at
from farm.worker.runner import Runner
from tests.support.umbridge_models import RETURNED, Odd, Returns, Smooth, official_server
from tests.worker.scripted import scripted

A, B = np.array([0.1, 0.2, 0.3]), np.array([4.0, 5.0])
SENS, VEC = np.array([1.0, 2.0]), np.array([0.5, -1.0])
EVERY = frozenset({"evaluate", "gradient", "apply_jacobian", "apply_hessian"})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("official") / "log"
    with official_server(log, returns=True) as address:
        yield address


@pytest.fixture(scope="module", params=["object", "server"])
def models(request: pytest.FixtureRequest, url: str) -> dict[str, Model]:
    """Return the same models, as Python objects and from the official server."""
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
    assert info_of(models["odd"], {"size": 7}).inputs[0].shape == (7,)


def test_evaluate_gives_the_value(models: dict[str, Model]) -> None:
    y, z = outputs(models, Call("smooth", Operation.EVALUATE, (A, B)))
    np.testing.assert_allclose(y, [0.1 * 4 + 0.2**2, 0.3 * 5])
    np.testing.assert_allclose(z, [0.6 * 9])
    scaled, _ = outputs(models, Call("smooth", Operation.EVALUATE, (A, B), '{"scale":10}'))
    np.testing.assert_allclose(scaled[1], 10 * 0.3 * 5)


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


@pytest.mark.parametrize(
    ("give", "value"), [("nonfinite", [math.nan, math.inf, -math.inf]), ("numpy", [3.0])]
)
def test_values_arrive(models: dict[str, Model], give: str, value: list[float]) -> None:
    np.testing.assert_array_equal(outputs(models, odd(give))[0], value)


@pytest.mark.parametrize(
    ("give", "kind"), [("raise", ModelFailed), ("none", InvalidOutput), ("long", InvalidOutput)]
)
def test_what_goes_wrong(models: dict[str, Model], give: str, kind: type[FarmError]) -> None:
    assert type(outcome(models, odd(give))) is kind


def test_one_model_of_a_server_is_had_by_name(url: str) -> None:
    assert list(models_at(url)) == ["smooth", "odd", "returns"]
    assert list(models_at(url + "/", "odd")) == ["odd"]
    with pytest.raises(ModelNotFound, match="no model 'even'; its models are: 'smooth', 'odd', '"):
        models_at(url, "even")


@pytest.mark.parametrize("thing", [object(), 3, print])
def test_other_objects_are_refused(thing: object) -> None:
    with pytest.raises(TypeError, match="expected an umbridge"):
        adapt_object(thing)


ANSWERS: dict[str, tuple[int, Any]] = {
    "/Info": (200, {"protocolVersion": 1.0, "models": ["m"]}),
    "/ModelInfo": (200, {"support": {"Evaluate": True, "Gradient": True}}),
    "/InputSizes": (200, {"inputSizes": [1]}),
    "/OutputSizes": (200, {"outputSizes": [1]}),
    "/Evaluate": (200, {"output": [[4.0]]}),
}


EVALUATE = Call("m", Operation.EVALUATE, (np.array([2.0]),))


def test_each_call_has_its_own_connection_and_says_that_it_will_be_closed() -> None:
    with scripted(ANSWERS) as server:
        model = models_at(server.url)
        for _ in range(3):
            assert outputs(model, EVALUATE)[0].tolist() == [4.0]
    assert len(server.connections) == len(server.requests)
    assert {head["connection"] for head, _ in server.requests} == {"close"}


def test_credentials_and_a_path_before_the_protocols_own_are_used() -> None:
    with scripted({f"/lab/models{path}": answer for path, answer in ANSWERS.items()}) as server:
        address = server.url.replace("http://", "http://ann:s%40cret@") + "/lab/models/"
        model = models_at(address)["m"]
    expected = "Basic " + base64.b64encode(b"ann:s@cret").decode()
    assert {head["authorization"] for head, _ in server.requests} == {expected}
    assert "cret" not in model.description


def test_a_server_that_takes_a_wrong_length_is_not_asked() -> None:
    with scripted(ANSWERS) as server:
        model = models_at(server.url)
        asked = len(server.requests)
        refused = outcome(model, Call("m", Operation.EVALUATE, (np.array([1.0, 2.0]),)))
        assert isinstance(refused, InvalidInput)
        assert len(server.requests) == asked + 2  # its sizes, and no evaluation


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
    url: str, expression: str, operation: str
) -> None:
    """The one difference is that farm refuses vectors of anything but numbers."""
    wrt = Derivative(0, 0, sens=np.ones(1)) if operation == "Gradient" else None
    if wrt and expression.startswith("[["):
        expression = expression[1:-1]  # a vector, not a list of one
    for sizes in [[1], [2], [1, 1]] if wrt is None else [[1]]:
        config = {"expression": expression, "sizes": sizes}
        body = {"input": [[0.5]], "config": config, "outWrt": 0, "inWrt": 0, "sens": [1.0]}
        theirs = _official(url, operation, body)
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


def test_an_answer_longer_than_the_models_outputs_is_not_read() -> None:
    with scripted(ANSWERS | {"/Evaluate": (200, " " * 2**21)}) as server:
        model = models_at(server.url)["m"]
        model.describe({})
        calls: list[Callable[[], Any]] = [
            lambda: model.evaluate(Inputs(in0=np.ones(1)), {}),
            lambda: connect(server.url).model("m")(np.ones(1)),
        ]
        for called in calls:
            with pytest.raises(InvalidOutput, match=r"longer than 10\d{5} bytes, the most"):
                called()
