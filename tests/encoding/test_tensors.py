"""Shapes of clients' tensors, and their values in messages."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.encoding.tensors import LONGEST_ANSWER, longest_answer, shaped, shown
from farm.errors import InvalidInput


def test_a_tensor_has_as_many_elements_as_its_shape() -> None:
    assert shaped(np.zeros(6), (2, 3), "x").shape == (2, 3)
    assert shaped(np.zeros(0), (3, 0), "x").shape == (3, 0)
    with pytest.raises(InvalidInput, match=r"x has 8 elements; its shape \[2, 3\] has 6"):
        shaped(np.zeros(8), (2, 3), "x")


def test_sizes_that_are_too_large_beside_a_zero() -> None:
    with pytest.raises(InvalidInput, match="shape of x is too large"):
        shaped(np.zeros(0), (2**63 - 1, 2**63 - 1, 0), "x")


def test_long_values_are_shortened_in_messages() -> None:
    assert shown("abc") == "'abc'"
    assert shown({"a": 1}) == "{'a': 1}"
    for value in ("x" * 1000, list(range(1000)), {"a": "x" * 1000}):
        assert len(shown(value)) == 80
        assert shown(value).endswith("...")


def test_the_longest_answer_is_that_of_the_sizes() -> None:
    def longest(*shape: int, dtype: str = "float64", rows: int | None = None) -> int:
        tensor = TensorInfo("x", shape, dtype)
        return longest_answer(ModelInfo("m", (tensor,), (tensor,)), rows)

    small = longest(3)
    text = ", ".join([repr(-1.2345678901234567e-300)] * 6)
    assert len(text) < small - 2**20 < 8 * len(text)
    assert longest(3, rows=1000) - 2**20 == 1000 * (small - 2**20)
    assert longest(10**9) == longest(-1) == longest(1, dtype="bytes") == LONGEST_ANSWER
