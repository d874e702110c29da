"""A log of repeated events: the first at once, then counts, each event in exactly one line."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.monitoring import repetitions
from farm.monitoring.repetitions import EVERY_S, MOST_COMPARED, Repetitions, cut, end_of, shape_of

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


# Texts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no root in [0.1, 2.5]", "no root in [-3, 1e-12]"),
        ("residual 1.5e+03 after 17 steps", "residual 0.25 after 1 steps"),
        ("residual 1.5e+03 after 17 steps", "residual .5 after 100_000 steps"),
        ("bad input [1. 2. 3.]", "bad input [4.5 5. 6. 7.]"),
        ("<Mesh object at 0x7f3a11c0>", "<Mesh object at 0x55d09be82210>"),
        ("cannot read /tmp/tmpab3f_x9q/mesh.h5", "cannot read /tmp/tmpzzzzzzzz/mesh.h5"),
        ("cannot read /scratch/job12/a/out.dat", "cannot read /scratch/job9931/a/out.dat"),
        (
            "no run 6f1d2c3b-1111-2222-3333-444455556666",
            "no run aabbccdd-9999-8888-7777-012345678901",
        ),
        ("token a3f9c2d1e7 is unknown", "token 9b8e7d6c5f is unknown"),
        (
            "lost 2 times, with n1/7-beef (exit code 3), n2.org/12-3d1f (exit code 3)",
            "lost 2 times, with n-3/99-0000 (exit code 3), n1/7-feed (exit code 3)",
        ),
        ("case17 diverged\nat step 3", "case4 diverged\nbadly"),
    ],
)
def test_failures_of_one_reason_have_one_shape(one: str, other: str) -> None:
    assert shape_of(one) == shape_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("exit code 1", "exit code 3"),
        ("signal 9", "signal 11"),
        ("the energy is nan", "the energy is 3.2"),
        ("input 1 is negative", "input 2 is negative"),
        ("cannot read /data/mesh.h5", "cannot read /data/table.csv"),
        ("no root", "no minimum"),
    ],
)
def test_other_reasons_have_other_shapes(one: str, other: str) -> None:
    assert shape_of(one) != shape_of(other)


def test_the_name_of_the_worker_is_left_out() -> None:
    texts = [f"worker {name} was killed: time limit of 2 s" for name in ("n1/7-ab", "n2/8-cd")]
    shapes = {shape_of(text, text.split()[1]) for text in texts}
    assert shapes == {"worker <worker> was killed: time limit of <N> s"}


def test_a_shape_is_bounded() -> None:
    assert len(shape_of("x" * 10 * MOST_COMPARED)) == MOST_COMPARED


def test_long_texts_are_cut_where_they_say_least() -> None:
    assert cut("abcdef", 4) == "abc\u2026"
    assert cut("abcd", 4) == "abcd"
    assert end_of("abcdef", 4) == "\u2026def"
    assert end_of("abcd", 4) == "abcd"
