"""Places of tensors: the parameters that name them, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import InvalidInput
from farm.protocols.kserve.shared_memory.places import Place, place_of, whole_number

REGION = {"shared_memory_region": "r"}
BOTH = {**REGION, "shared_memory_byte_size": 64}


def test_a_place_is_a_region_an_offset_and_a_size() -> None:
    assert place_of(BOTH, "x") == Place("r", 0, 64)
    assert place_of({**BOTH, "shared_memory_offset": 8, "other": 1}, "x") == Place("r", 8, 64)
    assert place_of({"binary_data_size": 64}, "x") is None
    assert [whole_number(size, "x") for size in (0, 2**63 - 1)] == [0, 2**63 - 1]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (REGION, "shared_memory_region without shared_memory_byte_size"),
        ({"shared_memory_byte_size": 1}, "can not be specified without 'shared_memory_region'"),
        ({"shared_memory_offset": 1}, "can not be specified without 'shared_memory_region'"),
        ({**BOTH, "shared_memory_region": 3}, "shared_memory_region of x is 3; expected a"),
        ({**BOTH, "shared_memory_region": None}, "is None; expected a region's name"),
    ],
)
def test_parameters_that_name_no_place(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        place_of(parameters, "x")


@pytest.mark.parametrize("value", [-1, 2**63, 2**64, 10**30, 1.0, True, "8", None, [8], {}])
@pytest.mark.parametrize("name", ["shared_memory_offset", "shared_memory_byte_size"])
def test_numbers_that_are_no_sizes(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"{name} of x is .*; expected a whole number from 0"):
        place_of({**BOTH, name: value}, "x")
