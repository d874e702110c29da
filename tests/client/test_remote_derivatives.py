"""Derivatives of remote models over every line: many, and with values, against closed forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from farm.client import Client, RemoteModel, connect
from farm.errors import FarmError, InvalidInput, ModelFailed
from farm.protocols.umbridge.remote import models_at
from tests.support.coroutines import LIMIT_S
from tests.support.dispatcher_farm import Served, serving
from tests.support.front_door import front_door
from tests.support.umbridge_models import Smooth

MODELS = """
import os, signal
import numpy as np
import farm

class Form(farm.Model):
    '''u = k a, v = k |a|^2; its derivatives are those below.'''
    inputs = {"a": 2, "k": 1}
    outputs = {"u": 2, "v": 1}

    def evaluate(self, inputs, config):
        return inputs["k"] * inputs["a"], inputs["k"] * (inputs["a"] ** 2).sum()

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        a, k = inputs["a"], inputs["k"]
        if out_wrt == 0:
            return k * sens if in_wrt == 0 else a @ sens
        return 2.0 * k * a * sens if in_wrt == 0 else (a ** 2).sum() * sens

    def apply_jacobian(self, out_wrt, in_wrt, inputs, vec, config):
        a, k = inputs["a"], inputs["k"]
        if out_wrt == 0:
            return k * vec if in_wrt == 0 else a * vec
        return 2.0 * k * (a @ vec) if in_wrt == 0 else (a ** 2).sum() * vec

    def apply_hessian(self, out_wrt, in_wrt1, in_wrt2, inputs, sens, vec, config):
        a, k = inputs["a"], inputs["k"]
        assert out_wrt == 1 and in_wrt1 == 0
        return 2.0 * k * vec * sens if in_wrt2 == 0 else 2.0 * a * sens * vec

class Split(farm.Model):
    '''y = scale |x|^2 for a matrix x, in two calls.'''
    name = "split"
    inputs = {"x": (2, 2)}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        if inputs["x"][0, 0] < 0.0:
            raise ValueError("negative")
        return config.get("scale", 1.0) * (inputs["x"] ** 2).sum()

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        if inputs["x"][0, 0] < 0.0:
            raise ValueError("negative slope")
        return 2.0 * config.get("scale", 1.0) * sens * inputs["x"]

class Keeps(Split):
    '''The gradient needs what the last evaluation has found.'''
    name = "keeps"
    keeps_point = True
    kept = None

    def evaluate(self, inputs, config):
        self.kept = inputs["x"].copy()
        return super().evaluate(inputs, config)

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        assert np.array_equal(self.kept, inputs["x"]), "evaluated last, on this worker"
        return super().gradient(out_wrt, in_wrt, inputs, sens, config)

class Whole(Split):
    '''Has the pair in one call; alone, the two fail.'''
    name = "whole"

    def value_and_gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return (super().evaluate(inputs, config),
                super().gradient(out_wrt, in_wrt, inputs, sens, config))

    def evaluate(self, inputs, config):
        raise RuntimeError("asked alone")

    gradient = evaluate

