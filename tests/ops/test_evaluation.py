"""A served model as ops see it: shapes, names, processes, and refusals."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from farm.client import Client
from farm.errors import InvalidInput, UnsupportedFeature
from farm.ops.evaluation import Evaluation, OpQuery, OpQueryKind, ServedOp
from tests.support.time_limits import scaled

VALUE = OpQuery(OpQueryKind.VALUE)
X = np.arange(8.0).reshape(4, 2) / 10.0


def test_leading_axes_are_points(client: Client) -> None:
    evaluation = Evaluation(client.model("waves"), out=["sum", "y"])
    assert evaluation.results == ((), (3,))
    for lead in [(), (1,), (2, 2), (4, 1, 1), (0,), (2, 0)]:
        points = np.resize(X, (*lead, 2))
        total, y = evaluation.run(VALUE, [points, np.ones((*lead, 1))])
        assert (total.shape, y.shape) == (lead, (*lead, 3))
        assert np.allclose((y**2).sum(-1), total)


def test_positions_may_be_numpy_integers(client: Client) -> None:
    evaluation = Evaluation(client.model("waves"), out=np.int64(1), wrt=np.arange(1))  # type: ignore[arg-type]  # as computed positions are
    assert evaluation.single
    assert (evaluation.outs, evaluation.wrt) == ((1,), (0,))


def test_second_derivatives_are_sums_over_inputs_and_outputs(client: Client) -> None:
    evaluation = Evaluation(client.model("waves"), out=["y", "sum"])
    query = OpQuery(OpQueryKind.BEND, outs=(0, 1), along=(0, 1), wrt=(1,))
    x, k, sens, vec = X[:1], np.ones((1, 1)), np.array([[1.0, -2.0, 3.0]]), np.array([[0.3, 0.4]])
    (found,) = evaluation.run(query, [x, k, sens, np.array([2.0]), vec, np.array([[0.5]])])

    def gradient(s: float) -> float:
        pull = OpQuery(OpQueryKind.PULL, outs=(0, 1), wrt=(1,))
        operands = [x + s * vec, k + s * 0.5, sens, np.array([2.0])]
        return float(evaluation.run(pull, operands)[0][0, 0])

    assert found[0, 0] == pytest.approx((gradient(1e-6) - gradient(-1e-6)) / 2e-6, rel=1e-6)


def test_whole_numbers_stay_whole(client: Client) -> None:
    evaluation = Evaluation(client.model("plain"), out=["y", "total"])
    assert evaluation.wrt == (0,)
    y, total = evaluation.run(VALUE, [X, np.array([[2**53 + 1]] * 4)])
    assert y.tolist() == (X * (2**53 + 1)).tolist()
    assert total.dtype == np.float64


@pytest.mark.parametrize(
    ("model", "arguments", "error", "text"),
    [
        ("waves", {"out": "z"}, InvalidInput, "no output 'z'; it has 'y', 'sum'"),
        ("waves", {"out": 2}, InvalidInput, "no output 2"),
        ("waves", {"out": 1.0}, InvalidInput, "no output 1.0"),
        ("waves", {"out": ["y", 0]}, InvalidInput, "one or more different outputs"),
        ("waves", {"wrt": "z"}, InvalidInput, "no input 'z'"),
        ("waves", {"wrt": []}, InvalidInput, "one or more different inputs"),
        ("plain", {"wrt": "n"}, InvalidInput, "'n' of model 'plain' is int64"),
        ("loose", {}, UnsupportedFeature, r"'x' of model 'loose' has shape \(-1,\)"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(
    client: Client, model: str, arguments: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Evaluation(client.model(model), **arguments)  # type: ignore[arg-type]  # by parametrize


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (
            OpQuery(OpQueryKind.PULL, (0,), wrt=(0,)),
            r"reverse mode .* needs gradient, which model 'plain'",
        ),
        (
            OpQuery(OpQueryKind.PUSH, along=(0,)),
            "forward mode .* needs apply_jacobian.*offers evaluate",
        ),
        (OpQuery(OpQueryKind.BEND, (0,), (0,), (0,)), "second derivatives need apply_hessian"),
    ],
)
def test_derivatives_that_a_model_lacks_are_named(
    client: Client, query: OpQuery, text: str
) -> None:
    evaluation = Evaluation(client.model("plain"))
    shapes = evaluation.operands(query)
    with pytest.raises(UnsupportedFeature, match=text):
        evaluation.run(query, [np.ones(shape) for shape in shapes])


def test_a_pickled_one_connects_again(client: Client) -> None:
    evaluation = Evaluation(client.model("waves"), None, "y", ["x"])
    other = pickle.loads(pickle.dumps(evaluation))
    assert (other.outs, other.wrt, other.single) == ((0,), (0,), True)
    operands = [X, np.ones((4, 1))]
    assert (other.run(VALUE, operands)[0] == evaluation.run(VALUE, operands)[0]).all()
    assert other.counts.calls == evaluation.counts.calls == 4


def test_a_forked_process_has_a_connection_of_its_own(client: Client) -> None:
    evaluation = Evaluation(client.model("density"))
    evaluation.run(VALUE, [X])
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        try:
            (y,) = evaluation.run(VALUE, [X + 1.0])
            os.write(writable, pickle.dumps((y, evaluation.counts)))
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        y, counts = pickle.load(pipe)
    os.waitpid(child, 0)
    assert y.tolist() == [-0.5 * (x @ x) for x in X + 1.0]
    assert counts.calls == 4, "those of the parent are not counted"
    assert evaluation.run(VALUE, [X + 1.0])[0].tolist() == y.tolist()


def test_threads_share_it(client: Client, counted: Counter[str]) -> None:
    evaluation = Evaluation(client.model("density"))
    with ThreadPoolExecutor(8) as pool:
        chains = [np.full((20, 2), float(i)) + np.arange(20.0)[:, None] / 64.0 for i in range(8)]
        found = list(pool.map(lambda x: evaluation.run(VALUE, [x])[0], chains, timeout=scaled(30)))
    for x, y in zip(chains, found, strict=True):
        assert y.tolist() == [-0.5 * (row @ row) for row in x]
    assert counted == {"density evaluate": 160}
    assert evaluation.counts.calls == 160


class NumpyOp(ServedOp):
    def _array(self, x: Any) -> Any:
        return np.asarray(x)

    def _type(self, floats: list[Any], arrays: list[Any]) -> Any:
        return np.result_type(*floats)

    def _value(self, dtype: Any, inputs: list[Any]) -> list[Any]:
        return [y.astype(dtype) for y in self.evaluation.run(OpQuery(OpQueryKind.VALUE), inputs)]


def test_an_op_is_pickled_with_its_model(client: Client) -> None:
    op = NumpyOp(Evaluation(client.model("density"), {"add": 1.0}))
    again = pickle.loads(pickle.dumps(op))
    assert isinstance(again, NumpyOp)
    assert again(np.zeros(2)) == 1.0
    assert (again.counts.calls, op.counts.calls) == (1, 0)


def test_an_op_says_what_it_is(client: Client) -> None:
    assert repr(NumpyOp(Evaluation(client.model("density")))) == "<NumpyOp of 'density'>"
