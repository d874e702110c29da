"""How many jobs of each kind of workers there should be; pure: facts in, decisions out.

Times are seconds of any clock that never goes back. A job counts from its submission on, so what
waits in SLURM's queue is not asked for twice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

FITS_FACTOR = 1.2
"""The scheduler sends a call to a worker that lives so many times the call's p95."""

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0
"""After refused submissions and jobs that failed: twice as long each time, between these."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The work of one class of calls, or of several together.

    waiting, running: units of work in the queue and at workers; a unit is a call, or as many rows
    as a model takes at once. work_s: seconds that all of it takes one worker.
    needs_s: what a worker must have left of its time to be given any of what waits.
    """

    waiting: float = 0.0
    running: float = 0.0
    work_s: float = 0.0
    needs_s: float = 0.0

    @property
    def units(self) -> float:
        """More workers than units would be idle."""
        return self.waiting + self.running

    def part(self, share: float) -> Demand:
        """So large a part of it."""
        return Demand(self.waiting * share, self.running * share, self.work_s * share, self.needs_s)


NO_DEMAND = Demand()


def together(demands: Iterable[Demand]) -> Demand:
    """The demands as one; what needs the least time decides which worker is of use."""
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
    """The demand for each model and operation, from a snapshot of the dispatcher.

    max_batch: rows that one evaluation of a model may take, where that is more than 1.
    A class that has never finished a call takes as long as the longest of its calls has run so far.
    """
    found = {}
    for row in snapshot["queues"]:
        model, operation = row["model"], row["operation"]
        if operation == "describe":
            if row["queued"]:  # any one worker answers all of them, whatever it runs
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
class Bounds:
    """What one kind of workers keeps to; see `kinds.WorkerKind` for the words.

    workers: what the scheduler gets of one job; time_limit_s: of a job, None when not known.
    """

    min_jobs: int = 0
    max_jobs: int = 10
    workers: int = 1
    backlog_s: float = 60.0
    grow_after_s: float = 2.0
    idle_timeout_s: float = 300.0
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job of workers that lives, as the policy sees it.

    phase: pending in SLURM's queue, starting until its workers have joined, then serving.
    idle_s: for how long none of its workers has had anything to do; ends_in_s: None: no end known.
    """

    id: str
    phase: Literal["pending", "starting", "serving"]
    idle_s: float = 0.0
    ends_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now: submit so many jobs, let these go. wanted: jobs there should be, by demand.

    problem: why demand is not met, in words; empty when nothing stands in the way.
    """

    wanted: int
    submit: int = 0
    release: tuple[str, ...] = ()
    problem: str = ""


