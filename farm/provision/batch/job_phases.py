"""The phases of a job of the farm in a batch system, as a table of transitions."""

from __future__ import annotations

from enum import IntEnum, unique

from farm.transitions import TransitionTable


@unique
class JobPhase(IntEnum):
    """The phase of a job; `farm status` prints the words of `shown`.

    SUBMITTING: its submission runs; UNSURE: that has ended without a job id, so the job may exist.
    PENDING: in the queue; STARTING: has nodes, but no worker has joined; SERVING: its workers
    accept calls; SHUT: none of them accepts calls now; DRAINING: none has for some time;
    DESERTED: its workers are gone; GIVEN_UP: they have been gone for some time, or had drained.
    Released by the farm: STOPPED before a worker joined; LEAVING: its workers were asked to exit;
    CANCELLED: the batch system was asked to cancel it.
    """

    SUBMITTING = 1
    UNSURE = 2
    PENDING = 3
    STARTING = 4
    SERVING = 5
    SHUT = 6
    DRAINING = 7
    DESERTED = 8
    GIVEN_UP = 9
    STOPPED = 10
    LEAVING = 11
    CANCELLED = 12
    ENDED = 13

    @property
    def shown(self) -> str:
        """The phase in one word for people, a value of SHOWN."""
        return SHOWN[self]

    @property
    def has_id(self) -> bool:
        """Whether the batch system has told the job's id."""
        return self not in (SUBMITTING, UNSURE)

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
        """Whether workers of this job have joined since it was last in the queue."""
        return self in (SERVING, SHUT, DRAINING, DESERTED, GIVEN_UP, LEAVING)


SUBMITTING, UNSURE, PENDING, STARTING, SERVING, SHUT, DRAINING, *_ = JobPhase
*_, DESERTED, GIVEN_UP, STOPPED, LEAVING, CANCELLED, ENDED = JobPhase

SHOWN = {
    SUBMITTING: "submitting",
    UNSURE: "unsure",
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
    ((SUBMITTING, UNSURE), "gets id", PENDING),
    ((SUBMITTING,), "gets no id", UNSURE),
    ((SUBMITTING,), "refused", ENDED),
    ((UNSURE,), "never existed", ENDED),
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
    ((PENDING, STARTING, DESERTED, GIVEN_UP, STOPPED, LEAVING, CANCELLED), "absent", ENDED),
    (tuple(p for p in JobPhase if p.has_id and p is not ENDED), "ended", ENDED),
    begins={"submits": SUBMITTING, "found": PENDING, "remembered": STARTING},
)
"""let go: asked to end in an orderly way. cancelled: may be repeated if it had no effect.

ended: the batch system has said so when it was asked about this job. absent: confirmed by the rules
of `absence`, which no job with a worker can fulfil. found: in a list of jobs; remembered: in the
file of the farm before, until the batch system says how it stands.
"""
