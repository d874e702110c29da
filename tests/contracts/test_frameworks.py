"""The contract of models of frameworks: JAX, PyTorch and ONNX answer alike for one network.

The network is y = tanh(W x) k and `norm`, the sum of the squares of y. PyTorch is left out where it
is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import farm
from farm.call import DERIVATIVES, Array, Call, Derivative, Operation
from farm.errors import FarmError, UnsupportedFeature
from farm.model import Model
from farm.worker.frameworks.onnx import OnnxModel
from farm.worker.runner import Runner

WEIGHTS = np.random.default_rng(3).standard_normal((2, 3))
MOST_ROWS = 6


def scaled(x: Any, k: Any) -> dict[str, Any]:
    y = jnp.tanh(WEIGHTS @ x) * k
    return {"y": y, "norm": (y**2).sum()}


@lru_cache
def of_jax(max_batch: int) -> Model:
    """The model of `scaled`; compiled once, which takes a second."""
    outputs = {"y": 2, "norm": 1}
    return farm.jax_model(inputs={"x": 3, "k": 1}, outputs=outputs, max_batch=max_batch)(scaled)


def of_onnx(path: Path) -> Path:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Mul", ["t", "k"], ["y"]),
        helper.make_node("ReduceSumSquare", ["y"], ["norm"], axes=[1], keepdims=0),
    ]
    sizes: dict[str, list[str | int]] = {"x": ["N", 3], "k": ["N", 1], "y": ["N", 2], "norm": ["N"]}
    x, k, y, norm = (
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape)
        for name, shape in sizes.items()
    )
    weights = numpy_helper.from_array(WEIGHTS.T.copy(), "W")
    graph = helper.make_graph(nodes, "graph", [x, k], [y, norm], [weights])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


class Files:
    """Files that are written once, because each takes torch a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def exported(self) -> Path:
        import torch

        from tests.worker.frameworks.torch_files import Scaled, export

        example = torch.rand(2, 3, dtype=torch.float64), torch.rand(2, 1, dtype=torch.float64)
        return export(Scaled(torch.float64), example, self._folder / "net.pt2", most=512)

    @cached_property
    def scripted(self) -> Path:
        import torch

        from tests.worker.frameworks.torch_files import Scaled, script

        return script(Scaled(torch.float64), self._folder / "net.pt")

    @cached_property
    def onnx(self) -> Path:
        return of_onnx(self._folder / "net.onnx")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


def exported(files: Files, max_batch: int) -> Model:
    from farm.worker.frameworks.torch import TorchModel

    return TorchModel(files.exported, max_batch=max_batch)


def scripted(files: Files, **options: Any) -> Model:
    from tests.worker.frameworks.torch_files import opened

    return opened(files.scripted, **options)


FRAMEWORKS: dict[str, Callable[[Files], Model]] = {
    "jax": lambda files: of_jax(MOST_ROWS),
    "jax, row by row": lambda files: of_jax(1),
    "onnx": lambda files: OnnxModel(files.onnx, max_batch=MOST_ROWS),
    "onnx, row by row": lambda files: OnnxModel(files.onnx, max_batch=1),
}
BATCHED = ["jax", "onnx"]
if find_spec("torch") is not None:
    FRAMEWORKS |= {
        "torch": lambda files: exported(files, MOST_ROWS),
        "torch, row by row": lambda files: exported(files, 1),
        "torchscript": lambda files: scripted(files, max_batch=MOST_ROWS),
        "torchscript, without an axis": lambda files: scripted(files),
    }
    BATCHED += ["torch", "torchscript"]


def slow_if_exported(names: Iterable[str]) -> list[Any]:
    """To export a network takes seconds, and `tests/worker/frameworks/test_torch.py` does it."""
    exported = ("torch", "torch, row by row")
    return [pytest.param(n, marks=pytest.mark.slow) if n in exported else n for n in names]


@pytest.fixture(params=slow_if_exported(FRAMEWORKS))
def model(request: pytest.FixtureRequest, files: Files) -> Model:
    return FRAMEWORKS[request.param](files)


def answered(model: Model, call: Call) -> tuple[Array, ...]:
    (outcome,) = Runner({"m": model}).execute([call])
    if isinstance(outcome, FarmError):
        raise outcome
    return outcome.outputs


def evaluated(model: Model, *arrays: Array, rows: int | None = None) -> tuple[Array, ...]:
    return answered(model, Call("m", Operation.EVALUATE, arrays, rows=rows))


def test_values_are_those_of_the_function_in_float64(model: Model) -> None:
    x, k = np.array([0.5, -1.0, 2.0]), np.array([3.0])
    y, norm = evaluated(model, x, k)
    expected = np.tanh(WEIGHTS @ x) * k
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, expected, rtol=1e-14)
    np.testing.assert_allclose(norm.ravel(), [(expected**2).sum()], rtol=1e-14)
    assert jnp.ones(1).dtype == jnp.float32, "JAX stays as it was outside of the model"
    assert not jax.config.jax_enable_x64, "as JAX is set when nobody says otherwise"


