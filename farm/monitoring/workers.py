"""The workers of a farm: facts about each, what is wrong with it, and who is late.

The facts are its age, restarts, run times, memory and processors.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import log2
from statistics import median
from typing import Any

from farm import wording
from farm.call import Operation, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import EndedCall
from farm.dispatcher.events import Departure
from farm.scheduler.state import WorkerId
from farm.wire.usage import Used
from farm.wording import counted

Row = Mapping[str, Any]

STUCK = 10.0
"""A call that runs this many times longer than 95 % of such calls may never end."""

STUCK_FROM_S = 10.0
"""A younger call is not called stuck."""

SLOW = 2.0
"""A worker is slow if its median run is this many times that of the others."""

FEW_RUNS, FEW_OTHERS = 5, 2
"""A comparison needs so many runs of each worker, and so many other workers."""

FAILS = 3.0
"""A worker fails too often if its share of failed calls is this many times that of the others."""

FEW_FAILURES = 5

CHANCE = 1e-4
"""A difference that would come by chance more often than this, for any of the workers, is none."""

MANY_RESTARTS = 3


def troubles(rows: Sequence[Row], run_times: Sequence[RunTimeSketch]) -> list[list[str]]:
    """Return what is wrong with each worker, in words; empty for a healthy one.

    rows: of `workers` in a snapshot, with the facts of `workers.py`; run_times: of each row.
    """
    groups: dict[tuple[str, ...], list[tuple[Row, RunTimeSketch]]] = defaultdict(list)
    workers = list(zip(rows, run_times, strict=True))
    for worker in workers:
        groups[tuple(worker[0]["models"])].append(worker)
    found = {models: _compared(group, CHANCE / len(rows)) for models, group in groups.items()}
    return [list(found[tuple(row["models"])](row, runs)) for row, runs in workers]


def _compared(
    group: Sequence[tuple[Row, RunTimeSketch]], chance: float
) -> Callable[[Row, RunTimeSketch], Iterator[str]]:
    """Return a function that yields what is wrong with a worker of a group with the same models.

    chance: a difference that comes by chance more often than this is none.
    """
    medians = [
        times["p50"] for row, _ in group if (times := row["run_times_s"])["count"] >= FEW_RUNS
    ]
    usual_s = median(medians) if medians else 0.0
    above = [runs.above(SLOW * usual_s) for _, runs in group] if medians else []
    long_of_all, runs_of_all = sum(few for few, _ in above), sum(of for _, of in above)
    failed_of_all = sum(row["failed"] for row, _ in group)
    calls_of_all = failed_of_all + sum(row["done"] for row, _ in group)

    def found(row: Row, runs: RunTimeSketch) -> Iterator[str]:
        times = row["run_times_s"]
        age_s, p95_s = row["running_s"], row["running_p95_s"]  # of its own kind, such as a level
        if p95_s is not None and age_s > max(STUCK_FROM_S, STUCK * p95_s):
            ratio = age_s / max(p95_s, SHORTEST_S)
            yield f"its call runs {ratio:.0f} times as long as others did"
        if times["count"] >= FEW_RUNS and len(medians) > FEW_OTHERS:
            ratio = times["p50"] / usual_s
            few, of = runs.above(SLOW * usual_s)
            if ratio >= SLOW and chance_of(few, of, long_of_all, runs_of_all) < chance:
                yield f"its runs take {ratio:.2g} times as long as on other workers"
        failed = row["failed"]
        calls = failed + row["done"]
        if failed >= FEW_FAILURES and calls_of_all > calls:
            share, usual = failed / calls, (failed_of_all - failed) / (calls_of_all - calls)
            by_chance = chance_of(failed, calls, failed_of_all, calls_of_all)
            if share >= FAILS * usual and by_chance < chance:
                yield f"fails {share:.0%} of its calls, others {usual:.0%}"
        if row["restarts"] >= MANY_RESTARTS:
            yield f"was started again {counted(row['restarts'], 'time')}"

    return found


def chance_of(few: int, of: int, few_of_all: int, of_all: int) -> float:
    """Return the probability that a draw of `of` has at least `few` of the marked ones.

    few_of_all: how many of the `of_all` are marked. With the calls of all workers, and failed calls
    as the marked ones, this is Fisher's exact test of a worker that is like the others.
    """
    plain = of_all - few_of_all - of  # of those not drawn, less the marked ones that are drawn
    logs = math.lgamma(few_of_all + 1) + math.lgamma(of_all - few_of_all + 1)
    logs += math.lgamma(of + 1) + math.lgamma(of_all - of + 1) - math.lgamma(of_all + 1)
    logs -= math.lgamma(few + 1) + math.lgamma(few_of_all - few + 1)
    logs -= math.lgamma(of - few + 1) + math.lgamma(plain + few + 1)
    total = term = 1.0
    while few < min(of, few_of_all) and term > total * 1e-9:
        term *= (few_of_all - few) * (of - few) / ((few + 1) * (plain + few + 1))
        total += term
        few += 1
    return math.exp(logs) * total


STEPS = 8
"""Buckets for each factor of two: a quantile is off by 4.4 % at most."""

SHORTEST_S = 1e-7
"""Shorter runs count as this long, so that there are few buckets."""

WINDOW = 1000
"""Quantiles are those of the last 1,000 to 2,000 runs: an old time must not hide a new one."""


@dataclass(eq=False, slots=True)
class RunTimeSketch:
    """The run times of one worker; count: of all runs."""

    count: int = 0
    _counts: Counter[int] = field(default_factory=Counter)
    _before: Counter[int] = field(default_factory=Counter)

    def add(self, times: Iterable[float]) -> None:
        """Record runs, by their seconds."""
        for seconds in times:
            # Above the lowest bucket the number is positive, where int() rounds down.
            bucket = int(STEPS * log2(seconds) - _LOWEST) if seconds > SHORTEST_S else 0
            self._counts[bucket] += 1
            self.count += 1
            if not self.count % WINDOW:
                self._before, self._counts = self._counts, Counter()

    def above(self, seconds: float) -> tuple[int, int]:
        """Return how many of the latest runs took longer, by a bucket or more, and of how many."""
        least = STEPS * log2(max(seconds, SHORTEST_S)) - _LOWEST
        counts = [*self._counts.items(), *self._before.items()]  # a sum of both takes longer
        return sum(n for bucket, n in counts if bucket > least), sum(n for _, n in counts)

    def quantiles(self, *levels: float) -> list[float | None]:
        """Return the quantiles in seconds, by nearest rank; None while no run is known.

        levels: between 0 and 1.
        """
        counts = sorted((self._counts + self._before).items())
        until = list(accumulate(count for _, count in counts))
        if not until:
            return [None] * len(levels)
        places = [bisect_left(until, max(1, math.ceil(level * until[-1]))) for level in levels]
        return [2.0 ** ((counts[at][0] + _LOWEST + 0.5) / STEPS) for at in places]


_LOWEST = math.floor(STEPS * log2(SHORTEST_S))


STALE_S = 20.0
"""Use that was reported longer ago is not shown: the worker cannot say what it uses now."""

STALE_IDLE_S = 150.0
"""The same for an idle worker, which reports less often (`worker/host/line.py: REPORT_IDLE_S`)."""

FEW, REFRESH_S = 100, 1.0
"""Of more than 100 workers the facts are computed once a second, however many ask for them."""


@dataclass(eq=False, slots=True)
class _Facts:
    """What is known about one worker that is here."""

    restarts: int
    joined_at: float
    run_times: RunTimeSketch = field(default_factory=RunTimeSketch)
    told: dict[str, Any] = field(default_factory=dict)  # the keys of its row, computed lately


class WorkerFacts:
    """Adds its facts to the rows of the workers in the dispatcher's snapshot."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._facts: dict[str, _Facts] = {}
        self._used: dict[str, tuple[Used, float]] = {}  # and when that was reported
        self._computed_at = -math.inf
        self._ended = dispatcher.ended
        dispatcher.on_joined.append(self.joined)
        dispatcher.on_left.append(self.left)
        dispatcher.ended.add_window(self)
        dispatcher.on_used.append(self.reported)
        dispatcher.on_shown.append(self.shown)

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Note a new worker; one that joins again is the same process."""
        if info.name not in self._facts:
            restarts = info.labels.get("restarts", "")
            count = int(restarts) if restarts.isascii() and restarts.isdecimal() else 0
            self._facts[info.name] = _Facts(count, time.monotonic())

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Forget a worker."""
        self._ended.fold()  # or its runs would be those of another of its name
        self._facts.pop(info.name, None)
        self._used.pop(info.name, None)

    def fold(self, records: Sequence[EndedCall]) -> None:
        """Note the times of runs; for a run of rows, that of one row."""
        known, times = self._facts, defaultdict(list)
        for ended in records:
            # The worker may name a process of its own, as in a Dask cluster.
            name = ended.worker if ended.worker in known else ended.seat
            if ended.ran and name in known and ended.operation is not Operation.DESCRIBE:
                times[name].append(ended.row_s)
        for name, some in times.items():
            known[name].run_times.add(some)

    def reported(self, worker: WorkerId, used: Used) -> None:
        """Note what a worker uses."""
        if worker in self._facts:
            self._used[worker] = used, time.monotonic()

    def shown(self, rows: list[dict[str, Any]], now: float) -> None:
        """Add the facts to rows of workers."""
        again = len(rows) <= FEW or now - self._computed_at >= REFRESH_S
        known = [self._facts.get(row["name"]) or _Facts(0, now) for row in rows]
        for row, facts in zip(rows, known, strict=True):
            if again or not facts.told:
                used, at = self._used.get(row["name"], (Used(), now))
                if now - at >= (STALE_IDLE_S if row["running"] is None else STALE_S):
                    used = Used()
                p50, p90, p99 = facts.run_times.quantiles(0.5, 0.9, 0.99)
                count = facts.run_times.count
                facts.told.update(
                    restarts=facts.restarts,
                    run_times_s={"p50": p50, "p90": p90, "p99": p99, "count": count},
                    memory_bytes=used.memory_bytes,
                    processor=used.processor,
                    trouble=[],
                )
            row["age_s"] = now - facts.joined_at
            row.update(facts.told)
        if again:
            self._computed_at = now
            found = troubles(rows, [facts.run_times for facts in known])
            for row, facts, trouble in zip(rows, known, found, strict=True):
                row["trouble"] = facts.told["trouble"] = trouble


