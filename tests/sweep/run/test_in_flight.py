"""Points in flight: submission, answers, rows, and the probe, whose points are of the sweep."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import farm
from farm.call import NO_HINTS, RUN_BYTES, Call, Hints, Result, TensorInfo
from farm.errors import (
    Cancelled,
    FarmError,
    InvalidOutput,
    ModelFailed,
    Overloaded,
    TimeLimitExceeded,
    Unavailable,
)
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import NO_WORKER, PointStatus, Row
from farm.sweep.file.store import Store
from farm.sweep.run import in_flight as module
from farm.sweep.run.evaluator import CallEvaluator, FarmUse, Threads
from farm.sweep.run.in_flight import (
    MOST_TOGETHER,
    PointInFlight,
    PointsInFlight,
    done_rows,
    numbers_of,
    probe,
    row_of,
)
from farm.sweep.run.run import Rules, Run, Stop
from tests.support.coroutines import LIMIT_S
from tests.support.time_limits import scaled
from tests.sweep.samples import BEAM, Open, plan_of


def submit_point(evaluator: CallEvaluator, plan: Plan, point: int) -> PointInFlight:
    flying = PointsInFlight(evaluator, plan)
    flying.submit(np.array([point]))
    return flying.points[point]


def answered(sent: PointInFlight, after_s: float) -> PointInFlight:
    """Return the point as if its last answer came so many seconds after its submission."""
    answers = [answer and (answer[0], sent.submission.at + after_s) for answer in sent.answers]
    return replace(sent, answers=answers)


class Many(Open):
    """Takes many calls together, as the line of a client does."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[tuple[Any, Call]]] = []
        self.cancelled: list[Any] = []
        self.receiver: Any = None

    @property
    def line(self) -> Many:
        return self

    def send(self, calls: Any, hints: Hints, receiver: Any) -> list[int]:
        self.sent.append(list(calls))
        self.receiver = receiver
        first = 100 * len(self.sent)
        return list(range(first, first + len(calls)))

    def cancel(self, ids: Any) -> bool:
        self.cancelled += ids
        return True

    def answer(self, batch: int, k: int, outcome: Any) -> None:
        self.receiver.put(self.sent[batch][k][0], outcome)
        self.receiver.flush()


def answer(u: float = 1.0, **more: Any) -> Result:
    return Result((np.full(4, u), np.array([2.0])), **more)


def gradient(*numbers: float) -> Result:
    return Result((np.array(numbers),), run_time_s=0.25)


def test_a_point_goes_out_with_all_its_calls_or_with_none() -> None:
    plan, farm = plan_of(gradients=["u[1]"]), Open()
    sent = submit_point(farm, plan, 3)
    assert sent.point == 3
    assert sent.submission.ids == farm.futures
    assert sent.answers == [None] * 3
    assert abs(sent.submission.at - time.time()) < scaled(5)
    farm = Open(room=2)
    with pytest.raises(Overloaded):
        submit_point(farm, plan_of(gradients=["u[1]"]), 3)
    assert all(future.cancelled() for future in farm.futures)


def test_a_point_ends_with_its_last_answer_or_the_first_error() -> None:
    farm = Open()
    flying = PointsInFlight(farm, plan_of(gradients=["u[1]"]))
    flying.submit(np.array([3, 5]))
    three, five = flying.points.values()
    farm.futures[1].set_result(gradient(1, 2, 3))
    assert flying.ended(0.0, 9) == ([], [])
    assert [answer is None for answer in three.answers] == [True, False, True]
    farm.futures[0].set_result(answer())
    farm.futures[5].set_exception(error := ModelFailed("x"))
    farm.futures[2].set_result(gradient(4))
    assert flying.ended(0.0, 1) == ([three], [])
    assert flying.ended(0.0, 9) == ([], [(five, error)])
    assert list(flying.points) == [5]
    flying.drop(five)
    assert not flying.points
    assert [future.cancelled() for future in farm.futures] == [False] * 3 + [True] * 2 + [False]
    assert flying.ended(0.0, 9) == ([], []), "it has ended"


def test_a_sweep_is_one_client_and_one_caller() -> None:
    plan = plan_of()
    hints = PointsInFlight(Open(), plan, 3).hints
    assert (hints.client, hints.priority, hints.chain) == (f"sweep-{plan.run_id[:8]}", 3, "")


