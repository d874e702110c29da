"""The calls and answers of a message that share a group."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.errors import ModelFailed
from farm.wire import messages as wire
from farm.wire.runs import A_PIECE, Outcome, is_plain, pieces_of, runs_of_answers, runs_of_calls
from tests.wire.test_messages import check_calls


def call(size: int = 1, *, rows: int | None = None, config: str = "{}") -> Call:
    shape = (size,) if rows is None else (rows, size)
    return Call("m", Operation.EVALUATE, (np.ones(shape),), config, rows=rows)


def test_calls_of_one_form_are_together() -> None:
    calls = [call(), call(), call(2), call(rows=1), call(rows=1), call(config='{"a":1}'), call()]
    runs = [[task_id for task_id, _ in run] for run in runs_of_calls(enumerate(calls))]
    assert runs == [[0, 1], [2], [3], [4], [5], [6]]


def test_answers_of_one_form_are_together() -> None:
    plain = Result((np.ones(1),))
    failed = Result((np.ones(1),), failed=ModelFailed("diverged"))
    error = ModelFailed("diverged")
    other = Result((np.ones(2),))
    answers: list[Outcome] = [plain, plain, failed, failed, plain, error, error, other, other]
    runs = [[task_id for task_id, _ in run] for run in runs_of_answers(enumerate(answers))]
    assert runs == [[0, 1], [2], [3], [4], [5], [6], [7, 8]]


def test_what_is_more_than_numbers_is_not_plain() -> None:
    assert is_plain(Result((np.ones(1),), worker="w", batch_rows=3))
    assert not is_plain(Result((np.ones(1),), more=True))
    assert not is_plain(Result((), failed=ModelFailed("diverged")))


@pytest.mark.parametrize("count", [1, A_PIECE, A_PIECE + 1, 10 * A_PIECE + 7])
def test_very_many_calls_are_read_some_at_a_time(count: int) -> None:
    calls = [
        Call("m", Operation.EVALUATE, (np.array([number, 1.0]), np.array([-number], np.int16)))
        for number in range(count)
    ]
    _, some = wire.decode_some_calls(wire.decode(wire.encode_calls(enumerate(calls))))
    pieces = list(some)
    assert max(map(len, pieces)) <= A_PIECE
    read = [task for piece in pieces for task in piece]
    assert [task_id for task_id, _ in read] == list(range(count))
    check_calls(calls, [call for _, call in read])


@pytest.mark.parametrize("alike", [True, False])
def test_very_many_answers_are_read_some_at_a_time(alike: bool) -> None:
    count = 3 * A_PIECE + 5
    answers: list[tuple[int, Outcome]] = [
        (number, Result((np.full(1 if alike else 1 + number % 2, number),), number / 8))
        for number in range(count)
    ]
    answers += [(count + number, ModelFailed(str(number))) for number in range(count)]
    pieces = list(wire.decode_some_answers(wire.decode(wire.encode_answers(answers))))
    assert max(map(len, pieces)) <= A_PIECE
    read = dict(answer for piece in pieces for answer in piece)
    for number in range(count):
        result, error = read[number], read[count + number]
        assert isinstance(result, Result)
        assert (result.outputs[0][0], result.run_time_s) == (number, number / 8)
        assert str(error) == str(number)


def test_very_many_ids_are_read_some_at_a_time() -> None:
    ids = list(range(5 * A_PIECE))
    message = wire.decode(wire.encode(wire.Kind.CANCEL, ids))
    assert [len(some) for some in wire.decode_some_ids(message)] == [A_PIECE] * 5
    assert wire.decode_ids(message) == ids


def test_a_malformed_group_comes_as_it_is() -> None:
    for group in ([list(range(1000)), "m", "evaluate", 7, "{}"], [[1], 2]):
        assert list(pieces_of(group, 3, (0,))) == [group]
    group = [list(range(A_PIECE + 1)), "m", "evaluate", [["?", 5], 3], "{}"]
    assert [piece[3] for piece in pieces_of(group, 3, (0,))] == [[["?", 5], 3]] * 2
