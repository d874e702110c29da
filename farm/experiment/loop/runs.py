"""The closed loops of a server, started and paused by messages; and what a farm shows of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

from farm.errors import FarmError, InvalidInput, Unavailable
from farm.experiment.host import Experiments
from farm.experiment.loop.evaluators import PointEvaluator
from farm.experiment.loop.progress import LoopOptions
from farm.experiment.loop.run import ClosedLoop
from farm.experiment.session import RunAction, RunCommand
from farm.experiment.state.events import RunPhase, RunState

log = logging.getLogger(__name__)


REPORT_EVERY_S = 1.0


class Runs:
    """At most one loop per experiment of a host; carries out its `run` messages."""

    def __init__(self, host: Experiments, farm: PointEvaluator) -> None:
        self._host = host
        self._farm = farm
        self._runs: dict[int, ClosedLoop] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Accept commands, and resume the loops that ran when the server ended."""
        self._host.accept_commands(self)
        for number, experiment in self._host.experiments.items():
            if experiment.loop.phase is RunPhase.RUNNING:
                in_flight, budget = experiment.loop.options
                run = ClosedLoop(self._host, number, self._farm, LoopOptions(in_flight, budget))
                self._runs[number] = run
                self._tasks[number] = asyncio.create_task(self._again(number, run))

    async def stop(self) -> None:
        """Stop all loops without recording it: a restart re-evaluates the points in the farm."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def command(self, command: RunCommand, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out `run`, `pause` or `status` and return the answer. Raises FarmError."""
        number = command.experiment
        run = self._runs.get(number)
        while command.action is RunAction.RUN and run is not None and run.is_over:
            await asyncio.wait([self._tasks[number]])
            run = self._runs.get(number)
        if command.action is RunAction.RUN and run is not None:
            run.resume(command.in_flight, command.budget)
        elif command.action is RunAction.RUN:
            options = LoopOptions(command.in_flight, command.budget)
            run = ClosedLoop(self._host, number, self._farm, options)
            self._runs[number] = run
            try:
                await run.begin()
            except BaseException:
                del self._runs[number]
                raise
            self._tasks[number] = asyncio.create_task(self._go(number, run))
        elif command.action is RunAction.PAUSE:
            if run is None:
                raise InvalidInput(f"experiment {number} is not running, so it cannot be paused")
            run.pause()
        known = asdict(self._host.experiments[number].snapshot())
        loop = {} if run is None or run.is_over else {"loop": asdict(run.now())}
        return known | loop

    async def _again(self, number: int, run: ClosedLoop) -> None:
        """Resume after a restart; if this farm cannot evaluate the points, pause the loop."""
        try:
            await run.begin()
        except FarmError as error:
            log.error("experiment %d is paused: %s", number, error.message)
            del self._runs[number], self._tasks[number]
            await self._pause(number, error.message)
            return
        await self._go(number, run)

    async def _go(self, number: int, run: ClosedLoop) -> None:
        try:
            async with reported(run, self._host, number, self._farm):
                progress = await run.go()
            log.info("experiment %d: %s", number, progress.why or progress.phase)
        except Exception:
            log.exception("the loop of experiment %d", number)
            await self._pause(number, "the loop failed, which is a fault of farm; see its log")
        finally:
            del self._runs[number], self._tasks[number]

    async def _pause(self, number: int, why: str) -> None:
        """Record that a loop is paused, if the journal can be written."""
        state = RunState(experiment=number, time=time.time(), phase=RunPhase.PAUSED, why=why)
        with contextlib.suppress(Unavailable):
            await self._host.record(number, lambda e: [state])


@contextlib.asynccontextmanager
async def reported(
    loop: ClosedLoop, host: Experiments, number: int, farm: PointEvaluator
) -> AsyncIterator[None]:
    """Report the progress of a loop while the block runs, and its end."""

    async def keep_reporting() -> None:
        while True:
            await _report(loop, host, number, farm)
            await asyncio.sleep(REPORT_EVERY_S)

    task = asyncio.create_task(keep_reporting())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await _report(loop, host, number, farm, ended=True)


async def _report(
    loop: ClosedLoop, host: Experiments, number: int, farm: PointEvaluator, *, ended: bool = False
) -> None:
    now, experiment = loop.now(), host.experiments[number]
    finished = now.told + now.failed
    left = [experiment.still_wanted()]
    left += [None if now.budget is None else max(0, now.budget - now.evaluations)]
    known = [count for count in left if count is not None]
    total = finished + now.in_flight + now.ready + min(known) if known else None
    per_s = finished / now.elapsed_s if now.elapsed_s else 0.0
    try:
        await farm.report_progress(
            "experiment",
            experiment.config.metadata.experiment_name or f"experiment {number}",
            done=now.told,
            failed=now.failed,
            total=total,
            per_s=per_s,
            ends_in_s=(total - finished) / per_s if total is not None and per_s else None,
            state=str(now.phase) if not ended or now.phase != "running" else "stopped",
            identity=str(number),
            client=f"experiment {number}",
        )
    except FarmError as error:
        log.debug("the progress of experiment %d is not shown: %s", number, error.message)
    except Exception:  # nothing that only shows an experiment ends it
        log.exception("the progress of experiment %d is not shown", number)
