"""The workers that a farm starts itself: processes on this machine, and those of a Dask cluster."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.first_worker import FIRST_AWAITED, Expectation
from farm.monitoring.repetitions import cut
from farm.monitoring.workers import ExpectedWorkers
from farm.provision.local.group import launch_of
from farm.provision.local.starter import WorkerSettings
from farm.provision.local.supervisor import Workers
from farm.settings import Settings
from farm.transports.dask.transport import DaskTransport

START_HERE_S = 600.0
"""Default time in seconds that the first worker on this machine may take to load its models."""

STOP_WORKERS_S = 5.0
"""Seconds after which idle workers that were asked to end are killed."""

LONGEST_NAMES = 100


class OwnWorkers(Expectation):
    """The workers that load a farm's models; their `Expectation`.

    dask: carries calls to the Dask cluster of the settings, if there is one.
    Raises Unavailable without Dask, and if the cluster's address or file is wrong.
    """

    may_come = True  # workers that end are replaced

    def __init__(self, models: Sequence[str], settings: Settings, connect: Path) -> None:
        """connect: the connection file for the workers on this machine."""
        self._names = cut(", ".join(models), LONGEST_NAMES)
        self._limit_s = settings.start_timeout_s or START_HERE_S
        self._mark = secrets.token_hex(8)
        self.dask: DaskTransport | None = None
        self._here: Workers | None = None
        if settings.dask is not None:
            slots, needs = settings.dask_slots, settings.dask_needs()
            self.dask = DaskTransport(settings.dask, models, slots=slots, needs=needs)
        if models and settings.workers:
            self._here = Workers(
                WorkerSettings(
                    models=models,
                    count=settings.workers,
                    connect=connect,
                    logs=settings.dir / "logs",
                    launch=launch_of(settings.mpi, settings.mpi_launch),
                    fork=settings.fork,
                    time_limit_s=settings.time_limit_s,
                    log_format=settings.log_format,
                    # They end with this process (machine/lifeline.py), even when its event loop is
                    # blocked.
                    lost_after_s=math.inf,
                    frozen_after_s=settings.heartbeat_s,
                    started_by=self._mark,
                )
            )

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._here is not None or self.dask is not None

    def awaited(self, known: Collection[str]) -> str:
        """Return which models are being loaded, until some are known."""
        return "" if known or not self._names else f"{FIRST_AWAITED}, which loads {self._names}"

    def has_started(self, labels: Mapping[str, str]) -> bool:
        """Whether a worker with these labels is one of those on this machine."""
        return labels.get("started_by") == self._mark

    def start(self, expected: ExpectedWorkers) -> None:
        """Start those on this machine; the dispatcher starts the transport to Dask.

        Raises as `Workers.start` does.
        """
        here = self._here
        if here is None:
            return
        here.start()
        # A group on another host may lack its supervisor's name, which not all launchers pass on.
        if here.settings.launch is None:
            expected.expect(here.name, here.settings.count)

    async def first(self, dispatcher: Dispatcher, threads: int) -> None:
        """Wait until one has joined beside so many threads. Raises the error of their start."""
        joined: asyncio.Future[None] = asyncio.create_task(
            dispatcher.wait_for_workers(threads + 1, timeout_s=self._limit_s)
        )
        ready = []
        if self._here is not None:
            ready.append(asyncio.wrap_future(self._here.ready))
        if self.dask is not None:
            ready.append(asyncio.shield(asyncio.wrap_future(self.dask.ready)))
        try:
            done, _ = await asyncio.wait({joined, *ready}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await joined
        finally:
            for task in (joined, *ready):
                task.cancel()

    async def wait_failed(self) -> None:
        """Wait until starting them fails for good, then raise WorkersFailed or Unavailable."""
        ends = []
        if self._here is not None:
            ends.append(asyncio.shield(asyncio.wrap_future(self._here.ended)))
        if self.dask is not None:
            ends.append(asyncio.shield(asyncio.wrap_future(self.dask.ready)))
        await asyncio.gather(*ends)
        await asyncio.get_running_loop().create_future()

    async def stop(self, grace_s: float) -> None:
        """End those on this machine; kill what runs longer than the grace or STOP_WORKERS_S."""
        if self._here is not None:
            stop, loop = self._here.stop, asyncio.get_running_loop()
            await loop.run_in_executor(None, stop, min(grace_s, STOP_WORKERS_S))

    def hurry(self) -> None:
        """Kill those on this machine."""
        if self._here is not None:
            self._here.hurry(0.0)
