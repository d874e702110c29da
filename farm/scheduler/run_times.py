"""Run times by kind of call: model, operation and config.

A config may choose a level of the model, whose runs take a thousand times as long as another's. So
whatever is decided from run times is decided from those of the call's own kind.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

MAX_PREFETCH = 256
"""Maximum calls that may wait at a worker; larger messages save nothing (measured)."""

LONG_RUN_ROUND_TRIPS = 50
"""A call longer than this many round trips gains nothing from prefetching (simulated)."""

SHORTEST_ROUND_TRIP_S = 2e-5
"""Lower bound of a round trip: a coarse clock must not stop all prefetching."""

SHORTEST_RUN_S = 1e-6
"""Lower bound of the evaluation of one row in a run of rows."""

FEW_RUNS = 64
SAMPLED = 16
"""After FEW_RUNS, one of so many runs without a change of config tells how long they take."""

WARM_UP_SHARE = 0.2
"""A warm-up that is shorter than this part of a run is not worth a preference."""

WARM_UP_RUNS = 32
LEAST_WARM_UPS = 3
TRIED_RUNS = 64
"""After so many runs, all after a change of config, each call may have a config of its own."""

SPARE = 4 / 3
"""Prefetch margin: assume that round trips may be up to a third longer than measured."""

MOST_KINDS = 64
"""Most configs of a model and operation with run times of their own. Calls with further configs are
one kind, and each of them may be like the slowest.
"""

KEPT = 0.9999
"""The slowest run of such a mixed kind counts as so much shorter with each further run."""


@dataclass(eq=False, slots=True)
class RunTimes:
    """The last run times of one kind of call, and derived statistics.

    A run is one evaluation: of a call, of a batch, or of one row of a run of rows.
    mean: seconds, 0 while no run is known; prefetch: how many lots may wait behind a running one;
    round_trip_s: the time of sending and answering without the run, 1 ms until it is measured.
    cold, warm: number of runs after a change of config and of others, and their means, with the
    last ones counting most. copies: sent so far. whole: that of all kinds, if there are others.
    """

    WINDOW = 128

    round_trip_s: float = 1e-3
    count: int = 0
    mean: float = 0.0
    prefetch: int = 0
    copies: int = 0
    whole: RunTimes | None = None
    cold: tuple[int, float] = 0, 0.0
    warm: tuple[int, float] = 0, 0.0
    _last: deque[float] = field(default_factory=partial(deque, maxlen=WINDOW))
    _sum: float = 0.0
    _p95: float = 0.0
    _p95_is_of: int = 0

    def join(self, whole: RunTimes) -> None:
        """Record all runs in `whole`, too."""
        for seconds in self._last:
            whole.add(seconds)
        self.whole = whole

    def add(self, seconds: float) -> None:
        """Record one run."""
        last = self._last
        total = self._sum + seconds
        runs = len(last)
        if runs == self.WINDOW:
            total -= last[0]
        else:
            runs += 1
        last.append(seconds)
        self._sum = total
        self.count += 1
        mean = self.mean = total / runs if total > 0.0 else 0.0
        is_long = mean > LONG_RUN_ROUND_TRIPS * self.round_trip_s
        self.prefetch = 0 if is_long else self.prefetch_for(mean)
        if self.whole is not None:
            self.whole.add(seconds)

    def add_config(self, seconds: float, *, cold: bool) -> None:
        """Record whether a run came after a change of its worker's config."""
        count, mean = self.cold if cold else self.warm
        count += 1
        mean += (seconds - mean) / min(count, WARM_UP_RUNS)
        if cold:
            self.cold = count, mean
        else:
            self.warm = count, mean

    def of_rows(self, rows: int) -> float:
        """Return the seconds that `rows` rows take if they are evaluated one after another."""
        return rows * max(self.mean, SHORTEST_RUN_S)

    def prefetch_for(self, seconds: float) -> int:
        """Return how many lots of that length may wait behind a running one."""
        if seconds > LONG_RUN_ROUND_TRIPS * self.round_trip_s:
            return 0
        if seconds * MAX_PREFETCH <= self.round_trip_s:
            return MAX_PREFETCH
        lots = self.round_trip_s / seconds
        return min(MAX_PREFETCH, math.ceil(lots if lots < 3 else SPARE * lots))

    def add_round_trip(self, seconds: float) -> None:
        """Record one measured round trip: time from sending to answer, minus the run.

        An outlier, as when a worker's host stalls, counts at most twice the usual value.
        """
        known_s = self.round_trip_s
        if seconds < SHORTEST_ROUND_TRIP_S:
            seconds = SHORTEST_ROUND_TRIP_S
        elif seconds > 2 * known_s:
            seconds = 2 * known_s
        self.round_trip_s += 0.2 * (seconds - known_s)
        if self.whole is not None:
            self.whole.add_round_trip(seconds)

    def add_copy(self) -> None:
        """Record that a copy of a slow call is sent."""
        self.copies += 1

    def quantile(self, q: float) -> float:
        """Return the q-quantile in seconds (nearest rank), 0 while no run is known."""
        if not self._last:
            return 0.0
        return sorted(self._last)[max(0, math.ceil(q * len(self._last)) - 1)]

    def p95(self) -> float:
        """Return the 95 % quantile in seconds, at most a sixteenth of the window old."""
        if self.count - self._p95_is_of > len(self._last) // 16:
            self._p95 = self.quantile(0.95)
            self._p95_is_of = self.count
        return self._p95


