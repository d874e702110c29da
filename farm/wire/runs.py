"""Groups of calls, and of answers, that differ only in their numbers, as `wire` encodes them.

Also splits a very large group into groups of a few hundred.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from farm.call import Call, Result
from farm.errors import FarmError
from farm.wire.arrays import Form, arrays_of, column_from, form_of, have_form, wrt_of

Outcome = Result | FarmError

A_PIECE = 256
"""Calls or answers decoded at once: they take less than a millisecond."""


def runs_of_calls(tasks: Iterable[tuple[int, Call]]) -> Iterator[list[tuple[int, Call]]]:
    """Yield the tasks in order, in runs that can be encoded as a group."""
    run: list[tuple[int, Call]] = []
    first: Call | None = None
    form: Form | None = None
    for task in tasks:
        call = task[1]
        if (
            first is not None
            and form is not None
            and call.rows is None
            and call.origin is None
            and call.step is None
            and call.operation is first.operation
            and call.model == first.model
            and call.config == first.config
            and (call.derivative is first.derivative or wrt_of(call) == wrt_of(first))
            and have_form(arrays_of(call), form)
        ):
            run.append(task)
            continue
        if run:
            yield run
        run, first = [task], call
        alone = call.rows is not None or call.origin is not None or call.step is not None
        form = None if alone else form_of(arrays_of(call))
    if run:
        yield run


def runs_of_answers(answers: Iterable[tuple[int, Outcome]]) -> Iterator[list[tuple[int, Outcome]]]:
    """Yield the answers in order, in runs that can be encoded as a group: all of them results."""
    run: list[tuple[int, Outcome]] = []
    worker, batch_rows = "", 1
    form: Form | None = None
    for answer in answers:
        outcome = answer[1]
        if (
            form is not None
            and isinstance(outcome, Result)
            and is_plain(outcome)
            and outcome.worker == worker
            and outcome.batch_rows == batch_rows
            and have_form(outcome.outputs, form)
        ):
            run.append(answer)
            continue
        if run:
            yield run
        run, form = [answer], None
        if isinstance(outcome, Result) and is_plain(outcome):
            worker, batch_rows = outcome.worker, outcome.batch_rows
            form = form_of(outcome.outputs)
    if run:
        yield run


def is_plain(result: Result) -> bool:
    """Whether the result has nothing special, so that it can share a group."""
    if result.info is not None or result.failed is not None:
        return False
    return not (result.more or result.copied or result.reused)


def pieces_of(group: list[Any], columns_at: int, lists_at: Sequence[int]) -> Iterator[list[Any]]:
    """Yield the group as groups of at most `A_PIECE` calls or answers.

    columns_at, lists_at: positions in it of the columns, and of the lists with one entry per call.
    A malformed group may be returned unchanged.
    """
    count = len(group[0])
    if count <= A_PIECE or not all(isinstance(group[i], list) for i in (*lists_at, columns_at)):
        yield group
        return
    for first in range(0, count, A_PIECE):
        piece = list(group)
        for i in lists_at:
            piece[i] = group[i][first : first + A_PIECE]
        piece[columns_at] = [column_from(where, first) for where in group[columns_at]]
        yield piece
