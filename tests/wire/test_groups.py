"""Groups of calls and answers as the rows of one call or result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.errors import InvalidRequest, ModelFailed
from farm.wire import messages as wire
from farm.wire.arrays import INLINE_BYTES
from farm.wire.groups import CallGroup, groupable, row_results
from tests.wire.test_messages import check_calls


def calls(count: int, operation: Operation = Operation.EVALUATE) -> list[tuple[int, Call]]:
    return [
        (7 + i, Call("m", operation, (np.array([i, 2.0]), np.array([[i]], np.int16)), '{"a":1}'))
        for i in range(count)
    ]


def group_of(tasks: list[tuple[int, Call]]) -> Any:
    _, some = wire.decode_some_calls(wire.decode(wire.encode_calls(tasks)))
    return next(each for each in some if each)


def test_similar_evaluations_are_read_as_rows_and_one_by_one() -> None:
    tasks = calls(9)
    group = group_of(tasks)
    assert isinstance(group, CallGroup)
    assert group.ids == [task_id for task_id, _ in tasks]
    assert (group.call.rows, len(group), group.call.config) == (9, 9, '{"a":1}')
    assert [array.shape for array in group.call.inputs] == [(9, 2), (9, 1, 1)]
    assert [task_id for task_id, _ in group] == group.ids
    check_calls([call for _, call in tasks], [call for _, call in group])


def test_other_operations_are_no_rows() -> None:
    assert isinstance(group_of(calls(9, Operation.COST)), list)


@pytest.mark.parametrize("ids", [[1, 2, 3, "4"], [1, 2, 3, True], [1, 2, 3, 4.0]])
def test_ids_are_whole_numbers(ids: list[Any]) -> None:
    tasks = calls(4)
    message = wire.decode(wire.encode_calls(tasks))
    message.data[1][0][0] = ids
    with pytest.raises(InvalidRequest, match="expected a whole number"):
        wire.decode_calls(message)


def test_a_group_for_a_model_without_a_name_is_an_error_for_each() -> None:
    message = wire.decode(wire.encode_calls(calls(4)))
    message.data[1][0][1] = 5
    _, read = wire.decode_calls(message)
    assert [(i, type(call)) for i, call in read] == [(7 + i, InvalidRequest) for i in range(4)]


def rows(count: int, **more: Any) -> Result:
    y = np.arange(2.0 * count).reshape(count, 2)
    return Result((y, y[:, :1].astype(np.float32)), **more)


@pytest.mark.parametrize("times", [(0.5, 0.25, 0.125), ()])
def test_rows_of_a_result_are_read_as_the_results_of_each(times: tuple[float, ...]) -> None:
    result = rows(3, run_time_s=0.875, worker="w", queue_time_s=2.0, idle_s=0.5, row_times_s=times)
    read = wire.decode_answers(wire.decode(wire.encode_answers([], [([5, 6, 7], result)])))
    assert [i for i, _ in read] == [5, 6, 7]
    each_s = times or (0.875 / 3,) * 3
    for k, ((_, one), same) in enumerate(zip(read, row_results(result, 3), strict=True)):
        assert isinstance(one, Result)
        for found in (one, same):
            assert [y.tolist() for y in found.outputs] == [[2.0 * k, 2.0 * k + 1], [2.0 * k]]
            assert [y.dtype for y in found.outputs] == [np.float64, np.float32]
            assert found.run_time_s == each_s[k]
            assert found.queue_time_s == pytest.approx(2.0 + sum(each_s[:k]))
            assert (found.worker, found.idle_s) == ("w", -1.0 if k else 0.5)


def test_a_group_stands_beside_other_answers() -> None:
    frames = wire.encode_answers([(1, ModelFailed("no")), (2, rows(1))], [([5, 6], rows(2))])
    read = dict(wire.decode_answers(wire.decode(frames)))
    assert sorted(read) == [1, 2, 5, 6]
    assert str(read[1]) == "no"


@pytest.mark.parametrize(
    "result",
    [
        Result(()),
        Result((np.ones(3),)),
        Result((np.ones((3, 0)),)),
        Result((np.ones((3, 1 + INLINE_BYTES // 8)),)),
        Result((np.array([[b"a"], [b"b"], [b"c"]], object),)),
        Result((np.ones((3, 1)),), copied=True),
        Result((np.ones((3, 1)),), reused=True),
    ],
)
def test_special_rows_are_no_group_but_have_results(result: Result) -> None:
    assert not groupable(result)
    found = row_results(result, 3)
    assert len(found) == 3
    for k, one in enumerate(found):
        for y, rows in zip(one.outputs, result.outputs, strict=True):
            assert np.array_equal(y, rows[k])
        assert (one.copied, one.reused) == (result.copied, result.reused)
        assert all(isinstance(y, np.ndarray) for y in one.outputs)


def test_the_run_times_of_rows_travel_with_them() -> None:
    sent = rows(3, run_time_s=0.875, row_times_s=(0.5, 0.25, 0.125))
    failed = replace(sent, failed=ModelFailed("x"))
    reused = replace(sent, reused=True)
    read = wire.decode_answers(
        wire.decode(wire.encode_answers([(1, sent), (2, failed), (3, reused)]))
    )
    for i, one in read:
        assert isinstance(one, Result)
        assert (one.copied, one.reused, one.failed is None) == (False, i == 3, i != 2)
        assert (one.run_time_s, one.row_times_s) == (0.875, (0.5, 0.25, 0.125))


@pytest.mark.parametrize("times", [[1.0, -1.0], [1.0, "2"], [1e300, 1.0], [[1.0]], 7, [None]])
def test_run_times_that_cannot_be_are_an_error_in_place(times: list[Any]) -> None:
    timed = rows(2, row_times_s=(0.5, 0.25))
    message = wire.decode(wire.encode_answers([(1, timed), (2, timed)]))
    assert message.data[0][0][-1] == [0.5, 0.25]
    message.data[0][0][-1] = times
    read = dict(wire.decode_answers(message))
    assert "malformed answer" in str(read[1])
    assert isinstance(read[2], Result)