log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Crew:
    """The workers of one supervisor.

    expected: how many it keeps; due: when they have had the time to join; here: the names of those
    that are here; most: of them at a time.
    """

    expected: int
    due: float
    here: set[str] = field(default_factory=set)
    most: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether all have left, so that the supervisor may be gone, too."""
        return self.most > 0 and not self.here

    def joined(self, name: str) -> None:
        """Note one of them."""
        self.here.add(name)
        self.most = max(self.most, len(self.here))

    def left(self, name: str, *, in_order: bool) -> None:
        """Note that one left; it is expected no more if it was asked to."""
        if name in self.here:
            self.here.remove(name)
            self.expected -= in_order
            self.most -= in_order


class ExpectedWorkers:
    """Reports workers that do not join, in the log, the events and the status.

    A worker has labels with the name of its supervisor and the number of processes that this keeps.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._crews: dict[str, _Crew] = {}
        dispatcher.on_joined.append(self.joined)
        dispatcher.on_left.append(self.left)
        dispatcher.add_part("expected", self.shown)

    def expect(self, supervisor: str, count: int) -> None:
        """Expect so many workers of a supervisor, unless it is known already."""
        if supervisor not in self._crews:
            self._crews[supervisor] = _Crew(count, time.monotonic() + wording.JOIN_S)
            asyncio.get_running_loop().call_later(wording.JOIN_S, self._look, supervisor)

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Note a worker, which may be the first of its supervisor."""
        supervisor, seats = (info.labels.get(key, "") for key in ("supervisor", "seats"))
        if not (supervisor and seats.isascii() and seats.isdecimal()):
            return
        self.expect(supervisor, int(seats))
        self._crews[supervisor].joined(info.name)

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Note that a worker left; one that was asked to is expected no more."""
        supervisor = info.labels.get("supervisor", "")
        crew = self._crews.get(supervisor)
        if crew is None:
            return
        crew.left(info.name, in_order=departure.in_order)
        if not crew.here and (time.monotonic() >= crew.due or crew.expected <= 0):
            del self._crews[supervisor]

    def _look(self, supervisor: str) -> None:
        crew = self._crews.get(supervisor)
        if crew is None or self._dispatcher.stages.closed:
            return
        if crew.is_gone:
            del self._crews[supervisor]
        elif crew.most < crew.expected:
            host = supervisor.partition("/")[0]
            text = wording.have_joined(crew.expected, crew.most)
            log.warning("%s: %s", host, text)
            self._dispatcher.note("missing", host, text)

    def shown(self) -> dict[str, int]:
        """Return how many workers are expected and have joined; {} if none is late."""
        now = time.monotonic()
        late = [each for each in self._crews.values() if now >= each.due and not each.is_gone]
        if all(each.most >= each.expected for each in late):
            return {}
        expected = sum(each.expected for each in late)
        return {"workers": expected, "joined": sum(min(c.most, c.expected) for c in late)}
