"""A request that is decoded elsewhere: its continuation, and its cancellation at each stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farm.bodies.body import HEAVY_BYTES
from farm.bodies.readers import Reads
from farm.bodies.reading import MANY_TEXTS, RAW_BYTES, Reading, is_long, is_long_raw
from farm.call import Hints, Result


class Recorder(Reads):
    """A pool that runs its jobs when the test says so."""

    def __init__(self) -> None:
        self.undone: list[str] = []
        self.done: Callable[[Any], None]

    def execute(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        hints: Hints,
        done: Callable[[Any], None],
    ) -> Callable[[], None]:
        self.done = done
        return lambda: self.undone.append(f"reading for {hints.client}")


def test_what_was_read_is_gone_on_with() -> None:
    pool, failures = Recorder(), list[Exception]()

    def go(value: str) -> Callable[[], None]:
        return lambda: pool.undone.append(value)

    cancel = Reading(go, failures.append).begin(pool, len, b"", hints=Hints("me"))
    cancel()
    assert pool.undone == ["reading for me"]
    pool.done("the call")
    cancel()
    assert pool.undone[1:] == ["the call"]
    assert failures == []


@pytest.mark.parametrize("where", ["codec", "go"])
def test_what_is_raised_is_a_failure(where: str) -> None:
    pool, failures, error = Recorder(), list[Exception](), ValueError("no")

    def go(value: Exception) -> None:
        raise value

    cancel = Reading(go, failures.append).begin(pool, len, b"", hints=Hints("me"))
    if where == "codec":
        pool.done(error)
    else:
        reading = Reading(lambda value: go(error), failures.append)
        cancel = reading.begin(pool, len, b"", hints=Hints("me"))
        pool.done("value")
    cancel()
    assert failures == [error]
    assert pool.undone == []


def test_which_answers_are_long() -> None:
    numbers = np.zeros(HEAVY_BYTES // 8)
    assert not is_long(Result((numbers,)))
    assert is_long(Result((numbers, np.zeros(1))))
    texts = np.array([b"abc"] * (MANY_TEXTS + 1), object)
    assert is_long(Result((texts,)))
    assert not is_long(Result((texts[1:],)))
    assert is_long(Result((np.array([bytes(HEAVY_BYTES)], object),)))


def test_which_raw_answers_are_long() -> None:
    numbers = np.zeros(RAW_BYTES // 8)
    assert is_long(Result((numbers,)))
    assert not is_long_raw(Result((numbers,)))
    assert is_long_raw(Result((numbers, np.zeros(1))))
    assert is_long_raw(Result((np.zeros(1), np.array([b"abc"] * (MANY_TEXTS + 1), object))))
