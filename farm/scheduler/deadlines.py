"""Which tasks run out of time, and when."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from farm.scheduler.state import Task, TaskId


class Deadlines:
    """The deadlines of `tasks`, earliest first; those of tasks that are gone go in time."""

    SLACK = 1000

    def __init__(self, tasks: Mapping[TaskId, Task]) -> None:
        self._tasks = tasks
        self._heap: list[tuple[float, TaskId]] = []
        self.first_at = math.inf  # no deadline comes before this

    def add(self, deadline: float, task_id: TaskId) -> None:
        """From `deadline` on the answer to this task is of no use."""
        heapq.heappush(self._heap, (deadline, task_id))
        if len(self._heap) > 2 * len(self._tasks) + self.SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._tasks]
            heapq.heapify(self._heap)
        self.first_at = self._heap[0][0]

    def earliest(self) -> float | None:
        """The next deadline of a task that is still there."""
        heap = self._heap
        while heap and heap[0][1] not in self._tasks:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def passed(self, now: float) -> list[Task]:
        """The tasks whose deadline has come, each once."""
        heap = self._heap
        late = []
        while heap and heap[0][0] <= now:
            task = self._tasks.get(heapq.heappop(heap)[1])
            if task is not None:
                late.append(task)
        self.first_at = heap[0][0] if heap else math.inf
        return late

    def __len__(self) -> int:
        return len(self._heap)
