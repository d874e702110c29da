"""The inputs and outputs that a model declares."""

from __future__ import annotations

from typing import Any

import pytest

import farm
from farm.call import TensorInfo
from farm.declared import tensors_of
from farm.errors import InvalidOutput


def test_shapes_are_numbers_sequences_or_tensors() -> None:
    pressure = farm.tensor((2, -1), "float32", unit="Pa", description="at each node")
    assert tensors_of({"a": 3, "b": [2, 2], "c": (), "p": pressure}, "input") == (
        TensorInfo("a", (3,)),
        TensorInfo("b", (2, 2)),
        TensorInfo("c", ()),
        TensorInfo("p", (2, -1), "float32", "Pa", "at each node"),
    )


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ([("a", 3)], "outputs are declared as list; expected a dict name -> shape"),
        ({"a": "three"}, "output 'a' is declared with shape 'three'"),
        ({"a": -2}, "output 'a' is declared with shape -2"),
        ({"a": (1, None)}, r"output 'a' is declared with shape \(1, None\)"),
    ],
)
def test_other_shapes_are_refused(declared: Any, text: str) -> None:
    with pytest.raises(InvalidOutput, match=text):
        tensors_of(declared, "output")
