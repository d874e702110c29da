"""The memory of an op: exact bytes, and bounds in points and bytes."""

from __future__ import annotations

import numpy as np

from farm.ops.asking import POINTS_PER_CHAIN, Repeats

VALUE = ("evaluate", b"", b"")


def point(number: float) -> bytes:
    return np.array([number]).tobytes()


def test_answers_are_found_by_exact_bytes_and_question() -> None:
    repeats = Repeats()
    repeats.keep(point(0.0), VALUE, np.ones(1))
    assert repeats.find(point(0.0), VALUE) is not None
    assert repeats.find(point(-0.0), VALUE) is None
    assert repeats.find(point(np.nextafter(0.0, 1.0)), VALUE) is None
    assert repeats.find(point(0.0), ("gradient", 0, 0, b"", b"")) is None


def test_as_many_points_are_kept_as_chains_need() -> None:
    repeats = Repeats()
    for number in range(2 * POINTS_PER_CHAIN):
        repeats.keep(point(number), VALUE, np.ones(1))
    assert len(repeats) == POINTS_PER_CHAIN
    repeats.expect(3)
    repeats.expect(2)
    for number in range(9 * POINTS_PER_CHAIN):
        repeats.keep(point(number), VALUE, np.ones(1))
    assert len(repeats) == 3 * POINTS_PER_CHAIN


def test_the_point_that_was_not_used_for_longest_is_forgotten() -> None:
    repeats = Repeats()
    for number in range(POINTS_PER_CHAIN):
        repeats.keep(point(number), VALUE, np.ones(1))
    assert repeats.find(point(0), VALUE) is not None
    repeats.keep(point(-1), VALUE, np.ones(1))
    assert repeats.find(point(0), VALUE) is not None
    assert repeats.find(point(1), VALUE) is None


def test_long_answers_are_bounded_in_bytes() -> None:
    repeats = Repeats(most_bytes=100_000)
    for number in range(100):
        repeats.keep(point(number), VALUE, (np.ones(1000), np.ones(1000)))
    assert len(repeats) == 6, "of 16,000 bytes each"
    repeats.keep(point(99), ("gradient", np.ones(10_000).tobytes()), np.ones(1))
    assert len(repeats) < 6, "the vectors of a question count"
    repeats.keep(point(100), VALUE, np.ones(20_000))
    assert len(repeats) == 0, "an answer longer than the bound is not kept"
    for number in range(5):
        repeats.keep(point(number), VALUE, np.ones(1))
    assert len(repeats) == 5, "what was forgotten does not count any more"


def test_long_points_are_bounded_in_bytes() -> None:
    repeats = Repeats(most_bytes=100_000)
    for number in range(100):
        repeats.keep(np.full(1250, float(number)).tobytes(), VALUE, np.ones(1))
    assert len(repeats) == 9, "of 10,400 bytes each"
