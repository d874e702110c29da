"""The experiments of a server: applies requests of clients and closed loops in order, durably.

`Session.receive` returns the next step of a request; `fitters.py` does its work; its events are
written to the journal before they are applied, and applied before the answer is sent. So an
answered request survives any end of the server, and a refused one leaves no trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from farm.errors import FarmError, Unavailable, UnsupportedFeature
from farm.experiment.ask.fitters import Fitters
from farm.experiment.config.reader import read_config
from farm.experiment.session import SETUPS, RunAction, RunCommand, Session, Step
from farm.experiment.state.events import Event, SetUp
from farm.experiment.state.experiment import Experiment
from farm.experiment.state.journal import ExperimentJournal
from farm.experiment.state.seeding import InitialTrials
from farm.experiment.work import Answered, Generated, Work
from farm.protocols.aepsych.codec import AepsychReply, AepsychRequest

logger = logging.getLogger(__name__)

A_FEW_EVENTS = 3
"""Events of one step that are applied in one event-loop iteration."""

SHOWN = 20
"""Maximum number of experiments in a server's status."""


class LoopCommands(Protocol):
    """Carries out clients' commands for closed loops."""

    async def command(self, command: RunCommand, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out a command and return the answer. known: the experiment's own status.

        Raises FarmError.
        """


def applied(experiments: dict[int, Experiment], event: Event) -> None:
    """Apply an event to the experiments. Raises FarmError if its configuration cannot be read."""
    if isinstance(event, SetUp):
        experiments[event.experiment] = Experiment(
            event.experiment,
            read_config(event.config_text),
            seed=event.seed,
            experiment_id=event.experiment_id,
        )
    experiments[event.experiment].apply(event)


class Experiments:
    """All experiments of one journal; `start`, then `session` and `handle`, then `stop`."""

    def __init__(self, path: Path, *, fitters: Fitters | None = None) -> None:
        """path: the journal's file. fitters: does the work."""
        self.experiments: dict[int, Experiment] = {}
        self.db_name = str(path)
        self._loops: LoopCommands | None = None
        self._path = path
        self._fitters = fitters or Fitters()
        self._journal: ExperimentJournal | None = None
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changes: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changing: set[asyncio.Task[Step]] = set()
        self._changed: Counter[int] = Counter()  # number of changes by experiment

    @property
    def next_number(self) -> int:
        """Number of the next experiment to be set up."""
        return max(self.experiments, default=-1) + 1

    @property
    def pids(self) -> Mapping[int, int]:
        """The process id of each experiment that has a process."""
        return self._fitters.pids

    async def start(self) -> None:
        """Load the journal. Raises Unavailable."""
        self._journal, self.experiments = await asyncio.to_thread(_loaded, self._path)

    def session(self) -> Session:
        """Return a session for a new client."""
        return Session(self)

    def accept_commands(self, loops: LoopCommands) -> None:
        """Have clients' commands carried out, as there is a farm to evaluate points."""
        self._loops = loops

    async def set_up(self, config: str, given: Sequence[InitialTrials]) -> int:
        """Begin an experiment with the trials of its `seed_data`, together; return its number.

        Raises FarmError; then nothing has changed.
        """
        session = self.session()
        async with self.turn(SETUPS):
            step = await self._take(
                session, SETUPS, lambda: session.set_up(config, time.time(), given)
            )
        assert step.current is not None, "a setup makes its experiment current"
        return step.current

    async def handle(self, session: Session, request: AepsychRequest) -> AepsychReply:
        """Carry out a client's request. If it raises FarmError, nothing has changed.

        One request of a session at a time. Cancelling it is atomic too.
        """
        turn = session.turn(request)
        async with contextlib.nullcontext() if turn is None else self.turn(turn):
            number = turn if turn is not None else session.current
            step = await self._take(session, number, lambda: session.receive(request, time.time()))
            while step.work is not None:
                assert number is not None, "work belongs to an experiment"
                step = await self._work(session, number, step)
            if step.run is not None:
                return AepsychReply(await self._run(step.run, step.answer or {}), step.close)
        assert step.answer is not None, "the last step has an answer"
        return AepsychReply(step.answer, step.close)

    def turn(self, number: int) -> asyncio.Lock:
        """Return the turn to ask an experiment for points, from counting to recording them."""
        return self._turns[number]

    async def execute(self, number: int, work: Work) -> Generated | Answered:
        """Do work for an experiment, in its process if it needs one. Raises FarmError."""
        return await self._fitters.execute(number, work)

    def status(self) -> list[dict[str, Any]]:
        """Return the state of the last `SHOWN` experiments as JSON data."""
        last = sorted(self.experiments)[-SHOWN:]
        return [asdict(self.experiments[number].snapshot()) for number in last]

    def waits(self, number: int) -> bool:
        """Whether a client is waiting for points of this experiment."""
        return self._turns[number].locked()

    async def record(
        self, number: int, events: Callable[[Experiment], Sequence[Event]]
    ) -> Sequence[Event]:
        """Store and apply the events that `events` returns for the experiment's state at its turn.

        Raises Unavailable if they cannot be stored; then nothing has changed.
        """

        def step() -> Step:
            return Step(events=tuple(events(self.experiments[number])))

        return (await self._take(None, number, step)).events

    def hurry(self) -> None:
        """End all work now: asks that wait for it fail, and so do later ones."""
        self._fitters.stop()

    async def stop(self) -> None:
        """End all work, finish pending writes, and close the journal."""
        self.hurry()
        journal, self._journal = self._journal, None
        if self._changing:
            await asyncio.wait(self._changing)
        if journal is not None:
            await asyncio.to_thread(journal.close)

    async def _work(self, session: Session, number: int, step: Step) -> Step:
        work, then = step.work, step.then
        assert work is not None, "it is called for work"
        assert then is not None, "work has a function for its result"
        if callable(work):
            result: Any = await asyncio.to_thread(work)
        else:
            result = await self.execute(number, work)
        return await self._take(session, number, lambda: then(result, time.time()))

    async def _run(self, command: RunCommand, known: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._loops is not None:
            return await self._loops.command(command, known)
        if command.action is RunAction.STATUS:
            return known
        raise UnsupportedFeature(
            f"{command.action} needs a farm that evaluates points; this server has none: "
            "use `farm serve MODEL --aepsych HOST:PORT`"
        )

    async def _take(
        self, session: Session | None, number: int | None, make: Callable[[], Step]
    ) -> Step:
        """Return the step of `make`, with its events stored and applied. Raises FarmError.

        make: returns the step for the current state; called again if other changes came first.
        """
        seen = 0 if number is None else self._changed[number]
        step = make()
        if step.events:
            assert number is not None, "events belong to an experiment"
            change = asyncio.create_task(self._change(number, step, seen, make))
            self._changing.add(change)
            change.add_done_callback(self._settled)
            # A cancelled caller does not stop events on their way to the disk.
            step = await asyncio.shield(change)
        if session is not None:
            session.took(step)
        return step

    def _make_ready(self, number: int) -> None:
        """Log a new experiment's warnings, and load its libraries in the background."""
        experiment = self.experiments[number]
        for warning in experiment.warnings:
            logger.warning("experiment %d: %s", number, warning)
        if any(strategy.surrogate is not None for strategy in experiment.config.strategies):
            self._fitters.warm(number)

    def _settled(self, change: asyncio.Task[Step]) -> None:
        self._changing.discard(change)
        if not change.cancelled():
            change.exception()  # mark it as retrieved: its caller may be gone

    async def _change(self, number: int, step: Step, seen: int, make: Callable[[], Step]) -> Step:
        async with self._changes[number]:
            if self._changed[number] != seen:
                step = make()
            if self._journal is None:
                raise Unavailable("the server stops")
            if step.events:
                await asyncio.wrap_future(self._journal.append(step.events))
                self._changed[number] += 1
                for event in step.events:
                    applied(self.experiments, event)
                    if len(step.events) > A_FEW_EVENTS:  # a long tell: let other clients run
                        await asyncio.sleep(0)
                for event in step.events:
                    if isinstance(event, SetUp):
                        self._make_ready(event.experiment)
        return step


def _loaded(path: Path) -> tuple[ExperimentJournal, dict[int, Experiment]]:
    """Return the journal, and the experiments in it."""
    journal = ExperimentJournal(path)
    experiments: dict[int, Experiment] = {}
    try:
        for event in journal.load():
            try:
                applied(experiments, event)
            except (FarmError, KeyError) as error:
                raise Unavailable(
                    f"the journal {path} cannot be used: experiment {event.experiment}: {error}"
                ) from None
    except BaseException:
        journal.close()
        raise
    return journal, experiments