class KindPolicy:
    """The policy of one kind: `decide` as often as one likes, and tell how submissions fare.

    Grows to the smallest number of jobs that was wanted at any time in the last grow_after_s, at
    once when there is none; shrinks to the largest that was wanted in the last idle_timeout_s, and
    only by jobs that have not begun or are idle for that long. So no job is taken on and let go, or
    let go and taken on, within these times, whatever demand does.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._wanted: deque[tuple[float, int]] = deque()  # from each time on, so many
        self._short_since: float | None = None  # calls wait, and no job is on its way
        self._failures = 0
        self.paused_until = -math.inf

    # How submissions fare

    def failed(self, now: float) -> None:
        """A submission was refused, or a job ended before it was of use: pause, ever longer."""
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures, 30), LONGEST_PAUSE_S)
        self._failures += 1
        self.paused_until = now + pause_s

    def worked(self) -> None:
        """Workers of a job have joined."""
        self._failures = 0
        self.paused_until = -math.inf

    def capacity(self, jobs: Sequence[Job], now: float) -> int:
        """How many workers this kind can have; in a pause no more than it has."""
        count = len(jobs) if now < self.paused_until else self.bounds.max_jobs
        return count * self.bounds.workers

    # What to do

    def decide(
        self, demand: Demand | None, jobs: Sequence[Job], now: float, *, leaving: int = 0
    ) -> Decision:
        """What to do now, for this demand and the jobs that live and are not let go already.

        demand: None while it is not known which models these workers have: one job finds out.
        leaving: jobs that were let go and are not gone yet; they count against the maximum only.
        """
        bounds = self.bounds
        spent = [job for job in jobs if _is_spent(job, demand)]
        have = len(jobs) - len(spent)
        wanted = self._jobs_for(demand, jobs, have, now)
        self._remember(wanted, now)
        problem = ""
        submit = 0
        lowest = max(bounds.min_jobs, self._lowest_wanted(now) if have else wanted)
        if lowest > have:
            if now < self.paused_until:
                problem = f"next try in {self.paused_until - now:.0f} s"
            else:
                submit = max(0, min(lowest - have, bounds.max_jobs - len(jobs) - leaving))
        release = [job.id for job in spent if job.phase == "serving" and job.idle_s > 0.0]
        highest = max(bounds.min_jobs, max(count for _, count in self._wanted))
        surplus = have - highest
        if surplus > 0 and not submit:
            kept = [job for job in jobs if job not in spent]
            release += _dispensable(kept, surplus, bounds.idle_timeout_s)
        return Decision(wanted, submit, tuple(release), problem)

    def _jobs_for(self, demand: Demand | None, jobs: Sequence[Job], have: int, now: float) -> int:
        """Jobs that demand asks for, within the bounds."""
        bounds = self.bounds
        if demand is None:
            return max(bounds.min_jobs, have, 1)
        workers = workers_for(demand, bounds.backlog_s)
        if demand.waiting > 0:
            # While calls wait nothing is let go that could run them; and if they have waited for
            # backlog_s, though nothing more is on its way, what there is does not suffice: callers
            # that wait for each answer before they ask again never show all they could ask.
            enough = have * bounds.workers
            coming = any(job.phase != "serving" for job in jobs)
            if coming or have == 0 or self._short_since is None:
                self._short_since = now
            elif now - self._short_since >= bounds.backlog_s:
                enough *= 2
            workers = max(workers, min(enough, math.ceil(demand.units)))
        else:
            self._short_since = None
        wanted = math.ceil(workers / bounds.workers)
        return min(max(wanted, bounds.min_jobs), bounds.max_jobs)

    def _remember(self, wanted: int, now: float) -> None:
        if not self._wanted or self._wanted[-1][1] != wanted:
            self._wanted.append((now, wanted))
        horizon = now - max(self.bounds.idle_timeout_s, self.bounds.grow_after_s)
        while len(self._wanted) > 1 and self._wanted[1][0] <= horizon:
            self._wanted.popleft()

    def _lowest_wanted(self, now: float) -> int:
        """The least that was wanted at any time in the last grow_after_s."""
        since = now - self.bounds.grow_after_s
        if self._wanted[0][0] > since:
            return 0  # it is not known for so long
        lowest = self._wanted[-1][1]
        for at, count in reversed(self._wanted):
            lowest = min(lowest, count)
            if at <= since:
                break
        return lowest


def workers_for(demand: Demand, backlog_s: float) -> int:
    """Workers to get this work done in about backlog_s; at least one, at most one a unit."""
    if demand.units <= 0:
        return 0
    return max(1, min(math.ceil(demand.work_s / backlog_s), math.ceil(demand.units)))


def _is_spent(job: Job, demand: Demand | None) -> bool:
    """Whether calls wait for none of which the job has time left."""
    if demand is None or demand.waiting <= 0 or job.ends_in_s is None:
        return False
    return job.ends_in_s < demand.needs_s


def _dispensable(jobs: Sequence[Job], surplus: int, idle_timeout_s: float) -> list[str]:
    """`surplus` jobs that can go, or fewer; those that have not begun first, the latest of all."""
    pending = [job for job in jobs if job.phase == "pending"][::-1]
    idle = [job for job in jobs if job.phase == "serving" and job.idle_s >= idle_timeout_s]
    idle.sort(key=lambda job: -job.idle_s)
    return [job.id for job in [*pending, *idle][:surplus]]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a kind can do: the models its workers have, how many workers it can have at most.

    models: None while not known. time_limit_s: of its jobs; backlog_s: as in Bounds.
    """

    models: frozenset[str] | None
    capacity: int
    backlog_s: float
    time_limit_s: float | None = None


def share(
    classes: Mapping[tuple[str, str], Demand], offers: Sequence[Offer]
) -> list[tuple[Demand | None, str]]:
    """The demand that falls to each kind, and what is wrong with it in words.

    Kinds come in the order of preference: what one cannot have workers enough for goes on to the
    next one that has the model. Calls that do not fit into a job of a kind are none of its demand.
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
