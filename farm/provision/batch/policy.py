"""Autoscaling policy: how many jobs each kind of workers should have; pure, without I/O.

Times are seconds of any monotonic clock. A job counts from its submission on, so that a job pending
in SLURM's queue is not requested twice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from farm.provision.batch.kinds import WorkerKind

FITS_FACTOR = 1.2
"""The scheduler sends a call to a worker only if its remaining time exceeds this times the call's
p95.
"""

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0
"""Bounds of the pause after refused submissions and failed jobs; it doubles each time."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The work of one class of calls, or of several together.

    waiting, running: units of work in the queue and at workers; a unit is a call, or as many rows
    as a model evaluates at once. work_s: seconds that one worker would need for all of it.
    needs_s: remaining time that a worker must have to be given any of the queued work.
    """

    waiting: float = 0.0
    running: float = 0.0
    work_s: float = 0.0
    needs_s: float = 0.0

    @property
    def units(self) -> float:
        """Number of units of work; more workers than that would be idle."""
        return self.waiting + self.running

    def part(self, share: float) -> Demand:
        """Return this fraction of the demand."""
        return Demand(self.waiting * share, self.running * share, self.work_s * share, self.needs_s)


def together(demands: Iterable[Demand]) -> Demand:
    """Return the sum of the demands; the smallest needs_s decides which workers are of use."""
    demands = list(demands)
    return Demand(
        sum(d.waiting for d in demands),
        sum(d.running for d in demands),
        sum(d.work_s for d in demands),
        min((d.needs_s for d in demands if d.waiting), default=0.0),
    )


def demands(
    snapshot: Mapping[str, Any], max_batch: Mapping[str, int]
) -> dict[tuple[str, str], Demand]:
    """Return the demand for each model and operation, from a snapshot of the dispatcher.

    max_batch: rows per evaluation of a model, if more than 1.
    A class without any finished call is assumed to take as long as its longest running call so far.
    """
    found = {}
    for row in snapshot["queues"]:
        model, operation = row["model"], row["operation"]
        if operation == "describe":
            if row["queued"]:  # any worker answers all of them, even a busy one
                found[model, operation] = Demand(waiting=1)
            continue
        if not row["queued"] + row["in_flight"]:
            continue
        at_once = max_batch.get(model, 1) if operation == "evaluate" else 1
        waiting = math.ceil(row["queued"] / at_once)
        running = math.ceil(row["in_flight"] / at_once)
        run_time_s = row["run_time_mean_s"] or max(
            (w["busy_s"] or 0.0 for w in snapshot["workers"] if model in w["models"]), default=0.0
        )
        needs_s = FITS_FACTOR * row["run_time_p95_s"]
        work_s = (waiting + running) * run_time_s
        found[model, operation] = Demand(waiting, running, work_s, needs_s)
    return found


@dataclass(frozen=True, slots=True)
class Job:
    """A live job of workers, as the policy sees it.

    phase: pending in SLURM's queue, starting until its workers have joined, then serving.
    idle_s: how long all of its workers have been idle; ends_in_s: None if its end is unknown.
    """

    id: str
    phase: Literal["pending", "starting", "serving"]
    idle_s: float = 0.0
    ends_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of the policy: jobs to submit and to release. wanted: target number of jobs.

    problem: why the demand is not met, in words; empty if it is.
    """

    wanted: int
    submit: int = 0
    release: tuple[str, ...] = ()
    problem: str = ""


