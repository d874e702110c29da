"""Places of tensors in regions of shared memory, as the parameters of a request name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from farm.encoding.tensors import shown
from farm.errors import InvalidInput

REGION = "shared_memory_region"
OFFSET = "shared_memory_offset"
BYTE_SIZE = "shared_memory_byte_size"

LARGEST = 2**63 - 1


class Place(NamedTuple):
    """A part of a region. offset: from the region's start, in bytes.

    shape: of the tensor that an answer has there, None before it is written.
    """

    region: str
    offset: int
    byte_size: int
    shape: tuple[int, ...] | None = None


def place_of(parameters: Mapping[str, Any], where: str) -> Place | None:
    """Return the place that a tensor's parameters name, if they do. Raises InvalidInput."""
    if REGION not in parameters:
        for name in (OFFSET, BYTE_SIZE):
            if name in parameters:
                raise InvalidInput(
                    f"'{name}' can not be specified without '{REGION}' parameter for {where}"
                )
        return None
    region = parameters[REGION]
    if type(region) is not str:
        raise InvalidInput(f"{REGION} of {where} is {shown(region)}; expected a region's name")
    if BYTE_SIZE not in parameters:
        raise InvalidInput(f"{where} has {REGION} without {BYTE_SIZE}; expected both")
    offset = whole_number(parameters.get(OFFSET, 0), f"{OFFSET} of {where}")
    size = whole_number(parameters[BYTE_SIZE], f"{BYTE_SIZE} of {where}")
    return Place(region, offset, size)


def whole_number(value: Any, where: str) -> int:
    """Return a size or an offset. Raises InvalidInput for anything but 0 to 2^63-1."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise InvalidInput(f"{where} is {shown(value)}; expected a whole number from 0 to 2^63-1")
    return value
