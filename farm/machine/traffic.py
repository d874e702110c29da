"""Counts of the bytes that a server of this machine has received and sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Traffic:
    """Bytes in both directions since the start."""

    received: int = 0
    sent: int = 0

    def receives(self, count: int) -> None:
        """Count bytes that were received."""
        self.received += count

    def sends(self, count: int) -> None:
        """Count bytes that were sent."""
        self.sent += count

    def shown(self) -> dict[str, int]:
        """Return the counts as JSON data."""
        return asdict(self)