class KindPolicy:
    """The policy of one kind: call `decide` at any rate, and report the fate of submissions.

    Grows to the smallest target of the last grow_after_s, or at once if there is no job; shrinks to
    the largest target of the last idle_timeout_s, and only by jobs that are pending or have been
    idle for that long. So within these times no job is both started and released, for any demand.
    """

    def __init__(self, kind: WorkerKind) -> None:
        self.kind = kind
        self._wanted: deque[tuple[float, int]] = (
            deque()
        )  # (time, target): the target from that time on
        self._short_since: float | None = None  # calls wait, and no job is about to start
        self._failures = 0
        self.paused_until = -math.inf

    # Fate of submissions

    def failed(self, now: float) -> None:
        """Pause, twice as long each time: a submission was refused or a job ended too early."""
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures, 30), LONGEST_PAUSE_S)
        self._failures += 1
        self.paused_until = now + pause_s

    def worked(self) -> None:
        """Reset the length of the next pause: workers of a job have joined."""
        self._failures = 0
        self.paused_until = -math.inf

    def capacity(self, jobs: Sequence[Job], now: float) -> int:
        """Return the maximum number of workers of this kind; in a pause those it has."""
        count = len(jobs) if now < self.paused_until else self.kind.max_jobs
        return count * self.kind.workers_per_job

    # Decisions

    def decide(
        self, demand: Demand | None, jobs: Sequence[Job], now: float, *, leaving: int = 0
    ) -> Decision:
        """Return what to do now, given the demand and the live jobs that are not being released.

        demand: None while the models of these workers are unknown: one job is started to find out.
        leaving: jobs being released that still exist; they count against the maximum only.
        """
        kind = self.kind
        spent = [job for job in jobs if _is_spent(job, demand)]
        have = len(jobs) - len(spent)
        wanted = self._jobs_for(demand, jobs, have, now)
        self._remember(wanted, now)
        problem = ""
        submit = 0
        lowest = max(kind.min_jobs, self._lowest_wanted(now) if have else wanted)
        if lowest > have:
            if now < self.paused_until:
                problem = f"next try in {self.paused_until - now:.0f} s"
            else:
                submit = max(0, min(lowest - have, kind.max_jobs - len(jobs) - leaving))
        release = [job.id for job in spent if job.phase == "serving" and job.idle_s > 0.0]
        highest = max(kind.min_jobs, max(count for _, count in self._wanted))
        surplus = have - highest
        if surplus > 0 and not submit:
            kept = [job for job in jobs if job not in spent]
            release += _dispensable(kept, surplus, kind.idle_timeout_s)
        return Decision(wanted, submit, tuple(release), problem)

    def _jobs_for(self, demand: Demand | None, jobs: Sequence[Job], have: int, now: float) -> int:
        """Return the number of jobs for the demand, within the limits of the kind."""
        kind = self.kind
        if demand is None:
            return max(kind.min_jobs, have, 1)
        workers = workers_for(demand, kind.backlog_s)
        if demand.waiting > 0:
            # While calls wait, keep all jobs that could run them. If calls have waited for
            # backlog_s with no job about to start, the present jobs do not suffice: callers that
            # wait for each answer before the next call never show their full demand.
            enough = have * kind.workers_per_job
            coming = any(job.phase != "serving" for job in jobs)
            if coming or have == 0 or self._short_since is None:
                self._short_since = now
            elif now - self._short_since >= kind.backlog_s:
                enough *= 2
            workers = max(workers, min(enough, math.ceil(demand.units)))
        else:
            self._short_since = None
        wanted = math.ceil(workers / kind.workers_per_job)
        return min(max(wanted, kind.min_jobs), kind.max_jobs)

    def _remember(self, wanted: int, now: float) -> None:
        if not self._wanted or self._wanted[-1][1] != wanted:
            self._wanted.append((now, wanted))
        horizon = now - max(self.kind.idle_timeout_s, self.kind.grow_after_s)
        while len(self._wanted) > 1 and self._wanted[1][0] <= horizon:
            self._wanted.popleft()

    def _lowest_wanted(self, now: float) -> int:
        """Return the lowest target of the last grow_after_s."""
        since = now - self.kind.grow_after_s
        if self._wanted[0][0] > since:
            return 0  # the history is too short
        lowest = self._wanted[-1][1]
        for at, count in reversed(self._wanted):
            lowest = min(lowest, count)
            if at <= since:
                break
        return lowest


def workers_for(demand: Demand, backlog_s: float) -> int:
    """Return the workers needed to finish in about backlog_s; 1 at least, 1 per unit at most."""
    if demand.units <= 0:
        return 0
    return max(1, min(math.ceil(demand.work_s / backlog_s), math.ceil(demand.units)))


def _is_spent(job: Job, demand: Demand | None) -> bool:
    """Whether calls wait, but the job has too little time left for any of them."""
    if demand is None or demand.waiting <= 0 or job.ends_in_s is None:
        return False
    return job.ends_in_s < demand.needs_s


def _dispensable(jobs: Sequence[Job], surplus: int, idle_timeout_s: float) -> list[str]:
    """Return at most `surplus` jobs to release: pending ones first, the latest of all."""
    pending = [job for job in jobs if job.phase == "pending"][::-1]
    idle = [job for job in jobs if job.phase == "serving" and job.idle_s >= idle_timeout_s]
    idle.sort(key=lambda job: -job.idle_s)
    return [job.id for job in [*pending, *idle][:surplus]]


@dataclass(frozen=True, slots=True)
class Offer:
    """The capacity of a kind: its models, and its maximum number of workers.

    models: None while unknown. time_limit_s: of its jobs; backlog_s: as in WorkerKind.
    """

    models: frozenset[str] | None
    capacity: int
    backlog_s: float
    time_limit_s: float | None = None


def share(
    classes: Mapping[tuple[str, str], Demand], offers: Sequence[Offer]
) -> list[tuple[Demand | None, str]]:
    """Return the demand assigned to each kind, and problems in words.

    Kinds come in order of preference: demand beyond a kind's maximum of workers goes to the next
    kind that has the model. Calls too long for a kind's jobs are not assigned to it.
    """
    left = dict(classes)
    shares: list[tuple[Demand | None, str]] = []
    for offer in offers:
        if offer.models is None:
            shares.append((None, ""))
            continue
        mine = {key: d for key, d in left.items() if key[0] in offer.models}
        limit_s = offer.time_limit_s
        problem = ""
        for key, demand in list(mine.items()):
            if limit_s is not None and demand.needs_s > limit_s:
                del mine[key]
                problem = (
                    f"calls of {key[0]} ({key[1]}) need {demand.needs_s:.0f} s, a job has "
                    f"{limit_s:.0f} s: raise `time`"
                )
        demand = together(mine.values())
        wanted = workers_for(demand, offer.backlog_s)
        over = max(0.0, 1.0 - offer.capacity / wanted) if wanted else 0.0
        for key in mine:
            left[key] = mine[key].part(over)
        shares.append((demand.part(1.0 - over), problem))
    return shares
