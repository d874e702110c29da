"""Served models as functions of JAX arrays: transformations, types, errors, counts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import farm
from farm.client import Client
from farm.errors import InvalidInput, ModelFailed, UnsupportedFeature
from farm.ops.asking import Counts
from tests.ops.waves import MATRIX, waves_by
from tests.support.time_limits import scaled

X = np.random.default_rng(1).standard_normal((4, 5, 2))
K = np.array([1.7])
JIT = pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """Enable float64 in JAX for one test, in all threads."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


waves = partial(waves_by, jnp.tanh, MATRIX)


def assert_same(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, expected
    )


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f,
    "vmap": lambda f: lambda x, k: jax.vmap(f, (None, 0))(x, jnp.stack([k, 2.0 * k])),
    "jacrev": lambda f: jax.jacrev(f, (0, 1)),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1)),
    "jacrev of k": lambda f: jax.jacrev(f, 1),
    "hessian": lambda f: jax.hessian(f, (0, 1)),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f, (0, 1)), (0, 1)),
    "forward over forward": lambda f: jax.jacfwd(jax.jacfwd(f, (0, 1)), (0, 1)),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f, (0, 1)), (0, 1)),
    "vmap of jacrev": lambda f: (
        lambda x, k: jax.vmap(jax.jacrev(f), (0, None))(jnp.stack([x, 2.0 * x]), k)
    ),
    "derivative of a jit": lambda f: jax.jacrev(jax.jit(f), (0, 1)),
    "hvp": lambda f: lambda x, k: jax.jvp(jax.jacrev(lambda x: f(x, k)), (x,), (jnp.cos(x),))[1],
    "checkpoint": lambda f: jax.jacrev(jax.checkpoint(f), (0, 1)),
    "linearize": lambda f: lambda x, k: jax.linearize(lambda x: f(x, k), x)[1](jnp.cos(x)),
}


SLOW = {
    *("forward over forward", "reverse over reverse", "reverse over forward"),
    *("checkpoint", "vmap of jacrev"),
}
"""Those that take JAX seconds to compile and follow from others."""

OF_A_NUMBER = {"hessian", "derivative of a jit", "hvp", "linearize"}
"""Those that need not be compiled for several outputs each time."""


def cases() -> Iterator[Any]:
    for transform in TRANSFORMS:
        usual = "sum" if transform in OF_A_NUMBER else ["y", "sum"]
        for out in ("sum", "y", ["y", "sum"]):
            slow = out != usual or transform in SLOW
            marks = [pytest.mark.slow] if slow else []
            yield pytest.param(out, transform, marks=marks, id=f"{transform}-{out}")


@pytest.mark.parametrize(("out", "transform"), list(cases()))
def test_transformations_are_those_of_the_function(
    client: Client, out: str | list[str], transform: str
) -> None:
    op = farm.ops.jax_op(client.model("waves"), out=out)
    change, x, k = TRANSFORMS[transform], jnp.array(X[0, 0]), jnp.array(K)
    assert_same(jax.jit(change(op))(x, k), jax.jit(change(waves(out)))(x, k))


@pytest.mark.parametrize("transform", ["value", "jacrev", "jacfwd"])
def test_transformations_without_jit(client: Client, transform: str) -> None:
    op = farm.ops.jax_op(client.model("waves"), out="y")
    change, x, k = TRANSFORMS[transform], jnp.array(X[0, 0]), jnp.array(K)
    assert_same(change(op)(x, k), jax.jit(change(waves("y")))(x, k))


@pytest.mark.parametrize(
    "jit", [jax.jit, pytest.param(lambda f: f, marks=pytest.mark.slow)], ids=["jit", "eager"]
)
def test_leading_axes_are_points_as_nested_vmaps_are(
    client: Client, jit: Callable[[Any], Any]
) -> None:
    op = farm.ops.jax_op(client.model("waves"), out="sum")
    points, k = jnp.array(X), jnp.array(K)

    def nested(f: Any) -> Any:
        return jax.vmap(jax.vmap(f, (0, None)), (0, None))

    expected = nested(jax.value_and_grad(waves("sum")))(points, k)
    assert_same(jit(nested(jax.value_and_grad(op)))(points, k), expected)
    assert_same(jit(op)(points, k), expected[0])
    assert_same(jit(jax.grad(lambda x: op(x, k).sum()))(points), expected[1])
    assert op.counts.calls == 20, "the memory has what other transformations ask for again"


