"""The life cycles of a task, of its attempts and of a worker, as tables of transitions.

A task is in one phase; each of its attempts, the sending to one worker, has a phase of its own. So
a task without a caller may or may not have been recalled from its worker.
"""

from __future__ import annotations

from enum import IntEnum, unique

from farm.transitions import TransitionTable


@unique
class TaskPhase(IntEnum):
    """QUEUED: in its queue; SENT: on a worker; ABANDONED: on a worker, without a caller.

    OUTRUN: answered by one of two workers, and still on the other one.
    """

    QUEUED = 1
    SENT = 2
    ABANDONED = 3
    OUTRUN = 4
    ENDED = 5

    @property
    def has_caller(self) -> bool:
        """Whether a caller waits for its answer."""
        return self <= TaskPhase.SENT


@unique
class AttemptPhase(IntEnum):
    """HELD: on its worker; RECALLED: the worker was asked to return it, unless it has begun.

    Final phases: ANSWERED; RETURNED, which counts no loss; LOST: the worker may have run it in
    vain.
    """

    HELD = 1
    RECALLED = 2
    ANSWERED = 3
    RETURNED = 4
    LOST = 5

    @property
    def is_over(self) -> bool:
        """Whether the worker no longer has the task, as far as is known."""
        return self >= AttemptPhase.ANSWERED


@unique
class WorkerPhase(IntEnum):
    """OPEN: takes calls as its credit allows; FULL: has not read yet what it was sent.

    SHUT: offers no slot, because it drains or is unreachable; SHUT_AND_FULL: both.
    """

    OPEN = 1
    FULL = 2
    SHUT = 3
    SHUT_AND_FULL = 4
    GONE = 5

    @property
    def has_unread(self) -> bool:
        """Whether the worker has not read yet what it was sent."""
        return self is WorkerPhase.FULL or self is WorkerPhase.SHUT_AND_FULL


QUEUED, SENT, ABANDONED, OUTRUN, ENDED = TaskPhase
HELD, RECALLED, ANSWERED, RETURNED, LOST = AttemptPhase
OPEN, FULL, SHUT, SHUT_AND_FULL, GONE = WorkerPhase

TASKS = TransitionTable(
    "task",
    ((QUEUED,), "sent", SENT),
    ((SENT, ABANDONED, OUTRUN), "answered", ENDED),
    ((SENT, ABANDONED), "answered first", OUTRUN),
    ((SENT,), "came back", QUEUED),
    ((SENT, ABANDONED, OUTRUN), "given up", ENDED),
    ((QUEUED,), "cancelled", ENDED),
    ((SENT,), "cancelled", ABANDONED),
    ((QUEUED,), "answered late", ENDED),
    ((SENT,), "answered late", ABANDONED),
    begins={"submitted": QUEUED},
)
"""came back: requeued from a worker that did not answer. given up: lost, and not to be sent again.
cancelled: by its caller, or because its deadline passed. answered late: by a worker of an earlier
attempt. answered first: by one of the two workers that run a call and its copy.
"""

ATTEMPTS = TransitionTable(
    "attempt",
    ((HELD,), "recalled", RECALLED),
    ((RECALLED,), "recall void", HELD),
    ((HELD, RECALLED, RETURNED, LOST), "answered", ANSWERED),
    ((HELD, RECALLED), "returned", RETURNED),
    ((HELD, RECALLED), "lost", LOST),
    begins={"sent": HELD},
)
"""recall void: the recall may have been lost with a connection, so it may be repeated."""

WORKERS = TransitionTable(
    "worker",
    ((OPEN,), "stops reading", FULL),
    ((FULL,), "reads on", OPEN),
    ((OPEN,), "offers no slot", SHUT),
    ((SHUT,), "offers slots", OPEN),
    ((FULL,), "offers no slot", SHUT_AND_FULL),
    ((SHUT_AND_FULL,), "offers slots", FULL),
    ((SHUT,), "stops reading", SHUT_AND_FULL),
    ((SHUT_AND_FULL,), "reads on", SHUT),
    ((OPEN, FULL, SHUT, SHUT_AND_FULL), "left", GONE),
    begins={"joined": OPEN, "joined without slots": SHUT},
)
