"""The closed loop of an experiment: ask for points, evaluate them, tell their outcomes.

Outcomes are recorded in the order in which they return. Points without an outcome are in the
journal, so a restarted loop evaluates them first and continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import numpy as np

from farm.call import Array, Call, Hints, ModelInfo, Result, canonical_config
from farm.errors import (
    Cancelled,
    FarmError,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    Unavailable,
    WorkerLost,
)
from farm.experiment.config.definition import MODEL_FREE
from farm.experiment.config.evaluated_model import EvaluatedModel, read_evaluated_model
from farm.experiment.config.work import Answered, Generate, Generated, Work
from farm.experiment.loop.pacing import Pace
from farm.experiment.loop.progress import LoopProgress
from farm.experiment.state.events import Asked, Event, Failed, RunPhase, RunState, Told
from farm.experiment.state.experiment import Experiment

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 20
"""After this many consecutive points without a usable outcome, the cause is not in the points."""

PLACES_EVERY_S = 5.0
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0

NO_FAULT_OF_THE_POINT = (Cancelled, ModelNotFound, Overloaded, Unavailable)

FOR_GOOD = (InvalidInput, WorkerLost)
"""Errors after which a retry is useless: the point is invalid, or the farm used up its
own retries.
"""

FILLED = "fills the space, as the strategy was busy while a worker was free"


class PointEvaluator(Protocol):
    """The interface that a loop needs from a farm."""

    async def describe(self, model: str, config: str) -> ModelInfo:
        """Return the model's tensors for a config. Raises FarmError."""

    async def submit(self, call: Call, hints: Hints) -> Result:
        """Return the result of a call. Raises FarmError; cancelling cancels the call."""

    async def places(self, model: str) -> int:
        """Return how many calls of the model run at once; at least 1. Raises FarmError."""


class ExperimentHost(Protocol):
    """The interface that a loop needs from the owner of the experiments; see `host.Experiments`."""

    experiments: dict[int, Experiment]

    def turn(self, number: int) -> AbstractAsyncContextManager[None]:
        """Hold the experiment's turn to ask for points."""

    async def execute(self, number: int, work: Work) -> Generated | Answered:
        """Do work. Raises FarmError."""

    async def record(
        self, number: int, events: Callable[[Experiment], Sequence[Event]]
    ) -> Sequence[Event]:
        """Store and apply the events that `events` returns. Raises Unavailable."""


async def fitting_model(model: EvaluatedModel, farm: PointEvaluator) -> ModelInfo:
    """Return the farm's description of the model. Raises FarmError if missing or unsuitable."""
    info = await farm.describe(model.name, canonical_config(model.config))
    model.check(info)
    return info


