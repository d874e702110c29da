"""Counts of bytes."""

from __future__ import annotations

import numpy as np

from farm.machine.traffic import Traffic, size_of


def test_sizes_are_bytes_whatever_the_shape() -> None:
    table = np.zeros((3, 5)).data
    assert len(table) == 3
    assert size_of([b"ab", bytearray(3), table]) == 2 + 3 + 120
    assert size_of([]) == 0


def test_counts_are_json_data() -> None:
    assert Traffic(received=3).shown() == {"received": 3, "sent": 0}
