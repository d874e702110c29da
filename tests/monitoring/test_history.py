"""A day in bounded memory: rates, means and medians of steps, and the finest steps for a time."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.call import Operation
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import InvalidInput
from farm.monitoring import history as module
from farm.monitoring.history import RINGS, RUNS, SERIES, History, Ring, Sample
from farm.scheduler.view import Load
from tests.dispatcher.ended_calls import answer
from tests.support.coroutines import until


def sample(at: float, *, queued: int = 0, done: int = 0, **more: Any) -> Sample:
    given = {"load": (4, 2, queued), "done": done, "failed": 0, "runs": [], **more}
    return Sample(at, **given)


def test_a_step_has_means_of_the_load_rates_of_calls_and_the_median_run_time() -> None:
    ring = Ring(2.0, 10)
    ring.add(sample(100.0, queued=90, done=10, failed=1))  # where the first step begins
    ring.add(sample(101.0, queued=10, done=12, failed=1, runs=[5.0, 1.0]))
    assert not ring.steps
    ring.add(sample(102.0, queued=20, done=16, failed=3, runs=[2.0]))
    assert [*ring.steps] == [(102.0, 4.0, 2.0, 15.0, (6 + 2) / 2.0, 2 / 2.0, 2.0)]


@pytest.mark.parametrize(
    ("runs", "median_s"), [([8.0, 1.0, 2.0, 5.0], 3.5), ([], math.nan)], ids=["even", "none"]
)
def test_the_median_of_the_runs_of_a_step(runs: list[float], median_s: float) -> None:
    ring = Ring(1.0, 10)
    ring.add(sample(0.0, runs=[7.0]))  # before the step
    ring.add(sample(1.0, runs=runs))
    assert ring.steps[0][-1] == pytest.approx(median_s, nan_ok=True)


STEP = """
import sys
from farm.monitoring import history as module
from farm.monitoring.history import Ring, Sample
ring = Ring(1.0, 10)
for at in (0.0, 1.0):
    ring.add(Sample(at, (1, 1, 0), 0, 0, [1.0, 2.0]))
print("numpy.ma" in sys.modules)
"""


def test_the_end_of_a_step_imports_nothing() -> None:
    """Calls would wait for it."""
    told = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_a_loop_that_hung_gives_one_long_step_with_the_right_rate() -> None:
    ring = Ring(1.0, 10)
    ring.add(sample(0.0))
    ring.add(sample(50.0, done=100))
    assert [(step[0], step[4]) for step in ring.steps] == [(50.0, 2.0)]


def test_a_ring_forgets_its_oldest_steps() -> None:
    ring = Ring(1.0, 3)
    for second in range(6):
        ring.add(sample(float(second)))
        assert ring.reaches(0.0) == (second <= 3)
    assert [step[0] for step in ring.steps] == [3.0, 4.0, 5.0]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, time=time.time))
    return clock


def of_hours(hours: float, clock: Clock) -> tuple[Dispatcher, History]:
    """Return the history of a farm that has run for so long and answered two calls a second."""
    dispatcher = Dispatcher([])
    dispatcher.view.load = lambda: Load(4, 2, int(clock.now) % 7)  # type: ignore[method-assign]
    history = History(dispatcher)
    history.close()
    for _ in range(round(3600 * hours)):
        clock.now += 1.0
        dispatcher.measures.done += 2
        history.sample()
    return dispatcher, history


@pytest.mark.slow
async def test_a_day_is_in_bounded_memory_and_the_finest_steps_answer_a_time(clock: Clock) -> None:
    _, history = of_hours(26.0, clock)
    for since, step_s, count in (("-60", 1.0, 60), ("-300", 1.0, 300), ("-1800", 10.0, 180)):
        answer = history.answer({"since": since})
        steps = np.diff(answer["times"])
        assert np.allclose(steps, step_s, atol=0.02), since
        assert abs(len(answer["times"]) - count) <= 1
        assert answer["times"][-1] == pytest.approx(answer["now"], abs=step_s + 0.01)
        assert set(answer["series"]) == set(SERIES)
        assert answer["series"]["calls_per_s"] == [2.0] * len(answer["times"])
    absolute = history.answer({"since": str(answer["now"] - 60)})
    assert len(absolute["times"]) == pytest.approx(60, abs=1)
    answer = history.answer({})
    times = np.asarray(answer["times"])
    assert (np.diff(times) > 0).all()
    assert times[-1] - times[0] == pytest.approx(24 * 3600, abs=240)
    late = times > answer["now"] - 3500
    assert np.allclose(np.diff(times[late]), 10.0, atol=0.02)
    early = times < answer["now"] - 3800
    assert np.allclose(np.diff(times[early]), 120.0, atol=0.02)
    assert [len(ring.steps) for ring in history._rings] == [count for _, count in RINGS]
    assert len(times) <= sum(count for _, count in RINGS)


async def test_a_young_farm_answers_a_day_with_all_it_has(clock: Clock) -> None:
    _, history = of_hours(0.05, clock)
    assert len(history.answer({})["times"]) == 180
    assert len(history.answer({"since": "-30"})["times"]) in (30, 31)


@pytest.mark.parametrize("since", ["yesterday", "nan", "inf"])
async def test_a_time_that_is_none_is_refused(clock: Clock, since: str) -> None:
    _, history = of_hours(0.0, clock)
    with pytest.raises(InvalidInput, match="since is '"):
        history.answer({"since": since})


async def test_it_notes_run_times_of_calls_and_of_nothing_else(clock: Clock) -> None:
    _, history = of_hours(0.0, clock)
    ran = answer(1, 0, 1.0, ran=True, row_s=3.0)
    history.fold([ran, answer(0, 1, 1.0)])
    history.fold([replace(ran, operation=Operation.DESCRIBE, row_s=90.0)])
    clock.now += 1.0
    history.sample()
    assert history.answer({})["series"]["run_p50_s"] == [3.0]


async def test_run_times_are_bounded_however_many_calls_end(clock: Clock) -> None:
    _, history = of_hours(0.0, clock)
    for _ in range(3 * RUNS):
        history.fold([answer(1, 0, 1.0, ran=True, row_s=random.random())])
    assert len(history._runs) == RUNS


async def test_it_samples_by_itself_until_it_is_closed() -> None:
    dispatcher = Dispatcher([])
    history = History(dispatcher)
    await until(lambda: history.answer({})["times"])
    history.close()
    await dispatcher.close(grace_s=0.0)
