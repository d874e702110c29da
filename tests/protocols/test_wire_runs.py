"""Which calls and answers of a message are told together."""

from __future__ import annotations

import numpy as np

from farm.call import Call, Operation, Result
from farm.errors import ModelFailed
from farm.protocols.wire_runs import Outcome, is_plain, runs_of_answers, runs_of_calls


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
