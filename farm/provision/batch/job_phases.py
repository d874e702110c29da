"""The phases of a SLURM job of the farm, as a table of transitions."""

from __future__ import annotations

from enum import IntEnum, unique

from farm.transitions import TransitionTable


@unique
class JobPhase(IntEnum):
    """The phase of a job; `farm status` prints the words of `shown`.

    PENDING: in SLURM's queue; STARTING: has nodes, but no worker has joined; SERVING: its workers
    accept calls; SHUT: none of them accepts calls now; DRAINING: none has for some time;
    DESERTED: its workers are gone; GIVEN_UP: they have been gone for some time, or had drained.
    Released by the farm: STOPPED before a worker joined; LEAVING: its workers were asked to exit;
    CANCELLED: SLURM was asked to cancel it.
    """

    PENDING = 1
    STARTING = 2
    SERVING = 3
    SHUT = 4
    DRAINING = 5
    DESERTED = 6
    GIVEN_UP = 7
    STOPPED = 8
    LEAVING = 9
    CANCELLED = 10
    ENDED = 11

    @property
    def shown(self) -> str:
        """The phase in one word for people: pending, starting, serving, deserted or leaving."""
        return SHOWN[self]

    @property
    def counts(self) -> bool:
        """Whether the job has, or will have, workers that accept calls."""
        return self not in (DRAINING, GIVEN_UP, ENDED) and not self.was_let_go

    @property
    def was_let_go(self) -> bool:
        """Whether the farm has asked the job to end."""
        return self in (STOPPED, LEAVING, CANCELLED)

    @property
    def has_served(self) -> bool:
        """Whether workers of this job have joined since it was last in SLURM's queue."""
        return self in (SERVING, SHUT, DRAINING, DESERTED, GIVEN_UP, LEAVING)


PENDING, STARTING, SERVING, SHUT, DRAINING, DESERTED, GIVEN_UP, *_ = JobPhase
*_, STOPPED, LEAVING, CANCELLED, ENDED = JobPhase

SHOWN = {
    PENDING: "pending",
    STARTING: "starting",
    SERVING: "serving",
    SHUT: "serving",
    DRAINING: "leaving",
    DESERTED: "deserted",
    GIVEN_UP: "deserted",
    STOPPED: "leaving",
    LEAVING: "leaving",
    CANCELLED: "leaving",
    ENDED: "leaving",
}

JOBS = TransitionTable(
    "job",
    ((PENDING,), "gets nodes", STARTING),
    ((PENDING, STARTING, SHUT, DRAINING, DESERTED, GIVEN_UP), "workers take calls", SERVING),
    ((PENDING, STARTING, SERVING, DESERTED), "workers take none", SHUT),
    ((GIVEN_UP,), "workers take none", DRAINING),
    ((STOPPED,), "workers take calls", LEAVING),
    ((STOPPED,), "workers take none", LEAVING),
    ((SERVING, SHUT), "workers gone", DESERTED),
    ((DRAINING,), "workers gone", GIVEN_UP),
    ((SHUT,), "for long", DRAINING),
    ((DESERTED,), "for long", GIVEN_UP),
    ((STARTING, SERVING, SHUT, DRAINING, DESERTED, GIVEN_UP), "requeued", PENDING),
    ((LEAVING,), "requeued", STOPPED),
    ((PENDING, STARTING), "let go", STOPPED),
    ((SERVING, SHUT, DRAINING, DESERTED, GIVEN_UP), "let go", LEAVING),
    ((PENDING, STOPPED, LEAVING, CANCELLED), "cancelled", CANCELLED),
    (tuple(phase for phase in JobPhase if phase is not ENDED), "ended", ENDED),
    begins={"submitted": PENDING},
)
"""let go: asked to end in an orderly way. cancelled: may be repeated if it had no effect. ended:
also if SLURM no longer knows the job."""
