"""The run: every point is evaluated once and stored correctly, whatever fails meanwhile."""

from __future__ import annotations

import errno
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import pytest

import farm
from farm.call import NO_HINTS, Call, Hints, ModelInfo, Operation, Result
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidOutput,
    ModelFailed,
    ModelNotFound,
    Overloaded,
    TimeLimitExceeded,
    Unavailable,
    WorkerLost,
)
from farm.machine.daemon_pool import aside
from farm.storage import lock as lock_module
from farm.sweep.design.plan import SHUFFLED, Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.progress import Meter, Progress, read_status, status_of
from farm.sweep.file.recovery import RUNNING, journal_of, lock_of
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.order import submission as submission_module
from farm.sweep.order.submission import ENOUGH
from farm.sweep.run import concurrency_limit as limit_module
from farm.sweep.run import run as run_module
from farm.sweep.run.concurrency_limit import START
from farm.sweep.run.evaluator import AnswerReceiver, CallEvaluator, Threads
from farm.sweep.run.in_flight import PointsInFlight, hints_of
from farm.sweep.run.run import (
    LEAST_MARGIN,
    Rules,
    Run,
    RunHost,
    Stop,
    recallable_after,
    rules_of,
)
from tests.support.coroutines import LIMIT_S, wait_until
from tests.sweep.samples import BEAM, done, plan_of, stored


class Beam(farm.Model):
    """A model whose outputs contain the inputs, so that a misplaced row is noticed."""

    inputs = {"E": 3, "load": 1}
    outputs = {"u": 4, "mass": 1}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> dict[str, np.ndarray]:
        return {"u": np.append(inputs["E"], inputs["load"]), "mass": inputs["load"] * 2}

    def gradient(
        self,
        out_wrt: int,
        in_wrt: int,
        inputs: farm.Inputs,
        sens: np.ndarray,
        config: farm.Config,
    ) -> np.ndarray:
        by_e = np.hstack([np.eye(3), np.zeros((3, 1))]) if out_wrt == 0 else np.zeros((3, 1))
        by_load = np.array([[0.0, 0, 0, 1]]) if out_wrt == 0 else np.array([[2.0]])
        return np.asarray((by_e if in_wrt == 0 else by_load) @ sens)


Judge = Callable[[Call, int], FarmError | None]


class Farm:
    """A farm on threads whose outcomes a test may decide: `judge(call, number of the call)`.

    judge: returns None to evaluate the call, or the error to answer with; may wait.
    """

    def __init__(
        self,
        judge: Judge | None = None,
        *,
        model: Beam | None = None,
    ) -> None:
        self._threads = Threads({"beam": model or Beam()}, workers=4)
        self._judge = judge or (lambda call, number: None)
        self.calls: list[Call] = []
        self.hints: list[Hints] = []
        self.in_flight = self.most_in_flight = 0
        self._lock = threading.Lock()

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        return self._threads.describe(model, config)

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        with self._lock:
            self.calls.append(call)
            self.hints.append(hints)
            number = len(self.calls)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        error = self._judge(call, number)
        if error is None:
            future = self._threads.submit(call)
        else:
            future = Future()
            future.set_exception(error)
        future.add_done_callback(self._landed)
        return future

    def _landed(self, future: Future[Result]) -> None:
        with self._lock:
            self.in_flight -= 1

    @property
    def evaluated(self) -> list[tuple[float, ...]]:
        """Return the inputs of all requested evaluations."""
        calls = [c for c in self.calls if c.operation is Operation.EVALUATE]
        return [tuple(np.concatenate([x.ravel() for x in call.inputs])) for call in calls]

    def close(self) -> None:
        self._threads.close()


F = TypeVar("F", bound=Farm)


class Farms:
    """Makes farms; the fixture closes them."""

    def __init__(self) -> None:
        self.made: list[Farm] = []

    def __call__(self, judge: Judge | None = None) -> Farm:
        return self.of(Farm(judge))

    def of(self, farm: F) -> F:
        self.made.append(farm)
        return farm


@pytest.fixture
def farms() -> Iterator[Farms]:
    made = Farms()
    yield made
    for each in made.made:
        each.close()


def beam_plan(design: str = "random:40", **options: Any) -> Plan:
    return plan_of(design, info=Threads({"beam": Beam()}).describe("beam"), **options)


