"""Bounds of a client's message: those slow to parse are refused, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.call import Call, Operation
from farm.errors import InvalidRequest
from farm.wire import messages as wire
from farm.wire.bounds import LONGEST_JSON, MOST_LISTS, MOST_VALUES, QUICK_BYTES, check
from farm.wire.messages import Kind


def message(data: Any) -> bytes:
    (frame,) = wire.encode(Kind.CANCEL, data)
    return bytes(frame)


@pytest.mark.parametrize(
    "data",
    [
        [1] * (MOST_VALUES + 1),
        [[]] * (MOST_LISTS - 1),
        ["x" * (LONGEST_JSON - 4)],
        ["[" * (MOST_LISTS + 9)],
        [",{" * (MOST_VALUES + 9)],
        ['"\\",[' * MOST_LISTS],
        ["\\" * 1000 + '"[' * MOST_LISTS, "[" * 9],
    ],
    ids=["values", "lists", "long", "brackets", "commas", "quotes", "backslashes"],
)
def test_what_is_within_bounds(data: Any) -> None:
    check(message(data))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ([1] * (MOST_VALUES + 2), "500001 values"),
        ([[]] * MOST_LISTS, "125001 lists and objects"),
        ([{}] * MOST_LISTS, "125001 lists and objects"),
        (["[,", *[[]] * MOST_LISTS], "125001 lists and objects"),
        (["x" * (LONGEST_JSON - 3)], "8388609 bytes of JSON"),
    ],
    ids=["values", "lists", "objects", "lists beside text", "long"],
)
def test_what_is_not(data: Any, what: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{what}; a client may send"):
        check(message(data))


def test_arrays_do_not_count() -> None:
    rows = np.full((512, 2048), ord("["), np.uint8)
    calls = [(i, Call("m", Operation.EVALUATE, (row,), "{}")) for i, row in enumerate(rows)]
    frame, *_ = wire.encode_calls(calls)
    assert len(frame) > QUICK_BYTES
    assert bytes(frame).count(b"[") > MOST_LISTS
    check(frame)
