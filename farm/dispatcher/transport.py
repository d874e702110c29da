"""The interface between the dispatcher and the connections to its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from farm.call import Call
from farm.scheduler.state import TaskId, WorkerId

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher


class Transport(Protocol):
    """A connection to workers; it reports facts by calling the dispatcher's methods."""

    def start(self, dispatcher: Dispatcher) -> None:
        """Start on the running event loop."""

    def send(self, worker: WorkerId, tasks: Sequence[tuple[TaskId, Call]]) -> None:
        """Send tasks to a worker; an unreachable worker is reported by `worker_left`."""

    def recall(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Recall tasks from a worker, which answers with `recalled`."""

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Tell a worker that no answer to a task is needed: a stream ends, if possible."""

    def stop_workers(self) -> None:
        """Ask every worker to drain and exit."""

    async def close(self) -> None:
        """Release all resources."""