class Host(RunHost):
    """Calls functions of a test."""

    def __init__(
        self,
        watch: Callable[[Progress], None] = lambda progress: None,
        on_row: Callable[[Row], None] = lambda row: None,
        reconnect: Callable[[], Farm] | None = None,
    ) -> None:
        self._watch = watch
        self._on_row = on_row
        self._reconnect = reconnect

    def show(self, progress: Progress) -> None:
        self._watch(progress)

    def stored(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._on_row(row)

    def reconnect(self, evaluator: CallEvaluator) -> CallEvaluator:
        return evaluator if self._reconnect is None else self._reconnect()


def run(
    store: Store,
    evaluator: CallEvaluator,
    *,
    stop: Stop | None = None,
    retry_failed: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    on_row: Callable[[Row], None] = lambda row: None,
    reconnect: Callable[[], Farm] | None = None,
    priority: int = 0,
    **rules: Any,
) -> Progress:
    host = Host(watch, on_row, reconnect)
    sent = PointsInFlight(evaluator, store.plan, priority)
    session = Run(store, sent, rules=Rules(**rules), stop=stop or Stop(), host=host)
    return session.go(retry_failed=retry_failed)


class Large(Farm):
    """A farm that answers nothing until it has `most` calls, and says how many it runs at once.

    joining: the slots that there are once it has `START` calls.
    """

    def __init__(self, most: int, slots: int, joining: int) -> None:
        super().__init__()
        self._most, self._slots, self._joining = most, slots, joining
        self._held: list[tuple[Future[Result], Future[Result]]] = []

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        answer: Future[Result] = Future()
        self._held.append((answer, super().submit(call, hints)))
        if len(self.calls) == START:
            self._slots += self._joining
        if len(self.calls) >= self._most:
            for held, done in self._held:
                held.set_result(done.result())
            self._held = []
        return answer

    def status(self) -> dict[str, Any]:
        return {"queues": [], "workers": [{"slots": self._slots}, {"slots": 1}]}


def check(path: Path, plan: Plan, expected: Mapping[int, PointStatus] | None = None) -> None:
    """Check that every row of the file belongs to its point, and the others' status."""
    with h5py.File(path) as file:
        status, u, mass = (file[name][:] for name in ("status", "out_0", "out_1"))
    wanted = [(expected or {}).get(point, PointStatus.DONE) for point in range(plan.size)]
    assert status.tolist() == wanted
    ended = status == PointStatus.DONE
    assert np.array_equal(u[ended], plan.theta[ended])
    assert np.array_equal(mass[ended], 2 * plan.theta[ended, 3:])
    assert np.all(np.isnan(u[~ended]))


def complete(store: Store, evaluator: CallEvaluator, **options: Any) -> None:
    """Run to the end, and check that every point is done and belongs to its row."""
    progress = run(store, evaluator, **options)
    assert (progress.state, progress.done) == (COMPLETE, store.plan.size)
    check(store.path, store.plan)


def test_every_point_is_evaluated_once_with_times_and_worker(path: Path, farms: Farms) -> None:
    plan, evaluator, before = beam_plan("random:300"), farms(), time.time()
    rows: list[Row] = []
    progress = run(Store.create(path, plan), evaluator, on_row=rows.append, priority=3)
    assert (progress.state, progress.done, progress.pending) == (COMPLETE, 300, 0)
    assert sorted(row.point for row in rows) == list(range(300))
    assert evaluator.hints == [hints_of(plan, 3)] * 300
    check(path, plan)
    assert sorted(os.listdir(path.parent)) == ["s.h5", "s.h5.status.json"]
    with h5py.File(path) as file:
        assert np.all((file["t_start"][:] >= before - 0.1) & (file["t_start"][:] < time.time()))
        total, inside = file["t_total"][:], file["t_queue"][:] + file["t_run"][:]
        assert np.all(total >= 0.9 * inside)
        assert len(file["workers/name"]) == len(np.unique(file["worker"][:])) <= 4
        assert file["summary"].attrs["done"] == 300
        assert 0 < file["summary"].attrs["efficiency"] <= 1.05


def test_gradients_land_beside_the_outputs(path: Path, farms: Farms) -> None:
    plan = beam_plan("random:10", gradients=["u[1]", "u[3]", "mass"])
    run(Store.create(path, plan), farms())
    check(path, plan)
    with h5py.File(path) as file:
        by_e, by_load = file["grad_0_0"][7], file["grad_0_1"][7]
        assert by_e[[1, 3]].tolist() == [[0, 1, 0], [0, 0, 0]]
        assert by_load[[1, 3]].tolist() == [[0], [1]]
        assert np.all(np.isnan(by_e[[0, 2]]) & np.isnan(by_load[[0, 2]]))
        assert file["grad_1_1"][:].ravel().tolist() == [2.0] * 10


def test_a_failed_point_is_recorded_and_the_others_go_on(path: Path, farms: Farms) -> None:
    plan = beam_plan()
    errors: dict[int, tuple[Exception, PointStatus]] = {
        5: (ModelFailed("boom", detail="Traceback"), PointStatus.FAILED),
        6: (InvalidOutput("bad"), PointStatus.FAILED),
        7: (WorkerLost("gone"), PointStatus.FAILED),
        8: (TimeLimitExceeded("slow"), PointStatus.TIMEOUT),
        9: (DeadlineExceeded("late"), PointStatus.TIMEOUT),
        10: (Cancelled("taken back"), PointStatus.CANCELLED),
        11: (ZeroDivisionError("none of the farm's"), PointStatus.FAILED),
    }
    bad = {tuple(plan.theta[point]): error for point, (error, _) in errors.items()}

    def judge(call: Call, number: int) -> Any:
        return bad.get(tuple(np.concatenate(call.inputs)))

    progress = run(Store.create(path, plan), farms(judge))
    assert (progress.state, progress.unsuccessful) == (COMPLETE, len(errors))
    check(path, plan, {point: status for point, (_, status) in errors.items()})
    with h5py.File(path) as file:
        names = ("point", "error", "traceback")
        rows = zip(*(file[f"failures/{name}"][:] for name in names), strict=True)
        told = {int(point): (text.decode(), detail.decode()) for point, text, detail in rows}
    text, detail = told.pop(11)
    assert text == "FarmError: ZeroDivisionError: none of the farm's"
    assert "Traceback" in detail
    for point, (text, detail) in told.items():
        error = errors[point][0]
        assert text == f"{type(error).__name__}: {error}"
        assert detail == getattr(error, "detail", None)
    assert told.keys() == errors.keys() - {11}


def test_failed_points_are_retried_when_asked(path: Path, farms: Farms) -> None:
    plan = beam_plan()
    run(
        Store.create(path, plan),
        farms(lambda call, number: ModelFailed("x") if number % 4 == 0 else None),
    )
    evaluator = farms()
    progress = run(Store.resume(path), evaluator)
    assert (progress.failed, len(evaluator.calls)) == (10, 0)
    progress = run(Store.resume(path), evaluator, retry_failed=True)
    assert (progress.failed, len(evaluator.calls)) == (0, 10)
    check(path, plan)
    with h5py.File(path) as file:
        assert sorted(file["attempts"][:].tolist()) == [1] * 30 + [2] * 10
        assert len(file["failures/row"]) == 10


@pytest.mark.parametrize("by", ["answer", "submit"])
def test_a_full_farm_is_waited_for(path: Path, farms: Farms, by: str) -> None:
    def judge(call: Call, number: int) -> FarmError | None:
        if 10 < number < 15 or number == 60:
            if by == "submit":
                raise Overloaded("queue is full")
            return Overloaded("queue is full")
        return None

    complete(Store.create(path, beam_plan("random:60")), farms(judge))


@pytest.mark.parametrize("error", [Unavailable("gone"), ModelNotFound("not yet")])
def test_a_lost_farm_is_waited_for(path: Path, farms: Farms, error: FarmError) -> None:
    messages: list[str] = []

    def told() -> bool:
        return any("cannot be reached" in message for message in messages)

    def judge(call: Call, number: int) -> FarmError | None:
        return error if number > 20 and not told() else None

    store = Store.create(path, beam_plan("random:60"))
    complete(store, farms(judge), watch=lambda p: messages.append(p.message))
    assert told()
    assert messages[-1] == ""


def test_a_farm_that_was_started_anew_is_found_again(path: Path, farms: Farms) -> None:
    old = farms(lambda call, number: Unavailable("gone") if number > 20 else None)
    new = farms()
    tries: list[int] = []

    def reconnect() -> Farm:
        tries.append(1)
        if len(tries) < 3:
            raise Unavailable("not yet")
        return new

    complete(Store.create(path, beam_plan("random:60")), old, reconnect=reconnect)
    assert len(new.calls) >= 40


def test_a_farm_that_stays_away_ends_the_session(path: Path, farms: Farms) -> None:
    gone = farms(lambda call, number: Unavailable("gone") if number > 10 else None)
    progress = run(Store.create(path, beam_plan()), gone, in_flight=1, lost_s=0.5)
    assert (progress.state, progress.done) == ("farm lost", 10)
    assert journal_of(path).exists()
    complete(Store.resume(path), farms())


@pytest.mark.parametrize(("slots", "joining"), [(99, 0), (0, 99)])
def test_a_farm_has_points_for_all_its_slots_before_it_answers(
    path: Path, farms: Farms, monkeypatch: pytest.MonkeyPatch, slots: int, joining: int
) -> None:
    monkeypatch.setattr(limit_module, "FIRST_LOOK_S", 0.01)
    store = Store.create(path, beam_plan("random:450"))
    complete(store, farms.of(Large(400, slots, joining)))


class Together(Farm):
    """A farm that takes many calls together, and counts those of each message."""

    def __init__(self, judge: Judge | None = None, *, model: Beam | None = None) -> None:
        super().__init__(judge, model=model)
        self.messages: list[int] = []

    @property
    def line(self) -> Together:
        return self

    def send(self, calls: Any, hints: Hints, receiver: AnswerReceiver) -> list[Future[Result]]:
        self.messages.append(len(calls))
        ids = []
        for key, call in calls:
            ids.append(self.submit(call, hints))
            ids[-1].add_done_callback(partial(self._deliver, receiver, key))
        return ids

    def _deliver(self, receiver: AnswerReceiver, key: Any, future: Future[Result]) -> None:
        if not future.cancelled():
            receiver.put(key, future.exception() or future.result())
            receiver.flush()

    def cancel(self, ids: Iterable[Future[Result]]) -> bool:
        return True in [future.cancel() for future in ids]


def test_short_points_are_submitted_together_and_each_has_its_outcome(
    path: Path, farms: Farms
) -> None:
    plan = beam_plan("grid:5")
    bad = {tuple(plan.theta[k]): PointStatus.FAILED for k in range(3, plan.size, 7)}
    refused: list[int] = []

    def judge(call: Call, number: int) -> FarmError | None:
        if number == 300:  # so that the answers of these are met together
            wait_until(lambda: together.in_flight == 1)
        if number % 500 == 0:
            refused.append(number)
            return Overloaded("queue is full")
        return ModelFailed("x") if tuple(np.concatenate(call.inputs)) in bad else None

    together = farms.of(Together(judge))
    progress = run(Store.create(path, plan), together, in_flight=300)
    assert progress.state == COMPLETE
    assert len(together.calls) == plan.size + len(refused)
    assert together.most_in_flight <= 300
    assert max(together.messages) > 100
    assert together.messages[:ENOUGH] == [1] * ENOUGH
    expected = {k: PointStatus.FAILED for k in range(plan.size) if tuple(plan.theta[k]) in bad}
    check(path, plan, expected)
    order = [tuple(theta) for theta in plan.theta[plan.mixed()]]
    assert together.evaluated[:499] == order[:499]


@pytest.mark.parametrize("reason", ["long", "not repeatable"])
def test_other_points_are_submitted_one_by_one(
    path: Path, farms: Farms, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    plan = beam_plan("random:300")
    if reason == "long":
        monkeypatch.setattr(submission_module, "LEAST_RUN_S", 0.0)
        plan = replace(plan, order=SHUFFLED)
    else:
        plan = replace(plan, info=replace(plan.info, repeatable=False))
    together = farms.of(Together())
    complete(Store.create(path, plan), together, in_flight=50)
    assert together.messages == [1] * 300


def test_a_line_that_is_closed_gives_the_points_back(path: Path, farms: Farms) -> None:
    class Closed(Together):
        def send(self, calls: Any, hints: Hints, receiver: AnswerReceiver) -> list[Future[Result]]:
            if len(self.messages) == 25:
                raise Unavailable("the client is closed")
            return super().send(calls, hints, receiver)

    closed, new = farms.of(Closed()), farms.of(Together())
    store = Store.create(path, beam_plan("random:400"))
    complete(store, closed, reconnect=lambda: new, in_flight=30)
    assert len(closed.calls) + len(new.calls) == 400
    assert new.calls


def test_too_many_failures_stop_it(path: Path, farms: Farms) -> None:
    plan = beam_plan("random:100")
    bad = farms(lambda call, number: ModelFailed("x") if number > 10 else None)
    progress = run(Store.create(path, plan), bad, in_flight=1, max_failures=5)
    assert (progress.state, progress.done, progress.failed) == ("too many failures", 10, 6)
    assert run(Store.resume(path), farms(), retry_failed=True).done == 100


class Gated(Beam):
    """Evaluates some points, the first ones on one thread each; the others once a gate is open."""

    def __init__(self, free: int, threads: int = 1) -> None:
        self.gate = threading.Event()
        self.is_told = False
        self._free = free
        self._meeting = threading.Barrier(threads)
        self._numbers = itertools.count()

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> dict[str, np.ndarray]:
        number = next(self._numbers)
        if number < self._meeting.parties:
            self._meeting.wait(LIMIT_S)
        if number >= self._free and not self.gate.wait(LIMIT_S):
            self.gate.set()  # the test fails, and not once for each point
        return super().evaluate(inputs, config)

    def open_if_stopping(self, progress: Progress) -> None:
        if progress.message.startswith("stopping: "):
            self.is_told = True
            self.gate.set()


def test_the_time_limit_stops_it(path: Path, farms: Farms, monkeypatch: pytest.MonkeyPatch) -> None:
    gated, rows = Gated(50), list[Row]()
    monkeypatch.setattr(Meter, "elapsed_s", lambda *_: 1.0 if len(rows) >= 50 else 0.0)
    slow, watch = farms.of(Farm(model=gated)), gated.open_if_stopping
    store = Store.create(path, beam_plan("random:100"))
    progress = run(store, slow, max_s=0.5, on_row=rows.append, watch=watch)
    gated.gate.set()
    assert gated.is_told, "before it waits"
    assert (progress.state, progress.in_flight) == ("out of time", 0)
    assert 50 <= progress.done <= 54


def test_asked_to_stop_it_waits_for_what_runs(path: Path, farms: Farms) -> None:
    stop, gated = Stop(), Gated(0)

    def watch(progress: Progress) -> None:
        stop.asked = True
        gated.open_if_stopping(progress)

    slow = farms.of(Farm(model=gated))
    plan = beam_plan("random:100")
    progress = run(Store.create(path, plan), slow, stop=stop, watch=watch, in_flight=4)
    assert gated.is_told
    assert (progress.state, progress.done, len(slow.calls)) == ("interrupted", 4, 4)
    check(path, plan, dict.fromkeys(range(4, 100), PointStatus.PENDING))


def test_asked_to_stop_it_takes_back_what_waits(
    path: Path, farms: Farms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four known workers, all points in flight except the four oldest are cancelled."""
    monkeypatch.setattr(run_module, "STATUS_S", 1e9)  # who asked is told at once
    stop, gated = Stop(), Gated(24, threads=4)
    rows: list[Row] = []

    def on_row(row: Row) -> None:
        rows.append(row)
        if len(rows) == 24:
            stop.ask()

    slow, watch = farms.of(Farm(model=gated)), gated.open_if_stopping
    store = Store.create(path, beam_plan("random:300"))
    first = run(store, slow, stop=stop, on_row=on_row, watch=watch)
    gated.gate.set()
    assert (first.state, gated.is_told) == ("interrupted", True)
    assert first.done == 28
    evaluator = farms()
    complete(Store.resume(path), evaluator)
    assert len(evaluator.calls) == 300 - first.done


class TwoAtOnce(Together):
    """A farm of two workers; a call ends and another begins before any is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Future[Result]] = []
        self._waiting: list[tuple[Future[Result], Call]] = []
        self._running: list[tuple[Future[Result], Call]] = []
        self._cancels = False

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        future: Future[Result] = Future()
        self._waiting.append((future, call))
        self._begin()
        return future

    def status(self) -> dict[str, Any]:
        return {"queues": [{"model": "beam", "in_flight": len(self._running)}]}

    def cancel(self, ids: Iterable[Future[Result]]) -> bool:
        self._is_cancelling()
        return super().cancel(ids)

    def answer_one(self) -> None:
        future, call = self._running.pop(0)
        if not future.cancelled():
            future.set_result(self._threads.submit(call).result())
        self._begin()

    def finish(self) -> None:
        while self._running:
            self.answer_one()

    def _is_cancelling(self) -> None:
        if not self._cancels:
            self._cancels = True
            self.answer_one()

    def _begin(self) -> None:
        while self._waiting and len(self._running) < 2:
            if not self._waiting[0][0].cancelled():
                self._running.append(self._waiting[0])
                self.begun.append(self._waiting[0][0])
            del self._waiting[0]


class Exact(TwoAtOnce):
    """One that cancels what waits and nothing else."""

    def cancel_waiting(self, ids: Iterable[Future[Result]]) -> None:
        self._is_cancelling()
        some = [waiting for waiting in self._waiting if waiting[0] in ids]
        self._waiting = [waiting for waiting in self._waiting if waiting not in some]
        for future, _ in some:
            future.set_exception(Cancelled("it waited"))


@pytest.mark.parametrize(("kind", "lost"), [(Exact, 0), (TwoAtOnce, 1)])
def test_asked_to_stop_it_leaves_the_farm_to_say_what_waits(
    path: Path, farms: Farms, kind: type[TwoAtOnce], lost: int
) -> None:
    """A call that begins meanwhile is not cancelled, if the farm can tell."""
    stop, two = Stop(), farms.of(kind())
    store = Store.create(path, beam_plan("random:20"))

    def watch(progress: Progress) -> None:
        if progress.message:
            two.finish()  # now that it waits
        elif len(two.begun) == 2 and not stop.asked:
            two.answer_one()
            stop.ask()

    progress = run(store, two, stop=stop, watch=watch, in_flight=10)
    assert (progress.state, progress.done) == ("interrupted", len(two.begun) - lost)
    assert progress.unsuccessful == 0, "what is taken back is pending"
    complete(Store.resume(path), farms())


def test_what_the_owner_cancelled_stays_cancelled_when_the_sweep_stops(
    path: Path, farms: Farms
) -> None:
    class Owned(Exact):
        def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
            future = super().submit(call, hints)
            if len(self._waiting) == 8:
                for waiting in self._waiting[-5:]:
                    waiting[0].set_exception(Cancelled("by the owner"))
                del self._waiting[-5:]
                stop.ask()
            return future

    stop, owned = Stop(), farms.of(Owned())

    def watch(progress: Progress) -> None:
        if progress.message:
            owned.finish()

    store = Store.create(path, beam_plan("random:20"))
    progress = run(store, owned, stop=stop, watch=watch, in_flight=10)
    assert progress.done == len(owned.begun)
    assert (progress.cancelled, progress.pending) == (5, 15 - progress.done)


def test_asked_twice_it_leaves_at_once(path: Path, farms: Farms) -> None:
    stop, gate = Stop(), threading.Event()

    class Never(Farm):
        def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
            if len(self.calls) >= 10:
                self.calls.append(call)
                gate.set()
                return Future()
            return super().submit(call, hints)

    def ask() -> None:
        gate.wait(LIMIT_S)
        stop.ask()
        stop.ask_at_once()

    threading.Thread(target=ask).start()
    store = Store.create(path, beam_plan("random:50"))
    began = time.monotonic()
    progress = run(store, farms.of(Never()), stop=stop, in_flight=3)
    assert time.monotonic() - began < LIMIT_S
    assert (progress.state, progress.done, progress.pending) == ("interrupted", 10, 40)
    complete(Store.resume(path), farms())


def test_a_farm_that_does_not_answer_holds_up_no_request_to_stop(path: Path, farms: Farms) -> None:
    stop, asked, closed = Stop(), threading.Event(), threading.Event()

    class Silent(Farm):
        def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
            stop.ask()
            return Future()

        def status(self) -> dict[str, Any]:
            asked.set()
            closed.wait()
            raise Unavailable("closed")

    def watch(progress: Progress) -> None:
        if asked.is_set():
            stop.ask_at_once()

    silent = farms.of(Silent())
    running = aside(lambda: run(Store.create(path, beam_plan()), silent, stop=stop, watch=watch))
    try:
        progress = running.result(LIMIT_S)
    finally:
        closed.set()
    assert (progress.state, progress.pending) == ("interrupted", 40)


class Disk:
    """A disk that is full from the outcome of point 50 on, until a test makes room."""

    def __init__(self) -> None:
        self.is_full = False
        self._pwrite = os.pwrite

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._pwrite(fd, data, offset)

    def on_row(self, row: Row) -> None:
        self.is_full = self.is_full or row.point == 50


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "pwrite", made.pwrite)
    return made


@pytest.mark.slow
def test_a_full_disk_stops_the_giving_and_loses_nothing(
    path: Path, farms: Farms, disk: Disk
) -> None:
    evaluator = farms()
    told: list[int] = []

    def watch(progress: Progress) -> None:
        if "No space" in progress.message:
            told.append(len(evaluator.calls))
            if len(told) == 2:
                disk.is_full = False

    store = Store.create(path, beam_plan("random:200"))
    complete(store, evaluator, watch=watch, on_row=disk.on_row, in_flight=10)
    assert told[0] == told[1] <= 70
    assert len(evaluator.calls) == 200


def test_a_full_disk_and_its_end_are_told_at_once(
    path: Path, farms: Farms, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []

    def watch(progress: Progress) -> None:
        if progress.state == RUNNING:
            messages.append(progress.message)
        if "No space" in progress.message:
            disk.is_full = False

    monkeypatch.setattr(run_module, "STATUS_S", 1e9)
    store = Store.create(path, beam_plan("random:200"))
    complete(store, farms(), watch=watch, on_row=disk.on_row)
    first = next(i for i, message in enumerate(messages) if "No space" in message)
    assert messages[first + 1 :] == [""]


def test_leaving_with_a_full_disk_says_so_and_can_be_resumed(
    path: Path, farms: Farms, disk: Disk
) -> None:
    stop = Stop()

    def watch(progress: Progress) -> None:
        if progress.message:
            stop.ask()

    store = Store.create(path, beam_plan("random:200"))
    with pytest.raises(SweepError, match="No space left"):
        run(store, farms(), stop=stop, on_row=disk.on_row, watch=watch)
    disk.is_full = False
    status = read_status(status_of(path))
    assert status is not None
    assert status.state == "failed"
    assert not lock_of(path).exists()
    complete(Store.resume(path), farms())


def test_a_sweep_that_was_taken_over_ends(
    path: Path, farms: Farms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "BEAT_S", 0.0)

    def on_row(row: Row) -> None:
        lock_of(path).write_text('{"token": "x", "pid": 1, "host": "elsewhere"}')

    with pytest.raises(SweepError, match="the sweep continues there"):
        run(Store.create(path, beam_plan()), farms(), on_row=on_row)


def test_the_status_file_tells_while_it_runs(
    path: Path, farms: Farms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "STATUS_S", 0.0)
    states: set[tuple[str, int]] = set()

    def on_row(row: Row) -> None:
        status = read_status(status_of(path))
        if status is not None:
            states.add((status.state, status.total))

    run(Store.create(path, beam_plan()), farms(), on_row=on_row, in_flight=1)
    assert states == {("running", 40)}
    last = read_status(status_of(path))
    assert last is not None
    assert (last.state, last.done) == (COMPLETE, 40)


class Queue:
    """A farm without time that runs `workers` calls, the oldest first, each as long as told.

    It begins once all points are submitted, and ends the oldest call after each outcome. If it
    reports no status, it is like a server that is not a farm.
    """

    workers = 4

    def __init__(self, plan: Plan, run_s: np.ndarray) -> None:
        self._number = {plan.inputs_of(k)[1].item(): k for k in range(plan.size)}
        self._run_s = run_s
        self._waiting: list[tuple[int, Future[Result]]] = []
        self.submitted = 0
        self.ran: list[int] = []

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        return BEAM

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        future: Future[Result] = Future()
        self._waiting.append((self._number[call.inputs[1].item()], future))
        self.submitted += 1
        if self.submitted == len(self._number):
            self.end_oldest()
        return future

    def end_oldest(self, row: Row | None = None) -> None:
        while self._waiting:
            point, future = self._waiting.pop(0)
            if not future.cancelled():
                self.ran.append(point)
                outputs = (np.zeros(4), np.zeros(1))
                future.set_result(Result(outputs, run_time_s=self._run_s[point], worker="w"))
                return


class QueueOfFarm(Queue):
    def status(self) -> dict[str, Any]:
        rows = [("beam", "evaluate", 3), ("beam", "gradient", 1), ("plate", "evaluate", 50)]
        return {
            "queues": [{"model": m, "operation": o, "in_flight": count} for m, o, count in rows]
        }


def queued_plan(**options: Any) -> Plan:
    """Return a plan of 100 points with two parameters, the first of which decides run times."""
    params = {"E[0]": "1:2", "load": "0:1"}
    return plan_of("random:100", params, fixes={"E": 1}, **options)


def longest_first(points: list[int], run_s: np.ndarray) -> bool:
    """Whether points run about in the order of their run times."""
    return bool(np.corrcoef(np.arange(len(points)), np.log(run_s[points]))[0, 1] < -0.8)


@pytest.mark.parametrize(
    ("kind", "repeatable", "again"),
    [(QueueOfFarm, True, True), (QueueOfFarm, False, False), (Queue, True, False)],
)
def test_points_in_the_farm_s_queue_are_sorted_too(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Queue],
    repeatable: bool,
    again: bool,
) -> None:
    """All points are submitted before any run time is known, and submitted again in order."""
    monkeypatch.setattr(run_module, "AT_ONCE", 0)  # the answers come one by one, as in long runs
    plan = queued_plan(info=replace(BEAM, repeatable=repeatable))
    run_s = np.exp(3 * plan.theta[:, 0])
    queue = kind(plan, run_s)
    store = Store.create(path, plan)
    assert run(store, queue, on_row=queue.end_oldest).state == COMPLETE
    assert sorted(queue.ran) == list(range(100)), "each point once"
    known = ENOUGH + queue.workers + LEAST_MARGIN
    assert queue.ran[:known] == list(range(known)), "what may be running is left alone"
    assert longest_first(queue.ran[known:], run_s) == again
    assert (queue.submitted > 100) == again


def test_a_resumed_sweep_begins_with_the_longest(path: Path) -> None:
    plan = queued_plan()
    run_s = np.exp(3 * plan.theta[:, 0])
    stored(path, plan, *[done(plan, k, t_run=float(run_s[k])) for k in range(50)])
    queue = Queue(plan, run_s)
    queue.submitted = 50
    assert run(Store.resume(path), queue, on_row=queue.end_oldest).state == COMPLETE
    assert sorted(queue.ran) == list(range(50, 100))
    assert longest_first(queue.ran, run_s)


def test_a_given_cost_orders_the_points_from_the_start(path: Path) -> None:
    plan = plan_of("random:100")
    cost = np.random.default_rng(1).random(100)
    queue = Queue(plan, np.full(100, 0.001))
    store = Store.create(path, replace(plan, cost=cost, cost_rule="c"))
    bases: list[str] = []
    host = Host(lambda progress: bases.append(progress.basis), queue.end_oldest)
    sent = PointsInFlight(queue, store.plan)
    session = Run(store, sent, rules=Rules(), stop=Stop(), host=host)
    assert session.now().basis == "c"
    session.go()
    assert queue.ran[:20] == list(range(20))
    assert queue.ran[20:] == sorted(queue.ran[20:], key=lambda k: -cost[k])
    assert bases[-1] == "c"


def test_more_is_left_alone_where_configs_vary() -> None:
    assert recallable_after(4, varied_config=False) == 8
    assert recallable_after(100, varied_config=False) == 125
    assert recallable_after(100, varied_config=True) == 500


# The numbers that limit a sweep

NO_LIMITS: dict[str, Any] = dict.fromkeys(
    ("seed", "workers", "in_flight", "max_failures", "max_hours")
)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(("seed", 0, ""), ("seed", 2**70, ""), ("seed", np.int64(7), ""), ("seed", None, "")),
        *(("workers", 1, ""), ("workers", np.uint8(2), ""), ("in_flight", 1, "")),
        *(("max_failures", 0, ""), ("max_hours", 1e-3, ""), ("max_hours", math.inf, "")),
        ("seed", "a", "seed is 'a'; expected a whole number from 0 on"),
        ("seed", -1, "seed is -1; expected a whole number from 0 on"),
        ("seed", 1.5, "seed is 1.5; expected a whole number from 0 on"),
        ("workers", 0, "workers is 0; expected a whole number from 1 on"),
        ("workers", 2.5, "workers is 2.5; expected a whole number from 1 on"),
        ("workers", True, "workers is True; expected a whole number from 1 on"),
        ("in_flight", 0, "in_flight is 0; expected a whole number from 1 on"),
        ("max_failures", "5%", "max_failures is '5%'; expected a whole number from 0 on"),
        ("max_hours", "2", "max_hours is '2'; expected a number of hours above 0"),
        ("max_hours", 0, "max_hours is 0; expected a number of hours above 0"),
        ("max_hours", math.nan, "max_hours is nan; expected a number of hours above 0"),
    ],
)
def test_a_limit_that_is_no_number_or_too_small_is_named(
    name: str, value: object, expected: str
) -> None:
    if not expected:
        rules_of(**NO_LIMITS | {name: value})
        return
    with pytest.raises(SweepError) as caught:
        rules_of(**NO_LIMITS | {name: value})
    assert str(caught.value) == expected
