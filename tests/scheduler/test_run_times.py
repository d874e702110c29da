"""Run-time statistics, and what is known of each kind of call."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Call
from farm.scheduler.run_times import (
    LONG_RUN_ROUND_TRIPS,
    MAX_PREFETCH,
    MOST_KINDS,
    KindsOfCall,
    RunTimes,
)
from tests.support.scheduler_recorder import SHORT_S, Recorder, call, result, sent


def times(*seconds: float, round_trip_s: float = 1e-3) -> RunTimes:
    run_times = RunTimes()
    run_times.round_trip_s = round_trip_s
    for each in seconds:
        run_times.add(each)
    return run_times


def test_nothing_is_known_at_first() -> None:
    run_times = RunTimes()
    assert (run_times.mean, run_times.quantile(0.5), run_times.p95()) == (0.0, 0.0, 0.0)
    assert run_times.prefetch == 0


def test_quantiles_are_those_of_the_nearest_rank() -> None:
    run_times = times(*(float(i) for i in range(1, 101)))
    assert run_times.quantile(0.0) == 1.0
    assert run_times.quantile(0.5) == 50.0
    assert run_times.quantile(0.95) == 95.0
    assert run_times.quantile(1.0) == 100.0
    assert run_times.mean == pytest.approx(50.5)


@given(st.lists(st.floats(0.0, 1e6), max_size=400))
def test_mean_is_that_of_the_last_runs(seconds: list[float]) -> None:
    last, known = seconds[-RunTimes.WINDOW :], times(*seconds)
    expected = math.fsum(last) / len(last) if last else 0.0
    assert known.mean == pytest.approx(expected, abs=1e-6)
    assert known.quantile(1.0) == max(last, default=0.0)


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=400))
def test_p95_lags_by_a_sixteenth_of_the_window_at_most(seconds: list[float]) -> None:
    run_times = RunTimes()
    history: list[float] = []
    for each in seconds:
        run_times.add(each)
        history.append(run_times.quantile(0.95))
        few = len(history) <= 10
        assert run_times.p95() in history[-1 if few else -RunTimes.WINDOW // 16 - 1 :]


@pytest.mark.parametrize(
    ("run_time_s", "prefetch"),
    [
        (1.0, 0),
        (LONG_RUN_ROUND_TRIPS * 1e-3 * 1.01, 0),
        (LONG_RUN_ROUND_TRIPS * 1e-3 * 0.99, 1),
        (1.1e-3, 1),
        (0.9e-3, 2),
        (0.34e-3, 3),
        (0.33e-3, 5),
        (1e-5, 134),
        (1e-3 / MAX_PREFETCH * 1.1, MAX_PREFETCH),
        (1e-9, MAX_PREFETCH),
        (0.0, MAX_PREFETCH),
    ],
)
def test_prefetch_fills_a_round_trip(run_time_s: float, prefetch: int) -> None:
    """1 + ceil(round trip / run time) calls keep a worker busy; long runs need none (simulated).

    For several calls, a third more is added.
    """
    assert times(run_time_s).prefetch == prefetch


@pytest.mark.parametrize(
    ("measured_s", "expected_s"),
    [
        ([1e-4] * 60, pytest.approx(1e-4, rel=0.02)),
        ([5e-2] * 60, pytest.approx(5e-2, rel=0.02)),
        ([1e-3] * 60 + [10.0], pytest.approx(1.2e-3)),  # one that stands out counts little
        ([-1.0] * 100, pytest.approx(2e-5)),  # it never counts as nothing
    ],
)
def test_round_trip_is_measured(measured_s: list[float], expected_s: float) -> None:
    """A coarse clock, or a run time measured too long, must not stop all prefetching."""
    run_times = RunTimes()
    for each in measured_s:
        run_times.add_round_trip(each)
    assert run_times.round_trip_s == expected_s


def test_round_trip_is_that_of_calls_that_found_their_worker_free(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    known_s = farm.run_times().round_trip_s
    farm.join("w")
    tasks = farm.begin_many("w", 2)
    farm.after(0.5).finish("w", tasks[0], SHORT_S)  # it had another call: no message awaited
    assert farm.run_times().round_trip_s == known_s
    farm.after(0.5).finish("w", tasks[1], SHORT_S)  # it waited at the worker
    assert farm.run_times().round_trip_s == known_s
    farm.forget_actions()
    task = farm.begin("w")
    farm.after(0.5).finish("w", task, SHORT_S)
    assert farm.run_times().round_trip_s > known_s
    farm.forget_actions()


def test_round_trip_is_that_of_calls_that_ended_their_workers_idling(farm: Recorder) -> None:
    """Otherwise a round trip longer than assumed would not be noticed while calls queue up."""
    farm.learn(SHORT_S)
    known_s = farm.run_times().round_trip_s
    farm.join("w")
    tasks = farm.submit_many(4)
    farm.expect(sent("w", *tasks[:2]))
    farm.after(4 * known_s + SHORT_S)
    farm.finish("w", tasks[0], result(SHORT_S, idle_s=0.9 * known_s))  # it needs that between calls
    assert farm.run_times().round_trip_s == known_s
    farm.finish("w", tasks[1], result(SHORT_S, idle_s=1.1 * known_s))
    assert farm.run_times().round_trip_s == pytest.approx(1.2 * known_s)
    farm.forget_actions()


# Kinds


def test_the_runs_of_each_config_are_a_kind_and_all_of_them_are_the_whole() -> None:
    kinds = KindsOfCall()
    quick = kinds.of("quick")
    assert quick is kinds.whole, "there is no other one"
    quick.add(1.0)
    quick.add_round_trip(2e-3)
    slow = kinds.of("slow")
    assert slow.count == 0
    assert slow.round_trip_s == quick.round_trip_s, "it is one line"
    slow.add(100.0)
    quick.add(1.0)
    assert kinds.of("quick") is quick
    assert kinds.of("slow") is slow
    assert (quick.count, quick.mean, slow.count, slow.mean) == (2, 1.0, 1, 100.0)
    assert (kinds.whole.count, kinds.whole.mean) == (3, 34.0)
    assert kinds.slowest_s() == 100.0


def test_where_configs_are_many_each_further_one_may_be_like_the_slowest() -> None:
    kinds = KindsOfCall()
    for number in range(MOST_KINDS):
        kinds.of(str(number)).add(50.0)
    others = kinds.of("a")
    assert kinds.of("b") is others, "their number is bounded"
    others.add(1.0)
    for _ in range(2000):
        others.add(1e-6)
    assert others.p95() == pytest.approx(0.8, abs=0.1)
    for _ in range(50_000):
        others.add(1e-6)
    assert others.p95() < 0.01, "that is long ago"
    assert kinds.of("0").p95() == 50.0


def test_what_two_levels_differ_by_is_no_warm_up() -> None:
    kinds = KindsOfCall()
    coarse, fine = kinds.of("coarse"), kinds.of("fine")
    for run in range(200):
        kinds.learn_warm_up(coarse, 0.01, cold=run % 5 == 0)
        if run % 5 == 4:
            kinds.learn_warm_up(fine, 1.0, cold=True)
    assert kinds.warm_up_s == 0.0
    for run in range(100):
        kinds.learn_warm_up(fine, 1.5 if run % 2 else 1.0, cold=bool(run % 2))
    assert 0.0 < kinds.warm_up_s < 0.5


# What is decided by kind


def known(farm: Recorder, worker: str, level: int, seconds: float, count: int = 20) -> None:
    """Let a worker, which is alone and idle, run calls of a level."""
    for _ in range(count):
        task = farm.begin(worker, leveled(level))
        farm.after(seconds + 1e-3).answer(worker, task, seconds)


def leveled(level: int) -> Call:
    return call(config=f'{{"level":{level}}}')


def test_nothing_waits_behind_a_call_whose_level_is_slow_or_not_known(farm: Recorder) -> None:
    farm.join("w")
    known(farm, "w", 0, 1e-5)
    farm.answer_all("w", farm.begin_many("w", 3, leveled(0)), 1e-5)
    slow = farm.submit_many(3, leveled(1))
    farm.expect(sent("w", slow[0]))
    farm.after(1.0).answer("w", slow[0], 1.0, sent("w", slow[1]))


def test_a_call_must_fit_before_the_end_of_a_worker_as_its_level_does(farm: Recorder) -> None:
    farm.join("w")
    known(farm, "w", 1, 100.0)
    known(farm, "w", 0, 1e-3, count=200)
    farm.leave("w", drained=True)
    farm.join("long", ends_at=farm.now + 1000.0)
    farm.resize("long", 0)
    farm.join("ends", ends_at=farm.now + 60.0)
    farm.forget_actions()
    slow = farm.submit(leveled(1))
    farm.expect()
    farm.scheduler.cancel(slow)
    farm.begin("ends", leveled(0))


def test_rows_run_together_by_the_times_of_their_level(farm: Recorder) -> None:
    farm.join("w")
    known(farm, "w", 0, 1e-5)
    rows_in = farm.scheduler.view.rows_in
    assert rows_in(leveled(0), 1e-3) == 100
    assert rows_in(leveled(1), 1e-3) == 1, "its time is not known"
    known(farm, "w", 1, 1e-3)
    assert rows_in(leveled(1), 2.5e-3) == 2
