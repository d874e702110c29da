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
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from farm.call import Array, Call, Hints, Result
from farm.errors import (
    Cancelled,
    FarmError,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    Unavailable,
    WorkerLost,
)
from farm.experiment.config.definition import MODEL_FREE, Config
from farm.experiment.config.evaluated_model import BoundModel, EvaluatedModel, read_evaluated_model
from farm.experiment.config.ini import FARM
from farm.experiment.host import Experiments
from farm.experiment.loop.evaluators import PointEvaluator, details_of, fitting_model
from farm.experiment.loop.pacing import PLACES_EVERY_S, Pace
from farm.experiment.loop.progress import (
    AS_CONFIGURED,
    LOOPS,
    LoopCounts,
    LoopOptions,
    LoopPoints,
    LoopProgress,
    LoopStage,
)
from farm.experiment.session import asked_event
from farm.experiment.state.events import Asked, Event, Failed, RunPhase, RunState, Told
from farm.experiment.state.experiment import Experiment
from farm.experiment.work import Generate, Generated
from farm.wording import counted

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 20
"""After this many consecutive points without a usable outcome, the cause is not in the points."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0

NO_FAULT_OF_THE_POINT = (Cancelled, ModelNotFound, Overloaded, Unavailable)

FOR_GOOD = (InvalidInput, WorkerLost)
"""Errors after which a retry is useless: the point is invalid, or the farm has retried."""

FILLED = "fills the space, as the strategy was busy while a worker was free"

_PAUSE = LOOPS.event("told to pause")
_RUN = LOOPS.event("told to run")
_LAST = LOOPS.event("last point recorded")
_FAIL = LOOPS.event("failed")


class LoopJournal:
    """Records the events of one experiment's loop, however long the journal cannot be written.

    waiting: why an event is not recorded yet, or "".
    """

    def __init__(self, host: Experiments, number: int) -> None:
        self.number = number
        self.host = host
        self.waiting = ""
        self._telling = asyncio.Lock()
        self._untold: list[Told | Failed] = []

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        return self.host.experiments[self.number]

    async def tell(self, event: Told | Failed) -> None:
        """Record a point's outcome; outcomes that arrive during a write are recorded together."""
        self._untold.append(event)
        async with self._telling:
            if event in self._untold:  # otherwise another call has recorded it
                events, self._untold = self._untold, []
                await self.record(lambda e: events)

    async def record(self, events: Callable[[Experiment], Sequence[Event]]) -> Sequence[Event]:
        """Record events, retrying while the journal cannot be written: no outcome is discarded."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                kept = await self.host.record(self.number, events)
            except Unavailable as error:
                self.waiting = f"waiting for the journal: {error.message}"
                log.warning("experiment %d: %s", self.number, error.message)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self.waiting = ""
                return kept


class ClosedLoop:
    """One stretch of the loop: `begin`, then `go` until it ends, is paused or cancelled.

    Raises InvalidInput, UnsupportedFeature if the config has no section [farm].
    """

    def __init__(
        self,
        host: Experiments,
        number: int,
        farm: PointEvaluator,
        options: LoopOptions = AS_CONFIGURED,
    ) -> None:
        self._journal = LoopJournal(host, number)
        self._farm = farm
        self._options = options
        self._model = read_evaluated_model(self._experiment.config)
        self._hints = Hints(
            patient=True,
            client=f"experiment {number}",
            chain="",
            shown_as=(f"experiment {number}", ""),
            deadline_s=None if options.kills else self._model.time_limit_s,
        )
        check_end(self._model, self._experiment.config, options.budget)
        # State of the current stretch, from `begin` on.
        self._bound: BoundModel
        now = time.monotonic()
        self._pace = Pace(self._in_flight or 1, fill=self._model.fill, began=now)
        self._points = LoopPoints(now)
        self._counts = LoopCounts(now)
        self._stage = LOOPS.begins["begun"]
        self._changed = asyncio.Event()
        self._ending = ""

    @property
    def _experiment(self) -> Experiment:
        return self._journal.experiment

    @property
    def _in_flight(self) -> int | None:
        return self._options.in_flight or self._model.in_flight

    @property
    def _budget(self) -> int | None:
        return self._options.budget or self._model.budget

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end, which is recorded or about to be."""
        return self._stage in (LoopStage.PAUSED, LoopStage.ENDED)

    def pause(self, why: str = "") -> None:
        """Submit no more points; `go` returns after those in the farm are recorded."""
        if not self.is_over:
            self._stage = _PAUSE[self._stage]
        self._ending = self._ending or why
        self._changed.set()

    def resume(self, in_flight: int | None = None, budget: int | None = None) -> None:
        """Revoke a pause that is not complete yet, see `is_over`.

        Raises InvalidInput if in_flight or budget differ from those the stretch began with.
        """
        for name, wanted in (("in_flight", in_flight), ("budget", budget)):
            has = getattr(self._options, name)
            if wanted not in (None, has):
                as_it_is = "as its configuration says" if has is None else f"with {name} = {has}"
                raise InvalidInput(
                    f"experiment {self._journal.number} runs already, {as_it_is}; to run it with "
                    f"{name} = {wanted}, pause it and wait until it is paused"
                )
        self._stage, self._ending = _RUN[self._stage], ""
        self._changed.set()

    def now(self) -> LoopProgress:
        """Return the current progress."""
        experiment, points, counts = self._experiment, self._points, self._counts
        now = time.monotonic()
        place_s = self._pace.place_s(now)
        return LoopProgress(
            experiment=self._journal.number,
            phase=experiment.loop.phase or RunPhase.RUNNING,
            why=experiment.loop.why,
            strategy=experiment.strategy.name,
            evaluations=experiment.loop.evaluations,
            budget=self._budget,
            told=counts.told,
            failed=counts.failed,
            in_flight=len(points.flying),
            places=self._pace.places,
            ready=len(points.ready),
            asking=points.asking_since is not None,
            fillers=counts.fillers,
            elapsed_s=now - counts.began,
            utilisation=counts.worked_s / place_s if place_s else 0.0,
            message=self._journal.waiting or self._counts.waiting,
        )

    async def begin(self) -> None:
        """Check that the farm can evaluate points, and record that the loop runs.

        Raises FarmError if it has no such model, or the config does not fit it.
        """
        self._bound = await fitting_model(self._model, self._farm)
        await self._look()
        running = RunState(
            experiment=self._journal.number,
            time=time.time(),
            phase=RunPhase.RUNNING,
            in_flight=self._options.in_flight,
            budget=self._options.budget,
            version=self._bound.info.version,
            job=self._options.job,
        )
        await self._journal.record(lambda e: [running])

    async def go(self) -> LoopProgress:
        """Run until the experiment is finished, the budget is spent, or the loop is paused."""
        self._points.ready.extend(sorted(self._experiment.loop.evaluating))
        try:
            await self._stretch()
        except Exception:
            self._stage = _FAIL[self._stage]
            raise
        phase = RunPhase.ENDED if self._stage is LoopStage.ENDED else RunPhase.PAUSED
        why = self._ending or (self._reason() if phase is RunPhase.ENDED else "")
        await self._journal.record(
            lambda e: [RunState(experiment=e.number, time=time.time(), phase=phase, why=why)]
        )
        return self.now()

    async def _stretch(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not self._has_nothing_left():
                wake_s = await self._next(tasks)
                # Not wait_for, which may lose a cancellation in Python 3.11.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wake_s):
                        await self._changed.wait()
                self._changed.clear()
            self._stage = _LAST[self._stage]

    # Next actions

    def _left(self) -> int:
        """Return how many more points may be requested now, beyond those being requested."""
        wanted = self._experiment.still_wanted()
        left = self._points.asking + self._pace.places * 2 if wanted is None else wanted
        if self._budget is not None:
            left = min(left, self._budget - self._experiment.loop.evaluations)
        limit_s = self._model.max_time_s
        if limit_s is not None and time.monotonic() - self._counts.began > limit_s:
            return 0
        return max(left - self._points.asking, 0)

    def _has_nothing_left(self) -> bool:
        points = self._points
        if points.flying or points.asking_since is not None:
            return False
        return self._stage is LoopStage.PAUSING or (not points.ready and self._left() == 0)

    def _reason(self) -> str:
        """Return the reason why no more points are requested."""
        if self._experiment.finished:
            return "the experiment is finished"
        if self._budget is not None and self._experiment.loop.evaluations >= self._budget:
            return f"the budget of {counted(self._budget, 'evaluation')} is spent"
        return f"the time limit of {self._model.max_time_s} s has passed"

    async def _next(self, tasks: asyncio.TaskGroup) -> float | None:
        """Submit and request the points due now; return the seconds after which to look again."""
        now, points = time.monotonic(), self._points
        if self._pace.is_outdated(now):
            await self._look()
        while (
            points.ready
            and len(points.flying) < self._pace.places
            and self._stage is LoopStage.RUNNING
        ):
            point = points.ready.popleft()
            points.flying.add(point)
            tasks.create_task(self._evaluate(point))
        if self._stage is not LoopStage.RUNNING:
            return PLACES_EVERY_S
        need = points.need(self._pace, self._left(), now)
        if need.fill:
            await self._fill(need.fill)
            self._changed.set()
        elif need.ask:
            points.search(need.ask, now)
            tasks.create_task(self._ask(need.ask))
        return PLACES_EVERY_S if need.wake_s is None else min(need.wake_s, PLACES_EVERY_S)

    async def _look(self) -> None:
        """Update how many points the farm evaluates at once."""
        places = self._pace.places
        if self._in_flight is None:
            with contextlib.suppress(FarmError):  # the next look retries
                places = await self._farm.places(self._model.name)
        self._pace.found(places, time.monotonic())

    # Asking

    async def _ask(self, count: int) -> None:
        began, got = time.monotonic(), 0
        try:
            async with self._journal.host.turn(self._journal.number):
                work = self._experiment.generate(count)
                # Only surrogates take time to find points.
                kind = self._experiment.config.strategies[work.strategy].generator.kind
                fill = self._model.fill and kind not in MODEL_FREE
                self._pace.searches(work.strategy, fill=fill)
                got = await self._make_ready(work)
                if not got:
                    self.pause(f"strategy {self._experiment.strategy.name!r} gave no more points")
        except FarmError as error:
            self.pause(f"no points: {error.message}")
        finally:
            self._pace.asked(time.monotonic() - began, got)
            self._points.search(0, time.monotonic())
            self._changed.set()

    async def _fill(self, count: int) -> None:
        """Take points that need no surrogate while the strategy searches for better ones."""
        try:
            filler = self._experiment.generate(count, filler=True)
            self._counts.filled(await self._make_ready(filler))
        except FarmError as error:
            self.pause(f"no points: {error.message}")

    async def _make_ready(self, work: Generate) -> int:
        """Record the points generated by the work, make them ready, and return their number."""
        generated = await self._journal.host.execute(self._journal.number, work)
        assert isinstance(generated, Generated)
        points = generated.points
        if self._budget is not None:
            points = points[: max(0, self._budget - self._experiment.loop.evaluations)]
        if not len(points):
            return 0

        def asked(experiment: Experiment) -> list[Event]:
            strategy = experiment.strategy_index if work.filler else work.strategy
            note = FILLED if work.filler else generated.note
            made = replace(generated, points=points, note=note)
            event = asked_event(experiment, replace(work, strategy=strategy), made, time.time())
            return [replace(event, run=True)]

        (event,) = await self._journal.record(asked)
        assert isinstance(event, Asked)
        self._points.ready.extend(event.ids)
        return len(event.ids)

    # Evaluating

    async def _evaluate(self, point: int) -> None:
        """Have one point evaluated, with retries, and record the outcome."""
        try:
            coordinates = self._experiment.loop.evaluating[point]
            call = self._bound.call(self._experiment.space.decode(coordinates[None]))
            event = await self._outcome(point, coordinates, call)
            await self._journal.tell(event)
        except NO_FAULT_OF_THE_POINT as error:
            self._points.ready.appendleft(point)
            self.pause(error.message)
        finally:
            self._points.landed(point, time.monotonic())
            self._changed.set()

    async def _outcome(self, point: int, coordinates: Array, call: Call) -> Told | Failed:
        """Return the outcome or failure of a point. Raises the errors in NO_FAULT_OF_THE_POINT."""
        attempts = 0
        while True:
            attempts += 1
            began = time.monotonic()
            try:
                result = await self._submitted(call)
                outcomes = self._bound.outcomes(result)
            except NO_FAULT_OF_THE_POINT:
                raise
            except FarmError as error:
                if not isinstance(error, FOR_GOOD) and attempts <= self._model.retries:
                    log.info("point %d: attempt %d failed: %s", point, attempts, error.message)
                    continue
                self._counts.failed_point()
                self._check_useless(str(error))
                return Failed(
                    experiment=self._journal.number,
                    time=time.time(),
                    ids=(point,),
                    error=f"{type(error).__name__}: {error.message}",
                    attempts=attempts,
                )
            self._pace.evaluated(time.monotonic() - began)
            names = [outcome.name for outcome in self._experiment.config.outcomes]
            strange = [f"{n} = {outcomes[n]}" for n in names if not math.isfinite(outcomes[n])]
            self._counts.told_point(result.run_time_s, usable=not strange)
            self._check_useless(", ".join(strange))
            return Told(
                experiment=self._journal.number,
                time=time.time(),
                points=coordinates[None],
                outcomes=np.array([[outcomes[name] for name in names]], dtype=np.float64),
                ids=(point,),
                extra=details_of(result, attempts),
            )

    def _check_useless(self, why: str) -> None:
        """Pause after many points that failed, or whose outcome is not modelled."""
        if self._counts.useless >= FAILURES_IN_A_ROW:
            many = f"{counted(self._counts.useless, 'point')} in a row failed or gave no number"
            self.pause(f"{many}; the last: {why}")

    async def _submitted(self, call: Call) -> Result:
        """Return the result, waiting while the farm is full or unreachable. Raises FarmError."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                result = await self._farm.submit(call, self._hints)
            except (Overloaded, Unavailable) as error:
                self._counts.wait(f"waiting for the farm: {error.message}")
                if self._stage is LoopStage.PAUSING:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self._counts.answered()
                return result


def check_end(model: EvaluatedModel, config: Config, budget: int | None) -> None:
    """Raise InvalidInput if no rule would ever end the loop. budget: replaces that of [farm]."""
    last = config.strategies[-1]
    if last.run_indefinitely and (budget or model.budget or model.max_time_s) is None:
        raise InvalidInput(
            f"strategy {last.name!r} runs indefinitely; expected [{FARM}] budget = the "
            "number of evaluations after which to stop, or max_time"
        )
