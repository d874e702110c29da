"""Run-time statistics, and which of a worker's tasks run and which wait."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.call import Operation
from farm.scheduler.state import LONG_RUN_ROUND_TRIPS, MAX_PREFETCH, RunTimes, needs_no_slot
from tests.scheduler.recorder import SHORT_S, Recorder, call, model, result, sent


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


def test_old_runs_are_forgotten() -> None:
    run_times = times(*[1000.0] * 50, *[2.0] * RunTimes.WINDOW)
    assert run_times.mean == pytest.approx(2.0)
    assert run_times.quantile(1.0) == 2.0


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1e6), max_size=400))
def test_mean_is_that_of_the_last_runs(seconds: list[float]) -> None:
    last = seconds[-RunTimes.WINDOW :]
    expected = math.fsum(last) / len(last) if last else 0.0
    assert times(*seconds).mean == pytest.approx(expected, abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=400))
def test_p95_lags_by_a_sixteenth_of_the_window_at_most(seconds: list[float]) -> None:
    run_times = RunTimes()
    history: list[float] = []
    for each in seconds:
        run_times.add(each)
        history.append(run_times.quantile(0.95))
        assert run_times.p95() in history[-RunTimes.WINDOW // 16 - 1 :]


def test_p95_is_of_now_while_few_runs_are_known() -> None:
    run_times = RunTimes()
    for i in range(10):
        run_times.add(float(i))
        assert run_times.p95() == run_times.quantile(0.95)


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


@pytest.mark.parametrize("actual_s", [1e-4, 5e-2])
def test_round_trip_is_measured(actual_s: float) -> None:
    run_times = RunTimes()
    for _ in range(60):
        run_times.add_round_trip(actual_s)
    assert run_times.round_trip_s == pytest.approx(actual_s, rel=0.02)


def test_round_trip_that_stands_out_counts_little() -> None:
    run_times = times(round_trip_s=1e-3)
    run_times.add_round_trip(10.0)
    assert run_times.round_trip_s == pytest.approx(1.2e-3)


def test_round_trip_never_counts_as_nothing() -> None:
    """A coarse clock, or a run time measured too long, must not stop all prefetching."""
    run_times = RunTimes()
    for _ in range(100):
        run_times.add_round_trip(-1.0)
    assert run_times.round_trip_s == pytest.approx(2e-5)


def test_round_trip_is_that_of_calls_that_found_their_worker_free(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    known_s = farm.run_times().round_trip_s
    farm.join("w")
    tasks = farm.submit_many(2)
    farm.expect(sent("w", *tasks))
    farm.after(0.5).finish("w", tasks[0], SHORT_S)  # it had another call: no message awaited
    assert farm.run_times().round_trip_s == known_s
    farm.after(0.5).finish("w", tasks[1], SHORT_S)  # it waited at the worker
    assert farm.run_times().round_trip_s == known_s
    farm.forget_actions()
    task = farm.submit()
    farm.expect(sent("w", task))
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


def test_first_lots_fill_the_slots(farm: Recorder) -> None:
    batchable = model(max_batch=2)
    farm.join("w", batchable)
    farm.run_times().add(1e-9)
    tasks = farm.submit_many(5)
    described = farm.submit(call(operation=Operation.DESCRIBE))
    farm.forget_actions()
    worker = farm.worker("w")

    def ids(slots: int) -> list[list[int]]:
        return [[task.id for task in part] for part in worker.held_in_turn(slots)]

    assert ids(0) == [[described], tasks]
    assert ids(1) == [[described, *tasks[:2]], tasks[2:]]
    assert ids(2) == [[described, *tasks[:4]], tasks[4:]]
    assert ids(3) == [[described, *tasks], []]


def test_only_descriptions_need_no_slot() -> None:
    assert [op for op in Operation if needs_no_slot(op)] == [Operation.DESCRIBE]
