"""What a model process runs since when, in memory that it shares with its supervisor."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

TASKS_KEPT = 1000
"""Task ids there is room for; of a larger batch only the number is kept."""

VERSION, SINCE, COUNT, ROW, TASKS = range(5)
"""Positions of 64-bit words: version, start in ns of the monotonic clock, tasks, row, their ids."""

SIZE = 8 * (TASKS + TASKS_KEPT)


@dataclass(frozen=True, slots=True)
class Running:
    """The tasks of the model call that runs, and since when; no tasks: the process is idle.

    tasks: None when there are more than the record has room for.
    since_s: on the monotonic clock, which is the same for all processes of a machine.
    row: of a run of rows the one that runs, since then.
    """

    tasks: tuple[int, ...] | None
    since_s: float
    row: int = 0


class RunRecord:
    """One writer, the model process, tells in under a microsecond; its supervisor reads any time.

    The version is odd while the writer writes, so a reader sees when it has to read again.
    """

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is that of a record made by `create`, as inherited by the child."""
        self.descriptor = descriptor
        self._words = memoryview(mmap.mmap(descriptor, SIZE)).cast("q")

    @classmethod
    def create(cls) -> RunRecord:
        """A record that says that nothing runs."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("farm-running")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.write(descriptor, bytes(SIZE))
        return cls(descriptor)

    def write(self, tasks: Sequence[int], row: int = 0, /) -> None:
        """These tasks begin now, or this row of one; none: the process is idle."""
        words = self._words
        count = len(tasks)
        words[VERSION] += 1
        words[SINCE] = time.monotonic_ns()
        words[COUNT] = count
        words[ROW] = row
        if count == 1:
            words[TASKS] = tasks[0]
        elif count <= TASKS_KEPT:
            words[TASKS : TASKS + count] = memoryview(array("q", tasks))
        words[VERSION] += 1

    def read(self) -> Running | None:
        """What runs; None when that cannot be told: the process died while it wrote."""
        words = self._words
        for _ in range(100):
            version = words[VERSION]
            if version % 2:
                continue
            since_s = words[SINCE] / 1e9
            count = words[COUNT]
            row = words[ROW]
            tasks = tuple(words[TASKS : TASKS + count]) if count <= TASKS_KEPT else None
            if words[VERSION] == version:
                return Running(tasks, since_s, row)
        return None

    def close(self) -> None:
        """Close the descriptor; what was written can still be read."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
