"""Counts and times of models, clients and chains, and measures of the last moments.

A chain is the calls of one client that give one chain name. The fields of a model are those of the
KServe protocol's statistics extension, as in Triton.
"""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from farm.call import QUESTIONS, Call, CallerName
from farm.dispatcher.ended import ANSWERED, REFUSED, REUSED, EndedCall, EndedCalls, to_unix
from farm.scheduler.state import TaskId
from farm.scheduler.view import ClientCalls


@dataclass(slots=True)
class Duration:
    """A count of events and their total time in seconds."""

    count: float = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: float) -> None:
        """Record `count` events that took `seconds` in total."""
        self.count += count
        self.seconds += seconds


@dataclass(slots=True)
class ModelStatistics:
    """Counts and times of one model.

    success, fail: time from accepting a call to its outcome; queue: time until its run, or the run
    of its last part, starts; compute: each call's share of the runs, by rows. rows: rows that ran;
    executions: runs of the model, so that rows / executions is the mean batch size; by_batch: runs
    by number of rows. last: Unix time of the last success, 0 before the first. reused: rows whose
    answer came from an evaluation for another call. missed: rows that could have been answered so,
    but no evaluation of them was known.
    """

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute: Duration = field(default_factory=Duration)
    rows: int = 0
    executions: float = 0.0
    by_batch: dict[int, Duration] = field(default_factory=dict)
    last: float = 0.0
    reused: int = 0
    missed: int = 0

    def fold(self, records: Iterable[EndedCall], unix: float) -> None:
        """Record what ended. unix: makes a Unix time of a monotonic one, by addition."""
        done = reused = failed = 0
        done_s = failed_s = queue_s = 0.0
        rows, runs_s = defaultdict[int, int](int), defaultdict[int, float](float)
        for ended in records:
            calls, size = ended.calls_done, ended.batch_rows
            done += calls
            if ended.ending is REUSED:
                reused += calls
                self.reused += ended.done
                self.missed += ended.rows - ended.done
                continue
            if calls:
                self.last = unix + ended.at
                done_s += calls * (ended.at - ended.began)
                queue_s += calls * ended.queue_s
            if ended.calls_failed:
                failed += ended.calls_failed
                failed_s += ended.calls_failed * (ended.at - ended.began)
            if ended.ran:
                rows[size] += ended.done if ended.is_run else ended.rows
                runs_s[size] += ended.worker_s
        for size, count in rows.items():  # each task of a batch has its share of the one run
            self.rows += count
            self.executions += count / size
            self.by_batch.setdefault(size, Duration()).add(runs_s[size], count / size)
        self.success.add(done_s, done)
        self.fail.add(failed_s, failed)
        self.queue.add(queue_s, done - reused)
        self.compute.add(sum(runs_s.values()), done - reused)


BUCKETS = 12
"""Answers are counted in this many steps; rates and shares are over all of them."""

SHORTEST_SPAN_S = 1.0
"""Least time that a rate is over: one answer after a millisecond is not 1,000 calls/s."""


