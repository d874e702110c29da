"""Reports a loop's progress to the farm that evaluates its points, for `farm status`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

from farm.errors import FarmError
from farm.experiment.host import Experiments
from farm.experiment.loop.run import ClosedLoop

log = logging.getLogger(__name__)

EVERY_S = 1.0


@runtime_checkable
class ReportTaker(Protocol):
    """A farm that shows the progress of experiments."""

    async def report_progress(self, kind: str, name: str, **values: Any) -> None:
        """Take a report. Raises FarmError."""


@contextlib.asynccontextmanager
async def reported(
    loop: ClosedLoop, host: Experiments, number: int, farm: object
) -> AsyncIterator[None]:
    """Report the progress of a loop while the block runs, and its end."""
    if not isinstance(farm, ReportTaker):
        yield
        return

    async def keep_reporting() -> None:
        while True:
            await _report(loop, host, number, farm)
            await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(keep_reporting())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await _report(loop, host, number, farm, ended=True)


async def _report(
    loop: ClosedLoop, host: Experiments, number: int, farm: ReportTaker, *, ended: bool = False
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
