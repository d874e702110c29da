"""What the ops of all frameworks have in common."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from farm.client import Client
from farm.ops.evaluation import Evaluation, OpQuery, OpQueryKind, ServedOp


class NumpyOp(ServedOp):
    def __call__(self, *inputs: Any) -> Any:
        return self.evaluation.run(OpQuery(OpQueryKind.VALUE), inputs)[0]


def test_an_op_is_pickled_with_its_model(client: Client) -> None:
    op = NumpyOp(Evaluation(client.model("density"), {"add": 1.0}))
    again = pickle.loads(pickle.dumps(op))
    assert isinstance(again, NumpyOp)
    assert again(np.zeros(2)) == 1.0
    assert (again.counts.calls, op.counts.calls) == (1, 0)


def test_an_op_says_what_it_is(client: Client) -> None:
    assert repr(NumpyOp(Evaluation(client.model("density")))) == "<NumpyOp of 'density'>"
