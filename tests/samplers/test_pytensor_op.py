"""`farm.ops.pytensor_op`: derivatives of graphs, points, types, pickling, errors, counts."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import Rop, grad, hessian, jacobian

import farm
from farm.client import Client
from farm.errors import InvalidInput, ModelFailed, UnsupportedFeature
from farm.ops.asking import Counts
from tests.ops import waves

X0, K0 = np.array([0.3, -0.5]), np.array([1.7])


@pytest.fixture(scope="module")
def counting() -> Iterator[Client]:
    with farm.serve(waves.Waves, waves.Density, waves.Plain, workers=2) as client:
        yield client


def of_itself(x: Any, k: Any) -> dict[str, Any]:
    y = pt.tanh(pt.dot(waves.MATRIX, x)) * k[0]
    return {"y": y, "sum": (y**2).sum()}


GRAPHS: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    "value": lambda r, x, k: [r],
    "gradients": lambda r, x, k: grad(r.sum(), [x, k]),
    "value and gradient": lambda r, x, k: [r, grad((r**2).sum(), x)],
    "hessian": lambda r, x, k: [hessian((r**2).sum(), x)],
    "mixed": lambda r, x, k: [jacobian(grad(r.sum(), x), k)],
    "forward": lambda r, x, k: [Rop(r, x, pt.cos(x), use_op_rop_implementation=True)],
    "reverse twice for forward": lambda r, x, k: [Rop(grad((r**2).sum(), x), x, pt.cos(x))],
    "forward of gradient": lambda r, x, k: [
        Rop(grad((r**2).sum(), x), x, pt.cos(x), use_op_rop_implementation=True)
    ],
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("out", ["sum", "y"])
def test_graphs_are_those_of_the_function(counting: Client, out: str, graph: str) -> None:
    op = farm.ops.pytensor_op(counting.model("waves"), out=out)
    x, k = pt.dvector("x"), pt.dvector("k")
    found, expected = (
        pytensor.function([x, k], GRAPHS[graph](r, x, k), on_unused_input="ignore")(X0, K0)
        for r in (op(x, k), of_itself(x, k)[out])
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_value_and_used_gradients_are_one_request(counting: Client) -> None:
    op = farm.ops.pytensor_op(counting.model("waves"), out="sum")
    x, k = pt.dvector("x"), pt.dvector("k")
    y = op(x, k)
    pytensor.function([x, k], [y, grad(y, x)])(X0, K0)
    assert op.counts == Counts(requests=1, calls=1, repeats=0)
    pytensor.function([x, k], y)(X0 + 1.0, K0)
    assert op.counts == Counts(requests=2, calls=2, repeats=0)


def test_leading_axes_are_points(counting: Client) -> None:
    op = farm.ops.pytensor_op(counting.model("waves"), out="sum")
    x, k = pt.dmatrix("x"), pt.dvector("k")
    y = op(x, k)
    points = np.stack([X0, 2.0 * X0, -X0])
    value, gradient = pytensor.function([x, k], [y, grad(y.sum(), k)])(points, K0)
    assert value.shape == (3,)
    one = pytensor.function([x, k], grad(y.sum(), k))
    assert np.allclose(gradient, sum(one(p[None], K0) for p in points))


def test_constants_have_gradients_which_are_asked_for_only_where_used(counting: Client) -> None:
    op = farm.ops.pytensor_op(counting.model("waves"), out="sum")
    x, k, point = pt.dvector("x"), pt.constant(K0), pt.constant(X0)
    y = op(x, k)
    _, by_x = pytensor.function([x], [y, grad(y, x)])(X0)
    assert op.counts == Counts(requests=1, calls=1, repeats=0)
    assert grad(op(point, k), point).eval().tolist() == by_x.tolist()
    assert grad(y, k).eval({x: X0}) == pytest.approx(grad(of_itself(x, k)["sum"], k).eval({x: X0}))


def test_third_derivatives_are_an_error_where_they_are_used(counting: Client) -> None:
    op = farm.ops.pytensor_op(counting.model("waves"), out="sum")
    x = pt.dvector("x")
    second = hessian(op(x, K0), x)
    assert second.eval({x: X0}).shape == (2, 2)
    with pytest.raises(UnsupportedFeature, match="third derivatives"):
        grad(second.sum(), x).eval({x: X0})


def test_types_and_arguments(counting: Client) -> None:
    op = farm.ops.pytensor_op(counting.model("waves"), out=["y", "sum"])
    y, total = op(pt.fvector("x"), pt.fvector("k"))
    assert (y.type.dtype, y.type.shape, total.type.ndim) == ("float32", (3,), 0)
    plain = farm.ops.pytensor_op(counting.model("plain"))
    assert plain(X0, np.array([3])).eval().tolist() == (3.0 * X0).tolist()
    with pytest.raises(InvalidInput, match=r"'x' has shape \(3,\)"):
        op(np.zeros(3), K0)
    with pytest.raises(InvalidInput, match="got 1 arguments"):
        op(X0)
    x = pt.dvector("x")
    gradient = pytensor.function([x], grad(plain(x, np.array([3])).sum(), x))
    with pytest.raises(UnsupportedFeature, match="needs gradient"):
        gradient(X0)


def test_an_error_keeps_its_class(counting: Client) -> None:
    op = farm.ops.pytensor_op(counting.model("density"))
    x = pt.dvector("x")
    y = op(x)
    for graph in (y, [y, grad(y, x)]):
        with pytest.raises(ModelFailed, match="thirteen is not for me"):
            pytensor.function([x], graph)(np.array([13.0, 0.0]))


def test_a_pickled_op_is_the_same_function(counting: Client) -> None:
    op = farm.ops.pytensor_op(counting.model("density"))
    assert pickle.loads(pickle.dumps(op))(X0).eval() == -0.5 * (X0 @ X0)
    x = pt.dvector("x")
    function = pytensor.function([x], op(x))
    assert pickle.loads(pickle.dumps(function))(X0) == -0.5 * (X0 @ X0)
