"""The last day of a farm in bounded memory: workers, calls and run times, for its charts.

A timer samples cheap counters every second. Each ring keeps them in steps of its own, the coarser
the longer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

from farm.call import QUESTIONS, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.timer import Timer
from farm.errors import InvalidInput
from farm.scheduler.actions import Outcome
from farm.scheduler.state import Task

STEP_S = 1.0
"""Time between samples."""

RINGS = ((1.0, 300), (10.0, 360), (120.0, 720))
"""Steps in seconds and their number: five minutes, an hour and a day. 80 kB in all."""

RUNS = 512
"""Most run times per step, the last ones, of which the median is kept."""

SERIES = ("workers", "busy", "queued", "calls_per_s", "failed_per_s", "run_p50_s")

DIGITS = 5
"""Significant digits of an answer's numbers, which keep a day short enough to send."""


class Sample:
    """A look at the farm. done, failed: calls answered since it started; runs: new run times."""

    __slots__ = ("at", "busy", "done", "failed", "queued", "runs", "workers")

    def __init__(
        self,
        at: float,
        load: tuple[int, int, int],
        done: int,
        failed: int,
        runs: list[float],
    ) -> None:
        self.at = at
        self.workers, self.busy, self.queued = load
        self.done = done
        self.failed = failed
        self.runs = runs


class Ring:
    """The last steps of one length: means of the load, rates of calls, median run times."""

    def __init__(self, step_s: float, count: int) -> None:
        self.step_s = step_s
        self.rows = np.full((count, 1 + len(SERIES)), np.nan)
        """One for each step: the time of its end, then the series."""
        self._next = 0
        self._began: Sample | None = None
        self._load: list[tuple[int, int, int]] = []
        self._runs: deque[float] = deque(maxlen=RUNS)

    @property
    def is_full(self) -> bool:
        """Whether steps were forgotten, or will be with the next one."""
        return self._next >= len(self.rows)

    def add(self, sample: Sample) -> None:
        """Add a sample, and end the step if it has lasted long enough."""
        began = self._began
        if began is None:
            self._began = sample
            return
        self._load.append((sample.workers, sample.busy, sample.queued))
        self._runs.extend(sample.runs)
        took_s = sample.at - began.at
        if took_s < self.step_s - STEP_S / 2:
            return
        done, failed = sample.done - began.done, sample.failed - began.failed
        self.rows[self._next % len(self.rows)] = (
            sample.at,
            *np.mean(self._load, axis=0),
            (done + failed) / took_s,
            failed / took_s,
            median(self._runs) if self._runs else math.nan,  # numpy's imports numpy.ma: 50 ms
        )
        self._next += 1
        self._began = sample
        self._load.clear()
        self._runs.clear()

    def ordered(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the steps so far, the oldest first."""
        if not self.is_full:
            return self.rows[: self._next]
        return np.roll(self.rows, -(self._next % len(self.rows)), axis=0)


class History:
    """Samples a dispatcher by a timer on the running event loop, and answers `history`."""

    def __init__(
        self, dispatcher: Dispatcher, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = dispatcher.view.load
        self._measures = dispatcher.measures
        self._clock = clock
        self._rings = [Ring(*each) for each in RINGS]
        self._runs: deque[float] = deque(maxlen=RUNS)
        dispatcher.on_recorded.append(self.answered)
        dispatcher.offer("history", self.answer)
        self._timer = Timer(self._ring)
        self._ring()

    def close(self) -> None:
        """End the sampling."""
        self._timer.cancel()

    def answered(self, task: Task, outcome: Outcome, now: float) -> None:
        """Note the run time of a call."""
        if isinstance(outcome, Result) and task.call.operation not in QUESTIONS:
            seconds = outcome.run_time_s
            if task.is_run:
                seconds /= max(1, outcome.rows_done(task.rows))
            self._runs.append(seconds)

    def _ring(self) -> None:
        self.sample()
        self._timer.set(time.monotonic() + STEP_S)

    def sample(self) -> None:
        """Add the state of now to all rings."""
        measures, runs = self._measures, list(self._runs)
        self._runs.clear()
        at = self._clock()
        sample = Sample(at, self._load(), measures.done, measures.failed, runs)
        for ring in self._rings:
            ring.add(sample)

    def answer(self, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return times and series as JSON data; null where nothing ran.

        since: Unix time of the first step, or minus the seconds from it to now; without it, a day.
        now: Unix time of the answer. Raises InvalidInput.
        """
        now, today = self._clock(), time.time()
        since = _number(arguments.get("since", ""))
        if since is not None:
            since = now + since if since < 0 else since - today + now
        steps = self._steps(-math.inf if since is None else since)
        times = [round(at - now + today, 2) for at in steps[:, 0].tolist()]
        series = {name: _short(steps[:, 1 + i]) for i, name in enumerate(SERIES)}
        return {"now": today, "times": times, "series": series}

    def _steps(self, since: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the steps from a time on: by the finest ring that goes back to it.

        Where that is the coarsest ring, the next finer one continues it for the time that it has.
        """
        finest = next((r for r in self._rings if _reaches(r, since)), self._rings[-1])
        steps = finest.ordered()
        if finest is self._rings[-1]:
            finer = self._rings[-2].ordered()
            if len(finer):
                before = steps[:, 0] <= finer[0, 0] - self._rings[-2].step_s / 2
                steps = np.concatenate([steps[before], finer])
        return steps[steps[:, 0] >= since]


def _reaches(ring: Ring, since: float) -> bool:
    """Whether a ring still has all steps from a time on."""
    return not ring.is_full or bool(ring.ordered()[0, 0] - ring.step_s <= since)


def _number(text: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(
            f"since is {text!r:.60}, expected a Unix time, or minus a number of seconds"
        )
    return number


def _short(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float | None]:
    return [None if math.isnan(x) else float(f"{x:.{DIGITS}g}") for x in values.tolist()]
