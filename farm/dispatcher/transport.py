"""The interface between the dispatcher and the connections to its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from farm.call import Call
from farm.scheduler.actions import EndSequence, EndStream, Recall
from farm.scheduler.state import TaskId, WorkerId
from farm.sequences import SequenceId

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

    def end_sequence(self, worker: WorkerId, model: str, sequence: SequenceId) -> None:
        """Tell a worker to drop the state of a sequence that has ended."""

    def stop_workers(self) -> None:
        """Ask every worker to drain and exit."""

    async def close(self) -> None:
        """Release all resources."""


def carry_out(transport: Transport, action: Recall | EndStream | EndSequence) -> None:
    """Carry out an action that concerns what a worker has already."""
    if isinstance(action, Recall):
        transport.recall(action.worker, action.tasks)
    elif isinstance(action, EndStream):
        transport.end_stream(action.worker, action.task)
    else:
        transport.end_sequence(action.worker, action.model, action.id)
