"""The running tasks of a model process, in memory that it shares with its supervisor."""

from __future__ import annotations

import mmap
import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from farm.machine.memory_file import new_file

TASKS_KEPT = 1000
"""Capacity for task ids; of a larger batch only the number is kept."""

VERSION, SINCE, COUNT, ROW, TASKS = range(5)
"""Positions of 64-bit words: version, start in ns of the monotonic clock, tasks, row, their ids."""

SIZE = 8 * (TASKS + TASKS_KEPT)

OWN_MEMORY = -1
"""In place of a descriptor: no other process reads the record."""


@dataclass(frozen=True, slots=True)
class Running:
    """The tasks of the running model call, and its start time; no tasks: the process is idle.

    tasks: None if there are more than the record has room for.
    since_s: on the monotonic clock, which is the same for all processes of a machine.
    row: for a run of rows, the running row; since_s is then its start.
    """

    tasks: tuple[int, ...] | None
    since_s: float
    row: int = 0


class RunRecord:
    """Written by one model process, in under a microsecond; its supervisor can read it at any time.

    The version is odd during a write, so that a reader knows that it has to read again.
    """

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of a record made by `create`, as inherited by the child; or OWN_MEMORY."""
        self.descriptor = descriptor
        self._words = memoryview(mmap.mmap(descriptor, SIZE)).cast("q")

    @classmethod
    def create(cls) -> RunRecord:
        """Create a record in which nothing runs."""
        descriptor = new_file()
        os.write(descriptor, bytes(SIZE))
        return cls(descriptor)

    def runs(self, tasks: Sequence[int], row: int = 0, /) -> None:
        """Record that these tasks begin now, or this row of one; empty: the process is idle."""
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
        """Return the running tasks; None if unreadable because the process died during a write."""
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
        """Close the descriptor; the contents can still be read."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