class Deadly(Split):
    '''The first gradient at a point above 10 kills its worker.'''
    name = "deadly"

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        if inputs["x"][0, 0] > 10.0:
            try:
                os.close(os.open(config["flag"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().gradient(out_wrt, in_wrt, inputs, sens, {})
"""

NAMES = ("Form", "Split", "Keeps", "Whole", "Deadly")
X = np.random.default_rng(3).uniform(0.5, 1.5, (100, 2, 2))
A = np.random.default_rng(4).standard_normal((40, 2))
K = np.random.default_rng(5).uniform(1.0, 2.0, (40, 1))
POINTS = [{"a": a, "k": k} for a, k in zip(A, K, strict=True)]
BULK: Literal["value_and_gradient"] = "value_and_gradient"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("farm")
    (folder / "models.py").write_text(MODELS)
    with serving(folder, *[f"models.py:{name}" for name in NAMES], "--workers", "2") as farm:
        yield farm


@pytest.fixture(params=["native", "http"])
def client(request: pytest.FixtureRequest, served: Served) -> Iterator[Client]:
    with connect(served.folder if request.param == "native" else served.connection.url) as client:
        yield client


@pytest.fixture
def form(client: Client) -> RemoteModel:
    return client.model("Form")


def squares(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.array([[(each**2).sum()] for each in x])


# One point


@pytest.mark.parametrize("name", ["split", "keeps", "whole"])
def test_a_value_comes_with_its_gradient(client: Client, name: str) -> None:
    model = client.model(name)
    y, gradient = model.value_and_gradient("y", "x", X[0], [3.0])
    assert np.array_equal(y, squares(X[:1])[0])
    assert np.array_equal(gradient, 6.0 * X[0])
    y, gradient = model.value_and_gradient(0, 0, X[0], None, {"scale": 2.0})
    assert np.array_equal(y, 2.0 * squares(X[:1])[0])
    assert np.array_equal(gradient, 4.0 * X[0])
    assert gradient.dtype == np.float64
    assert gradient.shape == (2, 2)


def test_a_future_of_a_derivative(form: RemoteModel) -> None:
    asked = form.submit(POINTS[0], operation="gradient", out="v", wrt="a", sens=2.0)
    assert np.allclose(asked.result(LIMIT_S), 4.0 * K[0] * A[0], rtol=1e-15)


# Many points


@pytest.mark.parametrize("name", ["split", "keeps", "whole"])
def test_an_array_of_points_gives_arrays(client: Client, name: str) -> None:
    model = client.model(name)
    values, gradients = model.map(X, operation=BULK)
    assert np.array_equal(values, squares(X))
    assert np.array_equal(gradients, 2.0 * X)
    sens = np.arange(100.0)[:, None]
    values, gradients = model.map(X, operation=BULK, sens=sens)
    assert np.array_equal(gradients, 2.0 * X * sens[:, :, None])
    values, gradients = model.map(X[:0], operation=BULK)
    assert (values.shape, gradients.shape) == ((0, 1), (0, 2, 2))


def test_iterables_give_results_in_turn(form: RemoteModel) -> None:
    sens = np.arange(80.0).reshape(40, 2)
    got = form.map(iter(POINTS), operation="gradient", out="u", wrt="k", sens=iter(sens))
    assert np.allclose(list(got), (A * sens).sum(axis=1)[:, None], rtol=1e-14)
    got = form.map(POINTS, operation="gradient", out="v", wrt=0)
    assert np.array_equal(list(got), 2.0 * K * A)
    pairs = list(form.map(POINTS, operation=BULK, out="v", wrt="a"))
    assert np.array_equal([values["u"] for values, _ in pairs], K * A)
    assert np.array_equal([gradient for _, gradient in pairs], 2.0 * K * A)


def test_jacobians_and_hessians_in_bulk(form: RemoteModel) -> None:
    got = form.map(POINTS, operation="apply_jacobian", out="u", wrt="k", vec=[2.0])
    assert np.array_equal(list(got), 2.0 * A)
    got = form.map(POINTS, operation="apply_jacobian", out="u", wrt="a", vec=A)
    assert np.array_equal(list(got), K * A)
    got = form.map(POINTS, operation="apply_hessian", out="v", wrt="a", vec=A)
    assert np.array_equal(list(got), 2.0 * K * A)
    got = form.map(
        POINTS, operation="apply_hessian", out="v", wrt="a", wrt2="k", sens=[[2.0]] * 40, vec=[3.0]
    )
    assert np.array_equal(list(got), 12.0 * A)


def test_results_as_they_complete(form: RemoteModel) -> None:
    got = dict(form.as_completed(POINTS, operation="gradient", out="u", wrt="a", sens=A))
    assert np.array_equal([got[i] for i in range(40)], K * A)


def test_a_wrong_point_raises_at_its_place(client: Client) -> None:
    model = client.model("split")
    x = X[:20].copy()
    x[7] = -1.0
    with pytest.raises(ModelFailed) as raised:
        model.map(x, operation=BULK)
    assert raised.value.__notes__[0] == "at point 7"
    points = [*x[:3], [1.0, 2.0], *x[4:]]
    got = list(model.map(points, operation="gradient", return_errors=True))
    assert [type(each) for each in got].count(np.ndarray) == 18
    assert isinstance(got[3], InvalidInput)
    assert isinstance(got[7], ModelFailed)
    with pytest.raises(InvalidInput, match="input 'x' has shape") as wrong:
        list(model.map(points, operation="gradient"))
    assert wrong.value.__notes__ == ["at point 3"]
    sens = iter([[1.0], [1.0, 2.0]])
    got = list(model.map(X[:3], operation="gradient", sens=sens, return_errors=True))
    assert [isinstance(each, FarmError) for each in got] == [False, True, True]


def test_what_is_asked_wrongly_is_refused_at_once(client: Client) -> None:
    split = client.model("split")
    with pytest.raises(ValueError, match="operation is 'stream'; expected evaluate, apply_hess"):
        split.map(X, operation="stream")
    with pytest.raises(InvalidInput, match="evaluate takes neither sens nor vec"):
        split.map(X, sens=[1.0])
    with pytest.raises(ValueError, match="in_flight is 0"):
        split.map(list(X), in_flight=0)


def test_a_worker_may_die_in_the_middle(client: Client, tmp_path: Path) -> None:
    x = X.copy()
    x[50] += 100.0
    config = {"flag": str(tmp_path / "flag")}
    model = client.model("deadly")
    assert np.array_equal(model.map(x, config, operation="gradient"), 2.0 * x)
    (tmp_path / "flag").unlink()  # it was made: a worker died
    values, gradients = model.map(x, config, operation=BULK)
    (tmp_path / "flag").unlink()
    assert np.array_equal(values, squares(x))
    assert np.array_equal(gradients, 2.0 * x)


# Other servers


def test_other_servers_and_a_farm_in_front_of_one_answer_both(official: str) -> None:
    point, sens = [[1.0, 2.0, 3.0], [4.0, 5.0]], [1.0, 2.0]
    original = Smooth()
    expected = original.gradient(0, 0, point, sens, {})
    with front_door(dict(models_at(official, "smooth")), workers=2) as door:
        for url in (official, door.url):
            with connect(url) as client:
                model = client.model("smooth")
                pairs = list(model.map([point] * 9, operation=BULK, sens=sens))
                pairs.append(model.value_and_gradient(0, 0, point, sens))
            assert len(pairs) == 10
            for values, gradient in pairs:
                assert [y.tolist() for y in values.values()] == original(point, {})
                assert np.allclose(gradient, expected)
        support = json.loads(door.ask("POST", "/ModelInfo", {"name": "smooth"}).data)["support"]
    assert sorted(support) == ["ApplyHessian", "ApplyJacobian", "Evaluate", "Gradient"]