def test_one_request_for_value_and_gradient_of_all_points(
    client: Client, counted: Counter[str]
) -> None:
    op = farm.ops.jax_op(client.model("density"))
    step = jax.jit(jax.vmap(jax.value_and_grad(op)))
    value, gradient = step(X[0])
    assert_same((value, gradient), (-0.5 * (X[0] ** 2).sum(-1), -X[0]))
    assert op.counts == Counts(requests=1, calls=5, repeats=0)
    assert counted == {"density evaluate": 5, "density gradient": 5}
    step(X[0])
    assert op.counts == Counts(requests=1, calls=5, repeats=10)


def test_a_value_alone_asks_for_no_gradient(client: Client, counted: Counter[str]) -> None:
    op = farm.ops.jax_op(client.model("density"))
    jax.jit(jax.vmap(op))(X[0])
    assert counted == {"density evaluate": 5}


def test_only_inputs_with_derivatives_are_differentiated(
    client: Client, counted: Counter[str]
) -> None:
    op = farm.ops.jax_op(client.model("waves"), out="sum")
    jax.grad(op)(X[0, 0], K)
    assert counted == {"waves evaluate": 1, "waves gradient": 1}
    constant = farm.ops.jax_op(client.model("waves"), out="sum", wrt="x")
    assert jax.grad(constant, 1)(X[0, 0], K).tolist() == [0.0]
    assert counted["waves gradient"] == 1


def test_leapfrogs_in_a_compiled_loop_are_one_request_each(
    client: Client, counted: Counter[str]
) -> None:
    op = farm.ops.jax_op(client.model("density"))
    gradient = jax.vmap(jax.value_and_grad(op))

    def trajectory(x: Any, p: Any) -> Any:
        def leapfrog(state: Any, _: Any) -> Any:
            x, p, g = state
            p = p + 0.05 * g
            x = x + 0.1 * p
            value, g = gradient(x)
            return (x, p + 0.05 * g, g), value

        return jax.lax.scan(leapfrog, (x, p, gradient(x)[1]), None, 7)

    jax.jit(trajectory)(X[0], X[1])
    assert op.counts == Counts(requests=8, calls=40, repeats=0)
    assert counted == {"density evaluate": 40, "density gradient": 40}


def test_results_have_the_type_of_the_argument(client: Client) -> None:
    op = farm.ops.jax_op(client.model("waves"), out="sum")
    step = jax.value_and_grad(op)
    for dtype, run in ((jnp.float32, jax.jit(step)), (jnp.bfloat16, step)):
        x, k = jnp.array(X[0, 0], dtype), jnp.array(K, dtype)
        value, gradient = run(x, k)
        assert (value.dtype, gradient.dtype) == (dtype, dtype)
        exact = np.asarray(x, np.float64), np.asarray(k, np.float64)
        assert value == waves("sum")(*exact).astype(dtype), "computed in float64, rounded once"
    assert op(X[0, 0], jnp.float32(1.7)).dtype == jnp.float64
    assert op([1, 2], 1).dtype == jnp.float64


def test_whole_numbers_are_inputs_without_derivatives(client: Client) -> None:
    op = farm.ops.jax_op(client.model("plain"))
    assert jax.jit(op)(X[0, 0], jnp.array([3])).tolist() == (3.0 * X[0, 0]).tolist()
    assert jax.vmap(op)(X[0], jnp.arange(5)[:, None]).shape == (5, 2)


@pytest.mark.slow
def test_without_float64_it_works_with_one_warning() -> None:
    script = """
import warnings
import jax, jax.numpy as jnp
import farm
from tests.ops.waves import Density

with farm.serve(Density) as client, warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    op = farm.ops.jax_op(client.model())
    for change in (jax.jit, lambda f: f):
        step = change(jax.vmap(jax.value_and_grad(op)))
        value, gradient = step(jnp.array([[1.0, 2.0]]))
        assert (value.dtype, gradient.dtype) == (jnp.float32, jnp.float32)
        assert (value.tolist(), gradient.tolist()) == ([-2.5], [[-1.0, -2.0]])
    assert op(jnp.array([1.0, 2.0])) == -2.5
    told = [str(w.message) for w in caught if "jax_enable_x64" in str(w.message)]
print(len(told), told[0])
"""
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(60),
    )
    assert found.stdout.startswith("1 JAX rounds the model's results to float32")


