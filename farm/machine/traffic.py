"""Counts of the bytes that a server of this machine has received and sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

Bytes = bytes | bytearray | memoryview


@dataclass(slots=True)
class Traffic:
    """Bytes in both directions since the start."""

    received: int = 0
    sent: int = 0

    def shown(self) -> dict[str, int]:
        """Return the counts as JSON data."""
        return asdict(self)


def size_of(frames: Iterable[Bytes]) -> int:
    """Return the bytes of all frames of a message."""
    size = 0
    for frame in frames:
        size += frame.nbytes if isinstance(frame, memoryview) else len(frame)
    return size
