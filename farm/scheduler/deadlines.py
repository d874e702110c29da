"""The deadlines of tasks: when each runs out of time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from farm.scheduler.phases import QUEUED
from farm.scheduler.state import Task, TaskId


class Deadlines:
    """The deadlines of `tasks`, earliest first; those of completed tasks are removed over time."""

    SLACK = 1000

    def __init__(self, tasks: Mapping[TaskId, Task]) -> None:
        self._tasks = tasks
        self._heap: list[tuple[float, TaskId, bool]] = []
        self.first_at = math.inf  # a lower bound: that task may have ended

    def add(self, at: float, task_id: TaskId, *, to_start: bool = False) -> None:
        """Add a deadline for the task's answer, or with `to_start` for its start."""
        if len(self._heap) >= 2 * len(self._tasks) + self.SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._tasks]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (at, task_id, to_start))  # the task is among those just after
        self.first_at = self._heap[0][0]

    def passed(self, now: float) -> list[Task]:
        """Remove and return the tasks whose deadline has passed, each once."""
        heap = self._heap
        late: dict[Task, None] = {}
        while heap and (heap[0][0] <= now or heap[0][1] not in self._tasks):
            _, task_id, to_start = heapq.heappop(heap)
            task = self._tasks.get(task_id)
            if task is not None and (task.phase is QUEUED or not to_start):
                late[task] = None
        self.first_at = heap[0][0] if heap else math.inf
        return list(late)