@dataclass(eq=False, slots=True)
class Tally:
    """Counts answers in steps of `bucket_s` seconds.

    worker_s: worker-seconds of the answered calls. last_at: time of the last answer. since_s:
    worker-seconds of all calls of the farm at the begin.
    """

    began_at: float
    bucket_s: float
    last_at: float | None = None
    done: int = 0
    failed: int = 0
    worker_s: float = 0.0
    # Lists of the number of the step, answers, worker-seconds.
    recent: deque[list[float]] = field(default_factory=partial(deque, maxlen=BUCKETS))
    _until: float = -math.inf  # end of the last step
    since_s: float = 0.0

    def fold(self, answers: Iterable[EndedCall]) -> None:
        """Count answers. Of a run, its last part counts to the recent seconds."""
        most_s = BUCKETS * self.bucket_s
        for ended in answers:
            now, worker_s = ended.at, ended.worker_s
            self.done += ended.calls_done
            self.failed += ended.calls_failed
            self.last_at = now
            if now >= self._until:
                step = int(now // self.bucket_s)
                self.recent.append([step, 0, 0.0])
                self._until = (step + 1) * self.bucket_s
            last = self.recent[-1]
            last[1] += ended.calls_done + ended.calls_failed
            self.worker_s += worker_s
            last[2] += worker_s if worker_s < most_s else most_s

    def lately(self, now: float) -> tuple[float, float]:
        """Return the rate of answers, and the worker-seconds, of the last steps."""
        first = int(now // self.bucket_s) - BUCKETS + 1
        count = seconds = 0.0
        for step, answers, worker_s in self.recent:
            if step >= first:
                count += answers
                seconds += worker_s
        if not count:
            return 0.0, seconds
        span_s = now - max(self.began_at, first * self.bucket_s)
        return count / max(SHORTEST_SPAN_S, span_s), seconds

    def add(self, other: Tally) -> None:
        """Add the counts of another tally, which is forgotten."""
        self.began_at = min(self.began_at, other.began_at)
        self.done += other.done
        self.failed += other.failed
        self.worker_s += other.worker_s
        self.last_at = max(self.last_at or 0.0, other.last_at or 0.0)
        steps: dict[float, list[float]] = {}
        for step, answers, seconds in (*self.recent, *other.recent):
            known = steps.setdefault(step, [step, 0, 0.0])
            known[1] += answers
            known[2] += seconds
        self.recent = deque((steps[step] for step in sorted(steps)), maxlen=BUCKETS)
        self._until = max(self._until, other._until)


KEPT = 1000
"""Most clients with a row of their own; the others, which called less lately, share one."""

BUCKET_S = 15.0

SHARE_OVER_S = BUCKET_S * BUCKETS
"""Shares of worker-seconds and rates are over these three minutes."""

OTHERS = "(others)"
"""The name in the row of all clients without a row of their own."""


class Clients:
    """The answers of each client since the farm started.

    Open calls are not counted here: the accounts that share the workers between clients know them.
    """

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Tally] = OrderedDict()
        self._others = Tally(math.inf, BUCKET_S)
        self._forgotten = 0

    def fold(self, answers: Iterable[EndedCall]) -> None:
        """Count answers to clients."""
        for name, some in groupby(answers, attrgetter("client")):
            of_client = list(some)
            tally = self._by_name.get(name)
            if tally is None:
                tally = self._by_name[name] = Tally(of_client[0].at, BUCKET_S)
                if len(self._by_name) > KEPT:
                    self._others.add(self._by_name.popitem(last=False)[1])
                    self._forgotten += 1
            else:
                self._by_name.move_to_end(name)
            tally.fold(of_client)

    def snapshot(self, open_calls: Mapping[str, ClientCalls], now: float) -> list[dict[str, Any]]:
        """Return a row for each client, those with the largest share of the workers first.

        open_calls: of the clients that have any now.
        """
        names = [*self._by_name, *(name for name in open_calls if name not in self._by_name)]
        rows = [_row(n, self._by_name.get(n), open_calls.get(n), now) for n in names]
        in_sum = _row(OTHERS, self._others, None, now) | {"others": self._forgotten}
        rows.sort(key=lambda r: (-r["recent_s"], -(r["queued"] + r["running"]), r["client"]))
        for row in rows[KEPT:]:
            in_sum["others"] += 1
            for key in ("callers", "queued", "running", "done", "failed", "worker_s", "recent_s"):
                in_sum[key] += row[key]
            in_sum["calls_per_s"] += row["calls_per_s"]
        rows = rows[:KEPT]
        if in_sum["others"]:
            rows.append(in_sum)
        all_s = sum(row["recent_s"] for row in rows)
        for row in rows:
            recent_s = row.pop("recent_s")
            row["share"] = recent_s / all_s if all_s > 0.0 else 0.0
        return rows


def _row(name: str, tally: Tally | None, opened: ClientCalls | None, now: float) -> dict[str, Any]:
    opened = opened or ClientCalls()
    tally = tally or Tally(now, BUCKET_S)
    per_s, recent_s = tally.lately(now)
    return {
        "client": name,
        "others": 0,
        "callers": opened.callers,
        "queued": opened.queued,
        "running": opened.running,
        "done": tally.done,
        "failed": tally.failed,
        "share": 0.0,
        "worker_s": tally.worker_s + opened.busy_s,
        "recent_s": recent_s + min(SHARE_OVER_S * opened.running, opened.busy_s),
        "calls_per_s": per_s,
        "last_s": None if tally.last_at is None else now - tally.last_at,
    }


CHAINS_KEPT = 1000
"""Most chains kept; beyond that, the one whose last call came first is forgotten."""

CHAIN_BUCKET_S = 5.0
"""The rate is over the last minute, twelve of these steps."""

SAME_AGE_S = 60.0
"""Chains with an answer in the same minute are listed by name, so that rows keep their places."""


class Chains:
    """The chains of one dispatcher: calls that give a client or a chain, without questions."""

    def __init__(self, stream: EndedCalls) -> None:
        self._stream = stream
        self._of_all_s = 0.0  # worker-seconds of all answered calls of the farm
        self._by_name: OrderedDict[CallerName, Tally] = OrderedDict()
        self._open: dict[TaskId, Tally] = {}  # of each of their tasks without an answer

    def opened(self, task_id: TaskId, call: Call, name: CallerName, now: float) -> None:
        """Count a task that was accepted now; `name` is the client and the chain."""
        if call.operation not in QUESTIONS:
            self._open[task_id] = self._chain(name, now)

    def _chain(self, name: CallerName, now: float) -> Tally:
        """Return a chain, as the one that called last."""
        if name not in self._by_name:
            self._stream.fold()  # it begins after all calls that have ended
        chain = self._by_name.get(name)
        if chain is None:
            if len(self._by_name) >= CHAINS_KEPT:
                self._by_name.popitem(last=False)
            chain = self._by_name[name] = Tally(now, CHAIN_BUCKET_S, since_s=self._of_all_s)
        else:
            self._by_name.move_to_end(name)
        return chain

    def fold(self, answers: Iterable[EndedCall]) -> None:
        """Count the answers that are of a chain."""
        for ended in answers:
            self._of_all_s += ended.worker_s
            chain = None
            if self._open:
                look = self._open.get if ended.more else self._open.pop
                chain = look(ended.task, None)
            if chain is None and ended.chain is not None:
                chain = self._chain(ended.chain, ended.at)
            if chain is not None:
                chain.fold((ended,))

    def cancelled(self, task_id: TaskId) -> None:
        """Record that a task, if it is an open one of a chain, gets no answer."""
        if task_id in self._open:
            self._stream.fold()  # some of its rows may have been answered
            del self._open[task_id]

    def snapshot(self, sent: Iterable[TaskId], now: float) -> list[dict[str, Any]]:
        """Return a row for each chain, those with the latest calls or answers first.

        sent: the tasks that workers have.
        """
        self._stream.fold()
        is_open, in_flight = Counter(self._open.values()), Counter[Tally]()
        if is_open:
            in_flight.update(chain for task in sent if (chain := self._open.get(task)) is not None)

        def place(item: tuple[CallerName, Tally]) -> tuple[int, list[tuple[int, str]]]:
            """Return the minutes since the last call or answer, then names as people count."""
            (client, name), chain = item
            last_at = chain.began_at if chain.last_at is None else chain.last_at
            age_s = 0.0 if chain in is_open else now - last_at
            words = re.split(r"(\d+)", f"{client} {name or ''}")
            return int(age_s / SAME_AGE_S), [(int(w) if w.isdecimal() else 0, w) for w in words]

        chains = sorted(self._by_name.items(), key=place)
        return [
            {
                "client": client,
                "chain": name,
                "queued": is_open[chain] - in_flight[chain],
                "in_flight": in_flight[chain],
                "began_s": now - chain.began_at,
                "done": chain.done,
                "failed": chain.failed,
                "calls_per_s": chain.lately(now)[0],
                "share": min(
                    1.0, chain.worker_s / max(chain.worker_s, self._of_all_s - chain.since_s, 1e-9)
                ),
                "run_time_s": chain.worker_s,
                "last_answer_s": None if chain.last_at is None else now - chain.last_at,
            }
            for (client, name), chain in chains
        ]


class Statistics:
    """Statistics of models, chains and clients of one dispatcher, without questions."""

    def __init__(self, stream: EndedCalls) -> None:
        self.models = defaultdict[str, ModelStatistics](ModelStatistics)
        self.chains = Chains(stream)
        self.clients = Clients()
        stream.add_window(self)

    def fold(self, records: Sequence[EndedCall]) -> None:
        """Take the records since the last time."""
        counted = [e for e in records if e.ending is not REFUSED and e.operation not in QUESTIONS]
        of_models = defaultdict(list)
        for ended in counted:
            of_models[ended.model].append(ended)
        unix = to_unix()
        for name, some in of_models.items():
            self.models[name].fold(some, unix)
        answers = [e for e in counted if e.calls_done or e.calls_failed or e.ending is ANSWERED]
        self.clients.fold(answers)
        self.chains.fold(answers)


SAMPLES = 2000
"""Samples per percentile: enough for a p99, few enough to sort for each snapshot."""


class Measures:
    """Counts and recent samples of one dispatcher.

    overhead_s: time from call to answer minus the model's run time, of calls that found an idle
    worker; idle_gap_s: time that a worker was idle before a call that was already queued.
    """

    def __init__(self, stream: EndedCalls) -> None:
        stream.add_window(self)
        self._overhead_s: deque[float] = deque(maxlen=SAMPLES)
        self._idle_gap_s: deque[float] = deque(maxlen=SAMPLES)
        self._done_at: deque[float] = deque(maxlen=SAMPLES)
        self.done = 0
        self.failed = 0
        self.run_time_s = 0.0

    def fold(self, records: Sequence[EndedCall]) -> None:
        """Take the records since the last time; each row of a run counts."""
        for ended in records:
            if ended.ending is not ANSWERED:
                continue
            if ended.failure is not None:
                self.failed += ended.failure.calls
            if not ended.ran:
                self._done_at.append(ended.at)
                continue
            if ended.is_run:
                self._done_at.extend([ended.at] * min(ended.done, SAMPLES))
                self.done += ended.done
            else:
                self._done_at.append(ended.at)
                self.done += 1
            self.run_time_s += ended.run_s
            if ended.copied:
                continue  # the time before the copy is neither overhead nor idle time
            if not ended.waited:
                self._overhead_s.append(ended.at - ended.began - ended.run_s)
            elif ended.idle_s >= 0.0:
                self._idle_gap_s.append(ended.idle_s)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return counts, calls/s over the last 10 s, and percentiles in seconds, as JSON data."""
        recent = sum(1 for t in self._done_at if t > now - 10.0)
        span = 10.0
        if recent == SAMPLES:  # the samples span less than 10 s: use their span
            span = max(now - self._done_at[0], 1e-9)
        return {
            "done": self.done,
            "failed": self.failed,
            "run_time_s": self.run_time_s,
            "calls_per_s": recent / span,
            "overhead_s": _percentiles(self._overhead_s),
            "idle_gap_s": _percentiles(self._idle_gap_s),
        }


def _percentiles(samples: deque[float]) -> dict[str, float] | None:
    if not samples:
        return None
    last = len(samples) - 1  # `np.percentile` does the same, and loads `numpy.ma` for it
    places = (0.5 * last, 0.95 * last, 0.99 * last)
    p50, p95, p99 = np.interp(places, np.arange(last + 1), np.sort(samples))
    return {"p50": float(p50), "p95": float(p95), "p99": float(p99), "samples": len(samples)}
