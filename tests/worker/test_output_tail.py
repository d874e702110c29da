"""The last lines of a program's output."""

from __future__ import annotations

import io

import pytest

from farm.worker.output_tail import LAST_LINES, LONGEST, OutputTail


def test_last_lines_are_kept_and_all_are_copied(capfd: pytest.CaptureFixture[str]) -> None:
    tail = OutputTail()
    assert tail.last() == "it wrote nothing"
    stream = io.BytesIO(b"".join(b"line %d\n" % i for i in range(LAST_LINES + 2)) + b"\n\xff end ")
    tail.follow(stream).join()
    assert stream.closed
    assert tail.last() == "\N{REPLACEMENT CHARACTER} end"
    assert tail.text().splitlines()[0] == "line 3"
    assert "line 0\n" in capfd.readouterr().err


def test_long_lines_and_no_copy(capfd: pytest.CaptureFixture[str]) -> None:
    tail = OutputTail(copy=False)
    tail.take([b"y" * (LONGEST + 1)])
    assert tail.text() == "y" * LONGEST
    assert capfd.readouterr().err == ""
