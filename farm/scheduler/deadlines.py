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
        self._heap: list[tuple[float, TaskId, bool]] = []
        self.first_at = math.inf  # no deadline comes before this

    def add(self, at: float, task_id: TaskId, *, to_start: bool = False) -> None:
        """From `at` on the answer to this task is of no use, or it is not to start any more."""
        heapq.heappush(self._heap, (at, task_id, to_start))
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
        """The tasks that run out of time now, each once."""
        heap = self._heap
        late: dict[Task, None] = {}
        while heap and heap[0][0] <= now:
            _, task_id, to_start = heapq.heappop(heap)
            task = self._tasks.get(task_id)
            if task is not None and (task.worker is None or not to_start):
                late[task] = None
        self.first_at = heap[0][0] if heap else math.inf
        return list(late)

    def __len__(self) -> int:
        return len(self._heap)
