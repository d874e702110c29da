"""Counts of bytes."""

from __future__ import annotations

from farm.machine.traffic import Traffic


def test_counts_are_json_data() -> None:
    assert Traffic(received=3).shown() == {"received": 3, "sent": 0}
