"""Texts: which failures count as one reason, and which do not."""

from __future__ import annotations

import pytest

from farm.monitoring.repetitions import MOST_COMPARED, cut, end_of, shape_of


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
