"""The values of sequences: ids, steps, limits, and the state that a model gets."""

from __future__ import annotations

from typing import Any

import pytest

from farm.sequences import (
    LARGEST_ID,
    LONGEST_ID,
    Sequence,
    SequenceLimits,
    SequenceStep,
    checked_id,
    limits_of,
    needs_start,
    step_of_row,
)


@pytest.mark.parametrize("value", [1, LARGEST_ID, "x", "7", "x" * LONGEST_ID, "é" * 64])
def test_ids_pass_unchanged(value: int | str) -> None:
    assert checked_id(value) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0; expected a whole number from 1 to 18446744073709551615"),
        (-1, "expected a whole number from 1"),
        (LARGEST_ID + 1, "18446744073709551616; expected"),
        ("", "a text of 0 bytes; expected 1 to 128 bytes"),
        ("x" * (LONGEST_ID + 1), "a text of 129 bytes"),
        ("é" * 65, "a text of 130 bytes"),
    ],
)
def test_ids_out_of_range_are_refused(value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        checked_id(value)


@pytest.mark.parametrize("value", [True, 1.0, None, ["x"], b"x"])
def test_other_values_are_no_ids(value: Any) -> None:
    with pytest.raises(TypeError, match="expected a whole number or a text"):
        checked_id(value)


def test_rows_are_read_as_steps() -> None:
    assert step_of_row([7, True, False]) == SequenceStep(7, start=True)
    assert step_of_row(["x", False, True]) == SequenceStep("x", end=True)


@pytest.mark.parametrize("row", [[7], [7, 1, 0], [0, True, True], [7, True, None], 7, None])
def test_other_rows_are_no_steps(row: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        step_of_row(row)


def test_limits_are_read() -> None:
    assert limits_of(None) is None
    assert limits_of([2, 3]) == SequenceLimits(2, 3.0)


@pytest.mark.parametrize("data", [[0, 1.0], [True, 1.0], [2, 0], [2, float("nan")], [2, "x"], [2]])
def test_other_limits_are_refused(data: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        limits_of(data)


def test_a_state_is_an_empty_dictionary_at_first() -> None:
    state = Sequence("x")
    assert state == {}
    assert (state.id, state.start, state.end) == ("x", True, False)
    state["total"] = 1.0
    assert state == {"total": 1.0}


def test_the_text_for_an_unknown_sequence_is_tritons() -> None:
    assert needs_start(7, "m") == (
        "inference request for sequence 7 to model 'm' must specify the START flag on the first "
        "request of the sequence"
    )