def test_the_newest_points_without_an_answer_are_cancelled() -> None:
    farm = Open()
    flying = PointsInFlight(farm, plan_of())
    for point in (3, 1, 4, 2):
        flying.submit(np.array([point]))
    farm.futures[1].set_result(answer())
    assert flying.cancel(keep=1) == [2, 4]
    assert list(flying.points) == [3, 1]
    assert [future.cancelled() for future in farm.futures] == [False, False, True, True]
    assert flying.cancel_all() == [3, 1]
    assert not flying.points


def test_points_that_are_submitted_together_have_outcomes_of_their_own() -> None:
    farm = Many()
    flying = PointsInFlight(farm, plan_of())
    assert flying.most_together == MOST_TOGETHER
    flying.submit(np.array([7, 3, 9]))
    flying.submit(np.array([4]))
    assert [len(batch) for batch in farm.sent] == [3, 1]
    seven, three, nine, four = flying.points.values()
    assert [sent.point for sent in (seven, three, nine, four)] == [7, 3, 9, 4]
    farm.answer(0, 1, error := ModelFailed("x"))
    farm.answer(1, 0, answer())
    assert flying.ended(0.0, 9) == ([four], [(three, error)])
    flying.drop(three)
    assert flying.cancel(keep=1) == [9]
    assert farm.cancelled == [102]
    farm.answer(0, 2, answer())
    assert flying.ended(0.0, 9) == ([], []), "it was cancelled"
    farm.answer(0, 0, answer())
    assert flying.ended(0.0, 9) == ([seven], [])


def test_calls_go_one_by_one_to_others_and_long_inputs_in_small_numbers() -> None:
    long = replace(BEAM, inputs=(TensorInfo("E", (RUN_BYTES // 24,)), BEAM.inputs[1]))
    plan = plan_of("random:2", {"load": "0:1"}, info=long, fixes={"E": 1})
    assert PointsInFlight(Many(), plan).most_together == 2
    assert PointsInFlight(Open(), plan).most_together == 1


def test_an_answer_ends_a_wait() -> None:
    farm = Open()
    flying = PointsInFlight(farm, plan_of(gradients=["mass"]))
    flying.submit(np.array([3]))
    assert not flying.wait_for(flying.points[3], 0.0)
    farm.futures[0].set_result(answer())
    assert not flying.wait_for(flying.points[3], 0.001)

    def go_on() -> None:
        for future in farm.futures[1:]:
            future.set_result(gradient(1))

    rest = threading.Thread(target=go_on)
    rest.start()
    assert flying.wait_for(flying.points[3], LIMIT_S)
    assert [len(part) for part in flying.ended(0.0, 9)] == [1, 0]
    rest.join()


def test_a_row_has_the_numbers_and_times() -> None:
    plan, farm = plan_of(gradients=["u[1]"]), Open()
    sent = submit_point(farm, plan, 3)
    farm.futures[0].set_result(answer(7.0, run_time_s=1.0, queue_time_s=0.5))
    farm.futures[1].set_result(gradient(1, 2, 3))
    farm.futures[2].set_result(gradient(4))
    row = row_of(plan, answered(sent, 3), None, attempt=2, worker=5)
    assert (row.point, row.status, row.attempt, row.worker) == (3, PointStatus.DONE, 2, 5)
    assert (row.t_run, row.t_queue) == (1.5, 0.5)
    assert row.t_total == pytest.approx(3.0)
    assert row.t_start == pytest.approx(sent.submission.at + 1.5)
    assert row.values is not None
    assert row.values[:5].tolist() == [7, 7, 7, 7, 2]
    by_e, by_load = row.values[5:17].reshape(4, 3), row.values[17:].reshape(4, 1)
    assert by_e[1].tolist() == [1, 2, 3]
    assert by_load[1].tolist() == [4]
    assert np.isnan(row.values).sum() == 12
    assert not row.copied


@pytest.mark.parametrize("mark", ["copied", "reused"])
def test_a_point_is_copied_or_reused_if_one_of_its_calls_was(mark: str) -> None:
    plan, farm = plan_of(gradients=["u[1]"]), Open()
    sent = submit_point(farm, plan, 3)
    farm.futures[0].set_result(answer())
    farm.futures[1].set_result(replace(gradient(1, 2, 3), **{mark: True}))  # type: ignore[arg-type]  # a field by its name
    farm.futures[2].set_result(gradient(4))
    row = row_of(plan, sent, None, attempt=1, worker=5)
    assert (row.copied, row.reused) == (mark == "copied", mark == "reused")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelFailed("x", detail="Traceback"), PointStatus.FAILED),
        (TimeLimitExceeded("x"), PointStatus.TIMEOUT),
        (Cancelled("x"), PointStatus.CANCELLED),
    ],
)
def test_an_error_makes_a_row_without_numbers(error: FarmError, status: PointStatus) -> None:
    sent = submit_point(farm := Open(), plan_of(), 1)
    farm.futures[0].set_exception(error)
    sent = answered(sent, 5.0)
    row = row_of(plan_of(), sent, error, attempt=1, worker=0)
    assert (row.status, row.values, row.t_start) == (status, None, sent.submission.at + 5.0)
    assert row.error == f"{type(error).__name__}: x"
    assert row.traceback == error.detail
    assert math.isnan(row.t_run)


def test_outputs_of_other_sizes_are_refused() -> None:
    plan = plan_of("random:2")
    assert len(numbers_of(plan, [answer()])) == 5
    with pytest.raises(InvalidOutput, match="'u' has 3 entries, the sweep's file has 4"):
        numbers_of(plan, [Result((np.zeros(3), np.zeros(1)))])
    with pytest.raises(InvalidOutput, match="1 outputs, the sweep's file has 2"):
        numbers_of(plan, [Result((np.zeros(4),))])


def test_a_point_whose_outputs_do_not_fit_has_failed() -> None:
    plan, farm = plan_of(), Open()
    sent = submit_point(farm, plan, 0)
    farm.futures[0].set_result(Result((np.zeros(9), np.zeros(1))))
    row = row_of(plan, sent, None, attempt=1, worker=0)
    assert row.status is PointStatus.FAILED
    assert "use a separate sweep" in row.error


def test_the_slots_of_a_farm_that_answers_late_are_known_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.0)
    asked, answer = threading.Event(), threading.Event()

    class Late(Open):
        def status(self) -> dict[str, Any]:
            asked.set()
            assert answer.wait(LIMIT_S)
            return {"queues": [], "workers": [{"slots": 40}]}

    sent = PointsInFlight(Late(), plan_of(gradients=["u[1]"]))
    assert sent.use() == FarmUse(None, 0)
    assert asked.wait(LIMIT_S)
    answer.set()
    assert sent._use.result(LIMIT_S).slots == 40
    answer.clear()
    assert sent.use() == FarmUse(None, 40)
    answer.set()