@JIT
def test_a_failed_model_raises_its_own_error(client: Client, jit: Callable[[Any], Any]) -> None:
    op = farm.ops.jax_op(client.model("density"))
    bad = X[0].copy()
    bad[3, 0] = 13.0
    for step in (jax.vmap(op), jax.vmap(jax.value_and_grad(op))):
        with pytest.raises(ModelFailed, match="thirteen is not for me") as caught:
            jax.block_until_ready(jit(step)(bad))
        assert caught.value.__notes__[0] == "at point 3"
        assert "Traceback" in caught.value.detail
    assert_same(jit(jax.vmap(op))(X[0]), -0.5 * (X[0] ** 2).sum(-1))


def test_an_error_deep_in_a_compiled_loop_comes_out_as_itself(client: Client) -> None:
    op = farm.ops.jax_op(client.model("density"))

    def walk(x: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            return x + 1.0, jax.lax.cond(x[0] > 0.0, op, lambda x: 0.0, x)

        return (
            jax.lax.scan(step, x, None, 5)[1].sum()
            + jax.lax.while_loop(
                lambda s: s[0] < 3.0, lambda s: s.at[0].set(s[0] + op(s) * 0.0 + 1.0), x
            ).sum()
        )

    run = jax.jit(walk)
    assert np.isfinite(run(jnp.array([-2.0, 0.5])))
    with pytest.raises(ModelFailed, match="thirteen"):
        jax.block_until_ready(run(jnp.array([10.0, 0.0])))


def test_other_errors_of_jax_stay_as_they_are(client: Client) -> None:
    op = farm.ops.jax_op(client.model("density"))
    with contextlib.suppress(ModelFailed):
        jax.jit(op)(jnp.array([13.0, 0.0]))

    def broken(x: Any) -> Any:
        raise ValueError("mine")

    shape = jax.ShapeDtypeStruct((), jnp.float64)
    with pytest.raises(jax.errors.JaxRuntimeError, match="mine"):
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(broken, shape, x))(1.0))


def test_derivatives_that_the_model_lacks(client: Client) -> None:
    density, plain = (farm.ops.jax_op(client.model(name)) for name in ("density", "plain"))
    x, n = jnp.array(X[0, 0]), jnp.array([3])
    with pytest.raises(UnsupportedFeature, match="second derivatives need apply_hessian"):
        jax.jit(jax.hessian(density))(x)
    with pytest.raises(UnsupportedFeature, match=r"reverse mode .* needs gradient"):
        jax.jacrev(plain)(x, n)
    with pytest.raises(UnsupportedFeature, match=r"forward mode .* needs apply_jacobian"):
        jax.jit(jax.jacfwd(plain))(x, n)
    waves = farm.ops.jax_op(client.model("waves"), out="sum")
    with pytest.raises(UnsupportedFeature, match="third derivatives"):
        jax.eval_shape(jax.jacfwd(jax.hessian(waves)), x, jnp.array(K))


def test_forward_mode_of_a_number_needs_only_its_gradient(client: Client) -> None:
    op = farm.ops.jax_op(client.model("density"))
    x, v = jnp.array(X[0, 0]), jnp.array(X[1, 1])
    assert_same(jax.jvp(op, (x,), (v,))[1], -x @ v)


def test_arguments_that_do_not_fit(client: Client) -> None:
    op = farm.ops.jax_op(client.model("waves"))
    with pytest.raises(InvalidInput, match=r"'x' has shape \(4, 5\).*expects \(\.\.\., 2\)"):
        jax.jit(op)(X[:, :, 0], K)
    with pytest.raises(InvalidInput, match=r"got 1 arguments.*'x', 'k'"):
        op(X[0, 0])
    with pytest.raises(InvalidInput, match=r"'x' has shape \(\)"):
        op(1.0, 2.0)


def test_threads_share_a_compiled_function(client: Client) -> None:
    op = farm.ops.jax_op(client.model("density"))
    step = jax.jit(jax.value_and_grad(op))

    def chain(seed: int) -> list[Any]:
        points = np.random.default_rng(seed).standard_normal((10, 2))
        return [(x, *step(x)) for x in points]

    with ThreadPoolExecutor(4) as pool:
        for each in pool.map(chain, range(4), timeout=scaled(30)):
            for x, value, gradient in each:
                assert_same((value, gradient), (-0.5 * x @ x, -x))