class ClosedLoop:
    """One stretch of the loop: `begin`, then `go` until it ends, is paused or cancelled.

    in_flight, budget: replace the values of [farm]. kills: the farm ends evaluations that exceed
    the time limit of [farm]; otherwise the loop stops waiting for an answer after that time. job:
    the job of a batch system that this process is in, recorded for its next start. Raises
    InvalidInput, UnsupportedFeature if the config has no section [farm].
    """

    def __init__(
        self,
        host: ExperimentHost,
        number: int,
        farm: PointEvaluator,
        *,
        in_flight: int | None = None,
        budget: int | None = None,
        kills: bool = False,
        job: str = "",
    ) -> None:
        self._job = job
        self._host = host
        self._number = number
        self._farm = farm
        self._model = read_evaluated_model(self._experiment.config)
        self._in_flight = in_flight or self._model.in_flight
        self._budget = budget or self._model.budget
        self._asked_for = (in_flight, budget)
        self._hints = Hints(
            patient=True,
            client=f"experiment {number}",
            chain="",
            shown_as=(f"experiment {number}", ""),
            deadline_s=None if kills else self._model.time_limit_s,
        )
        self._model.check_end(self._experiment.config, budget)
        self.leaving = False
        """Whether it has come to its end, which is about to be recorded."""
        # State of the current stretch, from `begin` on.
        self._info: ModelInfo
        self._pace = Pace(self._in_flight or 1, fill=self._model.fill)
        self._ready: deque[int] = deque()
        self._flying: set[int] = set()
        self._asking = 0  # points that the strategy is searching for
        self._asking_since: float | None = None
        self._free_since = self._began = self._looked = time.monotonic()
        self._changed = asyncio.Event()
        self._telling = asyncio.Lock()
        self._untold: list[Told | Failed] = []
        self._ending = ""
        self._pausing = False
        self._told = self._failed = self._fillers = self._failures = 0
        self._place_s = self._worked_s = 0.0
        self._message = ""

    @property
    def _experiment(self) -> Experiment:
        return self._host.experiments[self._number]

    def pause(self, why: str = "") -> None:
        """Submit no more points; `go` returns after those in the farm are recorded."""
        self._pausing = True
        self._ending = self._ending or why
        self._changed.set()

    def resume(self, in_flight: int | None = None, budget: int | None = None) -> None:
        """Revoke a pause that is not complete yet, see `leaving`.

        in_flight, budget: None leaves a value unchanged. Raises InvalidInput if they differ from
        those the stretch began with.
        """
        for name, wanted, has in zip(
            ("in_flight", "budget"), (in_flight, budget), self._asked_for, strict=True
        ):
            if wanted not in (None, has):
                as_it_is = "as its configuration says" if has is None else f"with {name} = {has}"
                raise InvalidInput(
                    f"experiment {self._number} runs already, {as_it_is}; to run it with "
                    f"{name} = {wanted}, pause it and wait until it is paused"
                )
        self._pausing, self._ending = False, ""
        self._changed.set()

    def now(self) -> LoopProgress:
        """Return the current progress."""
        experiment = self._experiment
        place_s = self._place_s + self._pace.places * (time.monotonic() - self._looked)
        return LoopProgress(
            experiment=self._number,
            phase=experiment.run or RunPhase.RUNNING,
            why=experiment.run_why,
            strategy=experiment.strategy.name,
            evaluations=experiment.evaluations,
            budget=self._budget,
            told=self._told,
            failed=self._failed,
            in_flight=len(self._flying),
            places=self._pace.places,
            ready=len(self._ready),
            asking=self._asking_since is not None,
            fillers=self._fillers,
            elapsed_s=time.monotonic() - self._began,
            utilisation=self._worked_s / place_s if place_s else 0.0,
            message=self._message,
        )

    async def begin(self) -> None:
        """Check that the farm can evaluate points, and record that the loop runs.

        Raises FarmError if it has no such model, or the config does not fit it.
        """
        self._info = await fitting_model(self._model, self._farm)
        await self._look()
        in_flight, budget = self._asked_for

        def running(experiment: Experiment) -> list[Event]:
            return [
                RunState(
                    experiment=experiment.number,
                    time=time.time(),
                    phase=RunPhase.RUNNING,
                    in_flight=in_flight,
                    budget=budget,
                    version=self._info.version,
                    job=self._job,
                )
            ]

        await self._keep(running)

    async def go(self) -> LoopProgress:
        """Run until the experiment is finished, the budget is spent, or the loop is paused."""
        self._ready.extend(sorted(self._experiment.evaluating))
        async with asyncio.TaskGroup() as tasks:
            while not self._is_over():
                wake_s = await self._next(tasks)
                # Not wait_for: in Python 3.11 it may lose a cancellation that coincides with a
                # change.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wake_s):
                        await self._changed.wait()
                self._changed.clear()
            self.leaving = True
        phase = RunPhase.PAUSED if self._pausing else RunPhase.ENDED
        why = self._ending or ("" if self._pausing else self._reason())
        await self._keep(
            lambda e: [RunState(experiment=e.number, time=time.time(), phase=phase, why=why)]
        )
        return self.now()

    # Next actions

    def _left(self) -> int:
        """Return how many more points may be requested now, beyond those being requested."""
        wanted = self._experiment.still_wanted()
        left = self._asking + self._pace.places * 2 if wanted is None else wanted
        if self._budget is not None:
            left = min(left, self._budget - self._experiment.evaluations)
        limit_s = self._model.max_time_s
        if limit_s is not None and time.monotonic() - self._began > limit_s:
            return 0
        return max(left - self._asking, 0)

    def _is_over(self) -> bool:
        if self._flying or self._asking_since is not None:
            return False
        return self._pausing or (not self._ready and self._left() == 0)

    def _reason(self) -> str:
        """Return the reason why no more points are requested."""
        if self._experiment.finished:
            return "the experiment is finished"
        if self._budget is not None and self._experiment.evaluations >= self._budget:
            return f"the budget of {self._budget} evaluations is spent"
        return f"the time limit of {self._model.max_time_s} s has passed"

    async def _next(self, tasks: asyncio.TaskGroup) -> float | None:
        """Submit and request the points due now; return the seconds after which to look again."""
        now = time.monotonic()
        if now - self._looked > PLACES_EVERY_S:
            await self._look()
        while self._ready and len(self._flying) < self._pace.places and not self._pausing:
            point = self._ready.popleft()
            self._flying.add(point)
            tasks.create_task(self._evaluate(point))
        if self._pausing:
            return PLACES_EVERY_S
        need = self._pace.need(
            flying=len(self._flying),
            ready=len(self._ready),
            asking_s=None if self._asking_since is None else now - self._asking_since,
            left=self._left(),
            waiting_s=now - self._free_since,
        )
        if need.fill:
            await self._fill(need.fill)
            self._changed.set()
        elif need.ask:
            self._asking, self._asking_since = need.ask, now
            tasks.create_task(self._ask(need.ask))
        return PLACES_EVERY_S if need.wake_s is None else min(need.wake_s, PLACES_EVERY_S)

    async def _look(self) -> None:
        """Update how many points the farm evaluates at once."""
        if self._in_flight is None:
            with contextlib.suppress(FarmError):  # the next look retries
                places = await self._farm.places(self._model.name)
                self._count_places()
                self._pace.places = places
        self._count_places()

    def _count_places(self) -> None:
        now = time.monotonic()
        self._place_s += self._pace.places * (now - self._looked)
        self._looked = now

    # Asking

    async def _ask(self, count: int) -> None:
        began, got = time.monotonic(), 0
        try:
            async with self._host.turn(self._number):
                work = self._experiment.generate(count)
                if work.strategy != self._experiment.strategy_index:
                    self._pace.moved_on()
                self._pace.fill = self._model.fill and self._learns(work.strategy)
                got = await self._points(work)
                if not got:
                    self.pause(f"strategy {self._experiment.strategy.name!r} gave no more points")
        except FarmError as error:
            self.pause(f"no points: {error.message}")
        finally:
            self._pace.asked(time.monotonic() - began, got)
            self._asking, self._asking_since = 0, None
            self._changed.set()

    def _learns(self, strategy: int) -> bool:
        """Whether a surrogate finds the strategy's points, which takes time.

        Other strategies, such as a list or a sequence, get no points but their own.
        """
        return self._experiment.config.strategies[strategy].generator.kind not in MODEL_FREE

    async def _fill(self, count: int) -> None:
        """Take points that need no surrogate while the strategy searches for better ones."""
        try:
            self._fillers += await self._points(self._experiment.generate(count, filler=True))
        except FarmError as error:
            self.pause(f"no points: {error.message}")

    async def _points(self, work: Generate) -> int:
        """Record the points generated by the work, make them ready, and return their number."""
        generated = await self._host.execute(self._number, work)
        assert isinstance(generated, Generated)
        points = generated.points
        if self._budget is not None:
            points = points[: max(0, self._budget - self._experiment.evaluations)]
        if not len(points):
            return 0

        def asked(experiment: Experiment) -> list[Event]:
            first = experiment.next_id
            strategy = experiment.strategy_index if work.filler else work.strategy
            return [
                Asked(
                    experiment=experiment.number,
                    time=time.time(),
                    points=points,
                    ids=tuple(range(first, first + len(points))),
                    strategy=strategy,
                    note=FILLED if work.filler else generated.note,
                    post_range=generated.post_range,
                    filler=work.filler,
                    run=True,
                )
            ]

        (event,) = await self._keep(asked)
        assert isinstance(event, Asked)
        self._ready.extend(event.ids)
        return len(event.ids)

    # Evaluating

    async def _evaluate(self, point: int) -> None:
        """Have one point evaluated, with retries, and record the outcome."""
        try:
            coordinates = self._experiment.evaluating[point]
            call = self._model.call(self._experiment.space.decode(coordinates[None]), self._info)
            event = await self._outcome(point, coordinates, call)
            await self._tell(event)
        except NO_FAULT_OF_THE_POINT as error:
            self._ready.appendleft(point)
            self.pause(error.message)
        finally:
            self._flying.discard(point)
            self._free_since = time.monotonic()
            self._changed.set()

    async def _outcome(self, point: int, coordinates: Array, call: Call) -> Told | Failed:
        """Return the outcome or failure of a point. Raises the errors in NO_FAULT_OF_THE_POINT."""
        attempts = 0
        while True:
            attempts += 1
            began = time.monotonic()
            try:
                result = await self._submitted(call)
                outcomes = self._model.outcomes(result, self._info)
            except NO_FAULT_OF_THE_POINT:
                raise
            except FarmError as error:
                if not isinstance(error, FOR_GOOD) and attempts <= self._model.retries:
                    log.info("point %d: attempt %d failed: %s", point, attempts, error.message)
                    continue
                self._failed += 1
                self._taught_nothing(str(error))
                return Failed(
                    experiment=self._number,
                    time=time.time(),
                    ids=(point,),
                    error=f"{type(error).__name__}: {error.message}",
                    attempts=attempts,
                )
            self._pace.evaluated(time.monotonic() - began)
            self._worked_s += result.run_time_s
            self._told += 1
            names = [outcome.name for outcome in self._experiment.config.outcomes]
            strange = [f"{n} = {outcomes[n]}" for n in names if not math.isfinite(outcomes[n])]
            if strange:
                self._taught_nothing(", ".join(strange))
            else:
                self._failures = 0
            return Told(
                experiment=self._number,
                time=time.time(),
                points=coordinates[None],
                outcomes=np.array([[outcomes[name] for name in names]], dtype=np.float64),
                ids=(point,),
                extra=_record(result, attempts),
            )

    def _taught_nothing(self, why: str) -> None:
        """Count a point that failed, or whose outcome is not modelled."""
        self._failures += 1
        if self._failures >= FAILURES_IN_A_ROW:
            many = f"{self._failures} points in a row failed or gave no number"
            self.pause(f"{many}; the last: {why}")

    async def _submitted(self, call: Call) -> Result:
        """Return the result, waiting while the farm is full or unreachable. Raises FarmError."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                result = await self._farm.submit(call, self._hints)
            except (Overloaded, Unavailable) as error:
                # Keep the first reason: later ones only report how long it has lasted.
                self._message = self._message or f"waiting for the farm: {error.message}"
                if self._pausing:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self._message = ""
                return result

    async def _tell(self, event: Told | Failed) -> None:
        """Record a point's outcome; outcomes that arrive during a write are recorded together."""
        self._untold.append(event)
        async with self._telling:
            if event in self._untold:  # otherwise another call has recorded it
                events, self._untold = self._untold, []
                await self._keep(lambda e: events)

    async def _keep(self, events: Callable[[Experiment], Sequence[Event]]) -> Sequence[Event]:
        """Record events, retrying while the journal cannot be written: no outcome is discarded."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                kept = await self._host.record(self._number, events)
            except Unavailable as error:
                self._message = f"waiting for the journal: {error.message}"
                log.warning("experiment %d: %s", self._number, error.message)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                if pause_s > FIRST_PAUSE_S:
                    self._message = ""
                return kept


def _record(result: Result, attempts: int) -> Mapping[str, Any]:
    """Return the details of an evaluation that are stored with its outcome."""
    kept: dict[str, Any] = {"run_time": result.run_time_s, "worker": result.worker}
    if result.copied:
        kept["copied"] = True
    if result.reused:
        kept["reused"] = True
    return kept | ({"attempts": attempts} if attempts > 1 else {})
