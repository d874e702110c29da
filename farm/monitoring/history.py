"""The last day of a farm in bounded memory: workers, calls and run times, for its charts.

A timer samples cheap counters every second. Each ring keeps them in steps of its own, the coarser
the longer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from farm.call import QUESTIONS
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import EndedCall
from farm.dispatcher.questions import number
from farm.dispatcher.turns import Timer

STEP_S = 1.0
"""Time between samples."""

RINGS = ((1.0, 300), (10.0, 360), (120.0, 720))
"""Steps in seconds and their number: five minutes, an hour and a day."""

RUNS = 512
"""Most run times per step, the last ones, of which the median is kept."""

SERIES = ("workers", "busy", "queued", "calls_per_s", "failed_per_s", "run_p50_s")

DIGITS = 5
"""Significant digits of an answer's numbers, which keep a day short enough to send."""


class Sample(NamedTuple):
    """A look at the farm.

    load: workers, busy ones, queued calls. done, failed: calls answered since it started; runs: new
    run times.
    """

    at: float
    load: tuple[int, int, int]
    done: int
    failed: int
    runs: list[float]


Step = tuple[float, ...]
"""The time of its end, then the series: means of the load, rates of calls, median run time."""


class Ring:
    """The last steps of one length, the oldest first."""

    def __init__(self, step_s: float, count: int) -> None:
        self.step_s = step_s
        self.steps: deque[Step] = deque(maxlen=count)
        self._began: Sample | None = None
        self._load: list[tuple[int, int, int]] = []
        self._runs: deque[float] = deque(maxlen=RUNS)

    def reaches(self, since: float) -> bool:
        """Whether it still has all steps from a time on."""
        steps = self.steps
        return len(steps) != steps.maxlen or steps[0][0] - self.step_s <= since

    def add(self, sample: Sample) -> None:
        """Add a sample, and end the step if it has lasted long enough."""
        began = self._began
        if began is None:
            self._began = sample
            return
        self._load.append(sample.load)
        self._runs.extend(sample.runs)
        took_s = sample.at - began.at
        if took_s < self.step_s - STEP_S / 2:
            return
        done, failed = sample.done - began.done, sample.failed - began.failed
        self.steps.append(
            (
                sample.at,
                *map(fmean, zip(*self._load, strict=True)),
                (done + failed) / took_s,
                failed / took_s,
                median(self._runs) if self._runs else math.nan,
            )
        )
        self._began = sample
        self._load.clear()
        self._runs.clear()


class History:
    """Samples a dispatcher by a timer on the running event loop, and answers `history`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._rings = [Ring(*each) for each in RINGS]
        self._runs: deque[float] = deque(maxlen=RUNS)
        dispatcher.ended.add_window(self)
        dispatcher.questions.offer("history", self.answer)
        self._timer = Timer(self._ring)
        self._ring()

    def close(self) -> None:
        """End the sampling."""
        self._timer.set(None)

    def fold(self, records: Sequence[EndedCall]) -> None:
        """Note the run times of calls."""
        self._runs += [e.row_s for e in records if e.ran and e.operation not in QUESTIONS]

    def _ring(self) -> None:
        self.sample()
        self._timer.set(time.monotonic() + STEP_S)

    def sample(self) -> None:
        """Add the state of now to all rings."""
        self._dispatcher.ended.fold()
        measures, load = self._dispatcher.measures, self._dispatcher.view.load()
        runs = list(self._runs)
        self._runs.clear()
        sample = Sample(time.monotonic(), load, measures.done, measures.failed, runs)
        for ring in self._rings:
            ring.add(sample)

    def answer(self, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return times and series as JSON data; null where nothing ran.

        since: Unix time of the first step, or minus the seconds from it to now; without it, a day.
        now: Unix time of the answer. Raises InvalidInput.
        """
        now, today = time.monotonic(), time.time()
        expected = "a Unix time, or minus a number of seconds"
        since = number(arguments, "since", expected, least=-math.inf)
        if since is not None:
            since = now + since if since < 0 else since - today + now
        steps = self._steps(-math.inf if since is None else since)
        times = [round(step[0] - now + today, 2) for step in steps]
        series = {name: [_short(step[i]) for step in steps] for i, name in enumerate(SERIES, 1)}
        return {"now": today, "times": times, "series": series}

    def _steps(self, since: float) -> list[Step]:
        """Return the steps from a time on: by the finest ring that goes back to it.

        Where that is the coarsest ring, the next finer one continues it for the time that it has.
        """
        *_, finer, coarsest = self._rings
        finest = next((ring for ring in self._rings if ring.reaches(since)), coarsest)
        steps = [*finest.steps]
        if finest is coarsest and finer.steps:
            begins = finer.steps[0][0] - finer.step_s / 2
            steps = [*(step for step in steps if step[0] <= begins), *finer.steps]
        return [step for step in steps if step[0] >= since]


def _short(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.{DIGITS}g}")
