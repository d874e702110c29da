"""Counts of bytes."""

from __future__ import annotations

import numpy as np

from farm.machine.traffic import Traffic


def test_sizes_are_bytes_whatever_the_shape() -> None:
    table = np.zeros((3, 5)).data
    assert len(table) == 3
    traffic = Traffic()
    traffic.sends_message([b"ab", bytearray(3), table])
    traffic.receives_message([table])
    traffic.receives_message([])
    assert traffic.shown() == {"received": 120, "sent": 2 + 3 + 120}


def test_counts_are_json_data() -> None:
    assert Traffic(received=3).shown() == {"received": 3, "sent": 0}
