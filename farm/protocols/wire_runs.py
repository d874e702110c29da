"""Which calls, and which answers, of a message differ in their numbers only: `wire` groups them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from farm.call import Call, Result
from farm.errors import FarmError
from farm.protocols.wire_arrays import Form, form_of, have_form

Outcome = Result | FarmError


def runs_of_calls(tasks: Iterable[tuple[int, Call]]) -> Iterator[list[tuple[int, Call]]]:
    """The tasks in their order, those together that a group can tell."""
    run: list[tuple[int, Call]] = []
    first: Call | None = None
    form: Form | None = None
    for task in tasks:
        call = task[1]
        plain = call.derivative is None and call.rows is None
        if (
            first is not None
            and form is not None
            and plain
            and call.operation is first.operation
            and call.model == first.model
            and call.config == first.config
            and have_form(call.inputs, form)
        ):
            run.append(task)
            continue
        if run:
            yield run
        run, first = [task], call
        form = form_of(call.inputs) if plain else None
    if run:
        yield run


def runs_of_answers(
    answers: Iterable[tuple[int, Outcome]],
) -> Iterator[list[tuple[int, Outcome]]]:
    """The answers in their order, those together that a group can tell: all of them results."""
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
    """Whether nothing but its numbers makes an answer unlike others."""
    return result.info is None and not result.more and result.failed is None