def test_derivatives_are_exact(model: Model) -> None:
    rng = np.random.default_rng(5)
    x, k = rng.standard_normal(3), rng.standard_normal(1)
    t = np.tanh(WEIGHTS @ x)
    slope = (1 - t**2)[:, None] * WEIGHTS  # of t by x
    s, v, w = rng.standard_normal(2), rng.standard_normal(3), rng.standard_normal(1)

    def asked(operation: Operation, **wrt: Any) -> Array:
        (found,) = answered(model, Call("m", operation, (x, k), derivative=Derivative(**wrt)))
        return found

    def hessian(in_wrt: int, in_wrt2: int, vec: Array, out_wrt: int = 0) -> Array:
        how = {"out_wrt": out_wrt, "in_wrt": in_wrt, "in_wrt2": in_wrt2}
        return asked(Operation.APPLY_HESSIAN, **how, sens=s[: 2 - out_wrt], vec=vec)

    (info,) = Runner({"m": model}).models()
    if isinstance(model, OnnxModel):
        assert info.operations == {Operation.EVALUATE}
        with pytest.raises(UnsupportedFeature, match="does not offer gradient"):
            asked(Operation.GRADIENT, out_wrt=0, in_wrt=0, sens=s)
        return
    assert info.operations == {Operation.EVALUATE, *DERIVATIVES}
    np.testing.assert_allclose(
        asked(Operation.GRADIENT, out_wrt=0, in_wrt=0, sens=s), k * slope.T @ s, rtol=1e-12
    )
    np.testing.assert_allclose(
        asked(Operation.GRADIENT, out_wrt=1, in_wrt=1, sens=np.ones(1)), [2 * k[0] * (t @ t)]
    )
    np.testing.assert_allclose(
        asked(Operation.APPLY_JACOBIAN, out_wrt=0, in_wrt=0, vec=v), k * slope @ v, rtol=1e-12
    )
    np.testing.assert_allclose(asked(Operation.APPLY_JACOBIAN, out_wrt=0, in_wrt=1, vec=w), t * w)
    for out, k_or_x, sens in ((0, 0, s), (1, 1, np.ones(1))):
        wrt = Derivative(out, k_or_x, sens=sens)
        both = Call("m", Operation.VALUE_AND_GRADIENT, (x, k), derivative=wrt)
        y, norm, gradient = answered(model, both)
        np.testing.assert_allclose(y, t * k, rtol=1e-14)
        np.testing.assert_allclose(norm.ravel(), k**2 * (t @ t), rtol=1e-14)
        alone = asked(Operation.GRADIENT, out_wrt=out, in_wrt=k_or_x, sens=sens)
        np.testing.assert_allclose(gradient, alone, rtol=1e-14)
    bend = s * k * -2 * t * (1 - t**2)
    np.testing.assert_allclose(hessian(0, 0, v), WEIGHTS.T @ (bend * (WEIGHTS @ v)), rtol=1e-12)
    np.testing.assert_allclose(hessian(0, 1, w), slope.T @ s * w, rtol=1e-12)
    np.testing.assert_allclose(hessian(1, 0, v), [s @ slope @ v], rtol=1e-12)
    np.testing.assert_allclose(hessian(1, 1, w), [0.0])
    np.testing.assert_allclose(hessian(1, 1, w, out_wrt=1), s[:1] * 2 * (t @ t) * w, rtol=1e-12)


@pytest.mark.parametrize("framework", slow_if_exported(BATCHED))
def test_a_batch_is_what_its_rows_are_alone(files: Files, framework: str) -> None:
    model = FRAMEWORKS[framework](files)
    assert model.max_batch == MOST_ROWS
    for rows in range(1, MOST_ROWS + 1):
        x = np.random.default_rng(1).standard_normal((rows, 3))
        k = np.arange(float(rows))[:, None]
        y, norm = evaluated(model, x, k, rows=rows)
        np.testing.assert_allclose(y, np.tanh(x @ WEIGHTS.T) * k, rtol=1e-13)
        np.testing.assert_allclose(norm.reshape(rows), (y**2).sum(axis=1), rtol=1e-13)


@pytest.mark.parametrize("framework", slow_if_exported(BATCHED))
def test_the_same_question_has_the_same_answer_bit_for_bit(files: Files, framework: str) -> None:
    """TorchScript is compiled while it runs; later calls run the version of the warm-up."""
    model = FRAMEWORKS[framework](files)
    x, k = np.random.default_rng(2).random((MOST_ROWS, 3)), np.ones((MOST_ROWS, 1))
    first = evaluated(model, x, k, rows=MOST_ROWS)[0].tobytes()
    assert {evaluated(model, x, k, rows=MOST_ROWS)[0].tobytes() for _ in range(20)} == {first}
