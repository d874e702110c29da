"""A log of repeated events: the first at once, then counts, each event in exactly one line."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.monitoring import repetitions
from farm.monitoring.repetitions import EVERY_S, Repetitions

log = logging.getLogger("farm.test_repetitions")


class Repeats(Repetitions):
    """Keeps what is to be called later."""

    def __init__(self) -> None:
        super().__init__(log, "%d of others")
        self.due: list[Callable[[], None]] = []

    def report_later(self, seconds: float) -> None:
        assert seconds == EVERY_S
        self.due.append(self.report)


class Lines(logging.Handler):
    """Keeps lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.repeats = Repeats()
        self.due = self.repeats.due

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def happened(self, kind: int, count: int = 1) -> None:
        self.repeats.happened(kind, logging.WARNING, count, lambda n: f"{n} of {kind}")


@given(st.lists(st.one_of(st.integers(0, 30), st.none()), max_size=200))
def test_each_event_is_in_one_line(steps: list[int | None]) -> None:
    """A number is an event of this kind; None lets the time of a line come."""
    lines = Lines()
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        for step in steps:
            if step is not None:
                lines.happened(step)
            elif lines.due:
                lines.due.pop()()
            assert len(lines.due) <= 1
        while lines.due:
            lines.due.pop()()
    finally:
        log.removeHandler(lines)
    counted = sum(int(line.split()[0]) for line in lines.lines)
    assert counted == sum(step is not None for step in steps)
    turns = 2 + sum(step is None for step in steps)
    assert len(lines.lines) <= turns * (repetitions.MOST_KINDS + 1)


def test_a_level_that_is_not_logged_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines()
    with caplog.at_level(logging.ERROR, log.name):
        lines.happened(1)
    assert lines.due == []