def test_points_that_are_done_together_have_the_rows_of_each() -> None:
    plan, farm = plan_of(), Many()
    flying = PointsInFlight(farm, plan)
    points = np.array([7, 3, 9])
    flying.submit(points)
    some: list[dict[str, Any]] = [
        {"worker": "a"},
        {"worker": "b", "copied": True},
        {"reused": True},
    ]
    for k, more in enumerate(some):
        farm.answer(0, k, answer(7.0 + k, run_time_s=0.25 * (k + 1), queue_time_s=0.5, **more))
    done, _ = flying.ended(0.0, 9)
    attempts = np.zeros(20, np.uint8)
    attempts[[3, 9]] = 1, 255
    ids = {"a": 0, "b": 1, "": NO_WORKER}
    together = done_rows(plan, done, attempts, ids.__getitem__)
    assert together is not None
    for row, sent in zip(together, done, strict=True):
        worker = ids[sent.results()[0].worker]
        attempt = min(255, int(attempts[sent.point]) + 1)
        expected = row_of(plan, sent, None, attempt=attempt, worker=worker)
        assert row.values is not None
        assert expected.values is not None
        assert row.values.tolist() == expected.values.tolist()
        for name in set(Row._fields) - {"values"}:
            assert getattr(row, name) == getattr(expected, name), name