class MixedRunTimes(RunTimes):
    """Those of many configs, which may belong to kinds of very different lengths."""

    __slots__ = ("_longest",)

    def __init__(self, like: RunTimes) -> None:
        super().__init__(like.round_trip_s)
        self._longest = 0.0

    def add(self, seconds: float) -> None:
        """Record one run."""
        super().add(seconds)
        self._longest = max(self._longest * KEPT, seconds)

    def p95(self) -> float:
        """Return the seconds of the slowest run, long ago ones less: any call may be like it."""
        return self._longest


@dataclass(eq=False, slots=True)
class KindsOfCall:
    """The run times of a model and operation, by config.

    whole: of all kinds together, which people are shown; nothing is decided by them. While one
    config is known, its kind is the whole.
    warm_up_s: what a run takes longer after a change of the config, 0 while that is not worth it.
    """

    whole: RunTimes = field(default_factory=RunTimes)
    warm_up_s: float = 0.0
    _known: dict[str, RunTimes] = field(default_factory=dict)
    _others: MixedRunTimes | None = None

    def of(self, config: str) -> RunTimes:
        """Return the run times of calls with a config."""
        times = self._known.get(config)
        return self._unknown(config) if times is None else times

    def _unknown(self, config: str) -> RunTimes:
        known = self._known
        if not known:
            known[config] = self.whole
            return self.whole
        if len(known) == 1:
            first, self.whole = self.whole, RunTimes(self.whole.round_trip_s)
            first.join(self.whole)
        if len(known) >= MOST_KINDS and self._others is not None:
            return self._others
        if len(known) < MOST_KINDS:
            times = known[config] = RunTimes(self.whole.round_trip_s)
        else:
            times = self._others = MixedRunTimes(self.whole)
        times.join(self.whole)
        return times

    def __iter__(self) -> Iterator[RunTimes]:
        """Yield the run times of each kind."""
        yield from self._known.values()
        if self._others is not None:
            yield self._others

    def slowest_s(self) -> float:
        """Return the longest mean run of a kind."""
        return max([times.mean for times in self], default=0.0)

    def learn_warm_up(self, times: RunTimes, seconds: float, *, cold: bool) -> None:
        """Record whether a run of a kind came after a change of its worker's config.

        Only runs of one kind are compared: calls of a slow level may often follow those of others.
        """
        times.add_config(seconds, cold=cold)
        if self.whole.count > FEW_RUNS and self.whole.count % SAMPLED:
            return  # the look at all kinds takes longer
        kinds = list(self)
        colds, warms = sum([kind.cold[0] for kind in kinds]), sum([kind.warm[0] for kind in kinds])
        both = [(*kind.cold, *kind.warm) for kind in kinds if kind.cold[0] and kind.warm[0]]
        self.warm_up_s = 0.0
        if warms < LEAST_WARM_UPS:
            # Where configs alternate no run is warm, unless calls prefer warm workers for a while.
            if LEAST_WARM_UPS <= colds <= TRIED_RUNS:
                self.warm_up_s = seconds
        elif colds >= LEAST_WARM_UPS and both:
            weight = sum([warm for *_, warm, _ in both])
            warm_s = sum([warm * mean_s for *_, warm, mean_s in both]) / weight
            cold_s = sum([warm * mean_s for _, mean_s, warm, _ in both]) / weight
            if cold_s - warm_s > WARM_UP_SHARE * warm_s:
                self.warm_up_s = cold_s - warm_s
