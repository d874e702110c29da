"""A pipe by which any thread or signal handler wakes a thread that waits for file descriptors."""

from __future__ import annotations

import contextlib
import os


class WakePipe:
    """Its `read_end` can be read when there is a wake-up; -1: it is closed."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(self._write_end, False)

    def wake(self) -> None:
        """Wake the thread that waits; it may be called in a signal handler."""
        with contextlib.suppress(BlockingIOError, OSError):  # full of wake-ups, or closed
            os.write(self._write_end, b"w")

    def clear(self) -> None:
        """Take out the wake-ups."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.read_end, 4096)

    def close(self) -> None:
        """Close both ends; a signal that comes later finds no other file under their numbers."""
        read_end, write_end = self.read_end, self._write_end
        self.read_end = self._write_end = -1
        if read_end >= 0:  # otherwise it is closed already
            os.close(write_end)
            os.close(read_end)
