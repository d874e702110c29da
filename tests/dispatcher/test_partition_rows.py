"""Rows of calls and results are taken out and put together."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.dispatcher.partition import check_answer, some_rows, stacked
from farm.errors import InvalidOutput

CALL = Call("m", Operation.EVALUATE, (np.arange(6.0).reshape(3, 2), np.arange(3)), rows=3)


def test_some_rows_of_a_call() -> None:
    for rows in (slice(1, None), [1, 2]):
        some = some_rows(CALL, rows)
        assert some.rows == 2
        assert [array.tolist() for array in some.inputs] == [[[2.0, 3.0], [4.0, 5.0]], [1, 2]]


def test_results_of_rows() -> None:
    first, second = Result((np.ones(2), np.array(5.0)), 0.25), Result((np.zeros(2), np.array(6.0)))
    both = stacked([first, second])
    assert [array.tolist() for array in both.outputs] == [[[1, 1], [0, 0]], [5.0, 6.0]]
    assert both.run_time_s == 0.25


def test_an_answer_has_a_row_for_each_that_was_asked() -> None:
    check_answer(Result((np.ones((3, 2)), np.ones(3))), 3)
    for wrong in (np.ones((2, 2)), np.array(5.0)):
        with pytest.raises(InvalidOutput, match="the worker's answer to 3 rows has the shape"):
            check_answer(Result((np.ones((3, 2)), wrong)), 3)
