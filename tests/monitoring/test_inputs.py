"""Summaries of inputs: what they show, and that they stay short."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Array, Call, Operation
from farm.monitoring.inputs import LONGEST_SUMMARY, summary


def call(*inputs: Array, config: str = "{}", rows: int | None = None) -> Call:
    return Call("m", Operation.EVALUATE, inputs, config, rows=rows)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.array([0.1, -2.5e-8]), "[0.1, -2.5e-08]"),
        (np.array([1, 2]), "[1, 2]"),
        (np.array(3.5), "3.5"),
        (np.array([]), "[]"),
        (np.array([[True], [False]]), "[True, False] of shape [2, 1]"),
        (np.arange(100.0), "[0.0, 1.0, 2.0, 3.0, 4.0, \u2026, 98.0, 99.0] (100 values)"),
        (np.zeros((3, 5)), "[0.0, 0.0, 0.0, 0.0, 0.0, \u2026, 0.0, 0.0] (of shape [3, 5])"),
        (np.array([b"text\x1b[2J"], dtype=object), "[b'text\\x1b[2J']"),
    ],
)
def test_values_of_an_input(values: Array, text: str) -> None:
    assert summary(call(values), None) == f"input 0 = {text}"


def test_inputs_have_their_names_and_the_config() -> None:
    asked = call(np.ones(1), np.zeros(1), config='{"mesh":2}')
    expected = 'E = [1.0]; input 1 = [0.0]; config {"mesh":2}'
    assert summary(asked, None, ["E"]) == expected


def test_of_rows_the_one_that_failed_is_shown() -> None:
    asked = call(np.array([[1.0], [2.0], [3.0]]), rows=3)
    assert summary(asked, 1) == "input 0 = [2.0]"
    assert summary(asked, None) == "input 0 = [1.0]; the first of 3 rows that ran together"


def test_control_characters_are_escaped() -> None:
    assert summary(call(config='{"a":"\x1b"}'), None) == 'config {"a":"\\x1b"}'


def test_a_summary_is_short_however_much_was_sent() -> None:
    text = np.array([b"x" * 100_000] * 8, dtype=object)
    asked = call(*[text] * 50, config="c" * 100_000)
    assert len(summary(asked, None, ["n" * 10_000] * 50)) == LONGEST_SUMMARY
    assert summary(call(*[np.zeros(1)] * 50), None).endswith("; and 42 more inputs")