@pytest.mark.parametrize(
    ("outputs", "options"),
    [
        ((np.zeros(3), np.zeros(1)), {}),
        ((np.zeros(4),), {}),
        ((np.zeros(4), np.zeros(1)), {"gradients": ["u"]}),
    ],
)
def test_points_that_do_not_fit_or_have_gradients_need_a_row_each(
    outputs: tuple[np.ndarray, ...], options: dict[str, Any]
) -> None:
    plan, farm = plan_of(**options), Many()
    flying = PointsInFlight(farm, plan)
    flying.submit(np.array([1, 2]))
    size = len(plan.calls(0))
    for k in range(2 * size):
        farm.answer(0, k, Result(outputs) if k == size else answer())
    done, _ = flying.ended(0.0, 2 * size)
    assert len(done) == 2
    assert done_rows(plan, done, np.zeros(20, np.uint8), lambda name: 0) is None


class Counting(farm.Model):
    inputs = {"k": 1}
    outputs = {"y": 2}
    fails = 0
    gate: threading.Event | None = None

    def __init__(self) -> None:
        self._begun = list[int]()

    @property
    def calls(self) -> int:
        return len(self._begun)

    def describe(self, config: farm.Config) -> tuple[dict[str, int], dict[str, int]]:
        return {"k": 1}, {"y": config.get("size", 2)}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> np.ndarray:
        self._begun.append(1)  # unlike a sum, for any number of threads
        if self.gate is not None:
            self.gate.wait(LIMIT_S)
        if self.calls <= self.fails:
            raise ValueError("no such mesh")
        return np.repeat(inputs["k"], config.get("size", 2))


@pytest.fixture
def model() -> Counting:
    return Counting()


@pytest.fixture
def threads(model: Counting) -> Iterator[Threads]:
    made = Threads({"m": model}, workers=2)
    yield made
    made.close()


def plan(threads: Threads, design: str = "grid:8", **config: object) -> Plan:
    return plan_of(design, {"k": "0:1"}, info=threads.describe("m"), config=config)


def test_its_point_is_part_of_the_sweep(tmp_path: Path, threads: Threads, model: Counting) -> None:
    made = plan(threads)
    started = probe(made, threads)
    assert list(started.points) == made.mixed()[:1].tolist()
    store = Store.create(tmp_path / "s.h5", made)
    Run(store, started, rules=Rules(), stop=Stop()).go()
    assert model.calls == 8
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["out_0"][:, 1].tolist() == made.theta[:, 0].tolist()
        assert file["attempts"][:].tolist() == [1] * 8


def test_a_point_may_fail_in_its_own_right(
    tmp_path: Path, threads: Threads, model: Counting
) -> None:
    model.fails = 2
    made = plan(threads)
    started = probe(made, threads)
    assert list(started.points) == made.mixed()[:3].tolist()
    store = Store.create(tmp_path / "s.h5", made)
    progress = Run(store, started, rules=Rules(), stop=Stop()).go()
    assert (progress.done, progress.failed, model.calls) == (6, 2, 8)


@pytest.mark.parametrize(("design", "tries"), [("grid:8", 3), ("grid:1", 1)])
def test_a_model_that_fails_at_the_first_points_is_told_with_its_traceback(
    threads: Threads, model: Counting, design: str, tries: int
) -> None:
    model.fails = 3
    message = rf"first {tries} points failed.*ModelFailed.*no such mesh.*probe=False"
    with pytest.raises(SweepError, match=message) as told:
        probe(plan(threads, design), threads)
    assert "Traceback" in told.value.detail


def test_outputs_of_other_sizes_are_told(threads: Threads) -> None:
    with pytest.raises(SweepError, match="has 3 entries, the sweep's file has 2"):
        probe(plan(threads, size=3), threads)


def test_a_slow_model_keeps_nobody_waiting(
    tmp_path: Path, threads: Threads, model: Counting
) -> None:
    model.gate = threading.Event()
    made = plan(threads)
    started = probe(made, threads, patience_s=0.1)
    (sent,) = started.points.values()
    assert sent.answers == [None]
    model.gate.set()
    store = Store.create(tmp_path / "s.h5", made)
    assert Run(store, started, rules=Rules(), stop=Stop()).go().done == 8
    assert model.calls == 8


def test_a_farm_that_is_gone_is_no_fault_of_the_model(threads: Threads) -> None:
    class Gone(Threads):
        def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
            future: Future[Result] = Future()
            future.set_exception(Unavailable("gone"))
            return future

    gone = Gone({"m": Counting()})
    with pytest.raises(Unavailable):
        probe(plan(threads), gone)
    gone.close()
