"""JAX functions as models: compilation, configs, types, derivatives offered, messages at load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import farm
from farm.call import DERIVATIVES, Array, Call, Derivative, Operation, TensorInfo
from farm.declared import Tensors
from farm.errors import FarmError, InvalidInput, UnsupportedFeature
from farm.sweep.file.provenance import code_of
from farm.worker.frameworks.jax import JaxModel
from farm.worker.runner import Runner
from tests.worker.frameworks.answers import answered, evaluated

WEIGHTS = np.random.default_rng(3).standard_normal((2, 3))


def scaled(x: Any, k: Any) -> dict[str, Any]:
    """y = tanh(W x) k, and the sum of its squares."""
    y = jnp.tanh(WEIGHTS @ x) * k
    return {"y": y, "norm": (y**2).sum()}


def of_one(function: Callable[..., Any], **options: Any) -> JaxModel:
    """A model of 3 numbers x to an output y."""
    arguments: dict[str, Any] = {"inputs": {"x": 3}, "outputs": {"y": 1}}
    return farm.jax_model(**(arguments | options))(function)


def test_a_function_may_forbid_copies_of_slow_calls() -> None:
    assert of_one(lambda x: x[:1]).copies
    assert not of_one(lambda x: x[:1], copies=False).copies


def test_what_the_model_says_of_itself() -> None:
    outputs = {"y": 2, "norm": 1}
    model = farm.jax_model(inputs={"x": 3, "k": 1}, outputs=outputs, max_batch=2)(scaled)
    (info,) = Runner({"m": model}).models()
    assert (model.name, model.max_batch) == ("scaled", 2)
    assert info.operations == {Operation.EVALUATE, *DERIVATIVES}
    assert info.description == "y = tanh(W x) k, and the sum of its squares."
    assert model(jnp.zeros(3), 1.0)["norm"] == 0, "it is still the function"


def test_everything_is_compiled_before_the_first_call() -> None:
    traced = 0

    def counted(x: Any) -> Any:
        nonlocal traced
        traced += 1
        return x.sum()

    model = of_one(counted, max_batch=5)
    assert traced == 0, "a file may define below what the function uses"
    Runner({"m": model}).models()
    before = traced
    for rows in range(1, 6):
        evaluated(model, np.ones((rows, 3)), rows=rows)
    assert traced == before > 0
    assert model._program.cache_info().currsize == 4, "for 1, 2, 4 and 5 rows"


def test_a_config_is_a_constant_of_the_program() -> None:
    def power(x: Any, config: dict[str, Any]) -> Any:
        return (x ** config["n"]).sum()

    model = of_one(power)
    assert evaluated(model, [1.0, 2.0, 3.0], config='{"n":2}')[0] == 14
    assert evaluated(model, [1.0, 2.0, 3.0], config='{"n":3}')[0] == 36


def test_an_argument_with_a_default_comes_from_the_config() -> None:
    def power(x: Any, n: int = 1) -> Any:
        return (x**n).sum()

    model = of_one(power)
    assert evaluated(model, [1.0, 2.0, 3.0])[0] == 6
    assert evaluated(model, [1.0, 2.0, 3.0], config='{"n":2}')[0] == 14
    with pytest.raises(InvalidInput, match=r"the key 'm', which model 'm' does not have; .*: n$"):
        evaluated(model, [1.0, 2.0, 3.0], config='{"m":2}')


def test_a_config_that_only_calls_say_does_not_keep_a_model_from_being_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = of_one(lambda x, config: x.sum() * config["k"], name="f")
    (info,) = Runner({"m": model}).models()
    assert info.operations == {Operation.EVALUATE, *DERIVATIVES}
    assert "f is not compiled for an empty config: 'k'" in caplog.text
    assert evaluated(model, [1.0, 2.0, 3.0], config='{"k":2}')[0] == 12


def test_numbers_of_other_types_keep_them() -> None:
    def picked(x: Any, at: Any) -> Any:
        return x[at], at + 1

    model = farm.jax_model(
        inputs={"x": TensorInfo("x", (3,), "float32"), "at": TensorInfo("at", (), "int32")},
        outputs={"y": TensorInfo("y", (), "float32"), "next": TensorInfo("next", (), "int32")},
        max_batch=2,
    )(picked)
    y, following = evaluated(model, [0.5, 1.5, 2.5], np.int32(1))
    assert (str(y.dtype), str(following.dtype)) == ("float32", "int32")
    assert (float(y), int(following)) == (1.5, 2)
    arrays = np.ones(3, np.float32), np.int32(1)
    wrt = Derivative(0, 0, sens=np.ones(()))
    (found,) = answered(model, Call("m", Operation.GRADIENT, arrays, derivative=wrt))  # type: ignore[arg-type]  # a number will do
    assert found.tolist() == [0, 1, 0]
    wrt = Derivative(0, 1, sens=np.ones(()))
    with pytest.raises(UnsupportedFeature, match="'at' of model 'picked' is int32"):
        answered(model, Call("m", Operation.GRADIENT, arrays, derivative=wrt))  # type: ignore[arg-type]  # as above


def test_a_value_comes_with_outputs_that_have_no_gradient() -> None:
    def rooted(x: Any) -> Any:
        def step(r: Any) -> Any:
            return (r + x[0] / r) / 2

        root = jax.lax.while_loop(lambda r: abs(r * r - x[0]) > 1e-12, step, x[0])
        return (x**2).sum(), root, jnp.argmax(x)

    outputs: Tensors = {"y": 1, "root": 1, "at": TensorInfo("at", (1,), "int32")}
    model = farm.jax_model(inputs={"x": 2}, outputs=outputs)(rooted)
    call = Call("m", Operation.VALUE_AND_GRADIENT, (np.array([4.0, 3.0]),))
    of_y = replace(call, derivative=Derivative(0, 0, sens=np.ones(1)))
    y, root, at, gradient = answered(model, of_y)
    assert (float(y[0]), int(at[0]), gradient.tolist()) == (25.0, 0, [8.0, 6.0])
    assert root[0] == pytest.approx(2.0, rel=1e-12)
    with pytest.raises(UnsupportedFeature, match="'at' of model 'rooted' is int32"):
        answered(model, replace(call, derivative=Derivative(2, 0, sens=np.ones(1))))


@pytest.mark.parametrize(
    ("function", "offered"),
    [
        (lambda x: jnp.argmax(x).astype(float), DERIVATIVES),  # zero, which JAX calls right
        (
            # Newton's square root: a variable number of steps, which has no reverse mode.
            lambda x: jax.lax.while_loop(
                lambda r: abs(r * r - x[0]) > 1e-12, lambda r: (r + x[0] / r) / 2, x[0]
            ),
            {Operation.APPLY_JACOBIAN},
        ),
        (lambda x: jax.pure_callback(np.sum, jax.ShapeDtypeStruct((), x.dtype), x), set()),
    ],
)
def test_derivatives_are_offered_where_jax_has_them(
    function: Callable[..., Any], offered: set[Operation]
) -> None:
    (info,) = Runner({"m": of_one(function, name="f")}).models()
    assert info.operations - {Operation.EVALUATE} == offered


# --- messages ---------------------------------------------------------------------------------


def test_a_function_that_does_not_fit_its_declaration_is_not_served() -> None:
    for function, message in [
        (lambda x: jnp.ones(4), r"output 'y' of model 'f' has shape \(4,\), expected \(1,\)"),
        (lambda x: {"z": x.sum()}, r"model 'f' returned outputs \['z'\], declares \['y'\]"),
        (lambda x: x[0] * 1j, r"output 'y' of model 'f' is complex128, declared is float64"),
        (lambda x: x @ np.ones(4), r"TypeError: dot_general"),
    ]:
        with pytest.raises(FarmError, match=message):
            Runner({"m": of_one(function, name="f")}).models()


def test_numbers_that_are_not_float64_all_the_way_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    constant = jnp.arange(3.0)  # float32, as JAX is set here
    Runner({"m": of_one(lambda x: constant @ x, name="weighed")}).models()
    assert "weighed is float64 with 1 constants of float32" in caplog.text
    Runner({"m": of_one(lambda x: x.sum().astype("float32"), name="cast")}).models()
    told = "output 'y' of model 'cast' is computed as float32, not float64"
    assert caplog.text.count(told) == 1


def test_derivatives_by_inputs_of_another_precision() -> None:
    """A cast in the function, and an input in float32 beside one in float64."""
    model = farm.jax_model(
        inputs={"x": 2, "k": TensorInfo("k", (1,), "float32")}, outputs={"y": 1}
    )(lambda x, k: ((x**2).sum() * k).astype("float32"))
    arrays = np.array([1.0, 2.0]), np.array([3.0], np.float32)
    sens, vec = np.array([2.0]), np.array([0.5])

    def hessian(in_wrt: int, in_wrt2: int, vec: Array) -> list[float]:
        wrt = Derivative(0, in_wrt, in_wrt2, sens, vec)
        call = Call("m", Operation.APPLY_HESSIAN, arrays, derivative=wrt)
        found: list[float] = answered(model, call)[0].tolist()
        return found

    assert hessian(0, 1, vec) == [2.0, 4.0]
    assert hessian(1, 0, np.array([1.0, 1.0])) == [12.0]


def test_texts_are_none_of_jaxs() -> None:
    with pytest.raises(ValueError, match="JAX has no texts"):
        of_one(lambda x: x, inputs={"x": TensorInfo("x", (3,), "bytes")}, name="f")


def test_without_the_package_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r'JAX functions need jax: pip install "modelfarm\[jax\]'):
        of_one(lambda x: x, name="f")


def test_a_sweep_knows_a_model_by_the_code_of_its_function() -> None:
    functions: list[Callable[..., Any]] = [lambda x: x.sum(), lambda x: x.sum(), lambda x: x.max()]
    sums, same, most = [code_of(of_one(function)) for function in functions]
    assert sums == same != most
