"""A complete farm: starts and stops dispatcher, transports, local workers and doors in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farm.bodies.readers import Readers
from farm.call import WorkerInfo
from farm.descriptors import every
from farm.dispatcher.descriptions import served_models
from farm.dispatcher.dispatcher import Dispatcher, Transport
from farm.dispatcher.first_worker import Expectation
from farm.grpc.server import check_packages
from farm.http1.access import Access
from farm.machine.keeper_line import keeper
from farm.machine.spinning import LoneCaller
from farm.model import Model
from farm.monitoring.monitor import watch
from farm.monitoring.tracing import Tracing, start_tracing
from farm.monitoring.workers import ExpectedWorkers
from farm.protocols.interface import Site
from farm.provision.batch import allocation
from farm.provision.batch.plan import ClusterPlan
from farm.provision.own_workers import OwnWorkers
from farm.server.doors import Doors, checked_options, endpoints_of
from farm.server.lifecycle import NamedWorkers, offer_stop, show_restarts
from farm.server.wires import RunFolder, listen
from farm.settings import Settings
from farm.transports.connection import Connection
from farm.transports.peers import Peers
from farm.transports.threads import LocalTransport

if TYPE_CHECKING:
    from farm.provision.batch.elastic import Elastic
    from farm.record.recorder import Recorder

log = logging.getLogger(__name__)

START_ELSEWHERE_S = 3600.0
"""Default time in seconds that calls wait for the first worker of a job or another machine."""

FAREWELL_S = 2.0
"""Longest time for the error to reach the callers that wait, when no model can be loaded."""


class Farm:
    """One farm in this process, on one event loop.

    models: models that each worker process loads, as `farm serve` takes them. objects: models that
    exist in this process already; they run in threads here, which suits notebooks and tests. doors:
    whether to serve HTTP; native clients and workers need only the connection file. plan: jobs
    of workers that start and end with demand; then this raises Unavailable if the batch system's
    commands are missing, and SettingsError if a template cannot be used. folder: has the address
    and keys for clients, while the farm runs. own: the workers that it starts, from then on.
    """

    def __init__(
        self,
        models: Sequence[str],
        settings: Settings,
        *,
        objects: Mapping[str, Model] | None = None,
        doors: bool = True,
        plan: ClusterPlan | None = None,
    ) -> None:
        self.settings = settings
        # A sweep need not look for other packages.
        self._protocols = checked_options(every() if doors else (), settings)
        self.folder = RunFolder(settings.dir)
        self._models = list(models)
        self._objects = objects
        self.plan = plan
        self._elastic: Elastic | None = None
        if plan is not None:
            from farm.provision.batch.elastic import Elastic

            connect, jobs = self.folder.for_clients, settings.dir / "jobs"
            self._elastic = Elastic(plan, connect=connect, folder=jobs)
        # Set while it runs.
        self.dispatcher: Dispatcher
        self.own: OwnWorkers
        self._doors: Doors | None = None
        self._undo = _Undo()

    @property
    def announced(self) -> Sequence[str]:
        """Lines for the user about the addresses of protocols."""
        return () if self._doors is None else self._doors.announced

    @property
    def _threads(self) -> int:
        """The number of workers that are threads of this process."""
        return max(1, self.settings.workers) if self._objects else 0

    async def start(self, *, on_stop: Callable[[bool], None] | None = None) -> Connection:
        """Start the dispatcher, open the doors and start the workers; calls wait for the models.

        on_stop: called by the action `stop`, with True to stop at once; None: no such action.
        Raises Unavailable if the run folder or the port is taken. Nothing is left running then,
        unless a keeper started this front door again: the workers and jobs of its predecessor wait.
        """
        self._loop = asyncio.get_running_loop()
        self.folder.take()
        async with self._leaves_nothing(0.0):
            await self._start(on_stop)
        return self.folder.connection

    async def ready(self) -> None:
        """Return once the workers that the farm starts here or at Dask have loaded the models.

        Raises Unavailable if no worker starts in time, `WorkersFailed` if the models cannot
        be loaded, and SettingsError if they do not fit the settings. The calls that wait are
        answered with that, and nothing is left running, as after `start`.
        """
        async with self._leaves_nothing(FAREWELL_S):
            try:
                if self.own:
                    await self.own.first(self.dispatcher, self._threads)
                # Workers from elsewhere may bring models that the farm does not know yet.
                if self.plan is None and (self._models or self._objects):
                    models = self.dispatcher.models()
                    self.settings.check_policies(models)
                    if self._doors is not None:
                        self._doors.check(models)
                        self.folder.update(self._doors.connection)
            except Exception as error:
                self.dispatcher.first_worker.fails(str(error))
                raise

    @contextlib.asynccontextmanager
    async def _leaves_nothing(self, grace_s: float) -> AsyncIterator[None]:
        """Stop if the block fails, unless a keeper started this front door again."""
        try:
            yield
        except Exception:
            line = keeper()
            if line is None or not line.restarts:
                await self.stop(grace_s=grace_s)
            raise

    async def _start(self, on_stop: Callable[[bool], None] | None) -> None:
        """Start all parts. Each registers how it is undone; `stop` begins with the last one."""
        settings, undo = self.settings, self._undo
        undo.callback(self.folder.leave)
        if settings.grpc_port is not None:
            check_packages()  # before anything starts that would have to be stopped
        tracing = start_tracing() if settings.otel else None
        if tracing is not None:
            undo.push_async_callback(asyncio.to_thread, tracing.close)
        if self._elastic is not None:
            undo.push_async_callback(self._elastic.stop)
            undo.hurries.callback(self._elastic.hurry)
        self.own = own = OwnWorkers(self._models, settings, self.folder.for_clients)
        undo.push_async_callback(lambda: own.stop(undo.grace_s))
        undo.hurries.callback(own.hurry)
        recorder = None
        if settings.record is not None:  # another farm may use the file
            from farm.record.recorder import Recorder

            recorder = Recorder(settings.record.absolute(), reuses=settings.reuse)
            undo.callback(recorder.close)
        reach = self.plan.host if self.plan else ""
        wires = listen(settings, elastic=self.plan is not None, reach=reach)
        peers = Peers(*wires.listeners, is_own=self._has_started)
        self.dispatcher = self._dispatcher(peers, recorder)
        undo.callback(watch(self.dispatcher, tracing).close)
        NamedWorkers(self.dispatcher, peers, settings.dir)
        expected = ExpectedWorkers(self.dispatcher)
        self.dispatcher.start()
        undo.push_async_callback(lambda: self.dispatcher.close(grace_s=undo.grace_s))
        undo.hurries.callback(self.dispatcher.give_up)
        self.folder.publish(wires)
        show_restarts(self.dispatcher)
        if on_stop is not None:
            offer_stop(self.dispatcher, settings.grace_s, on_stop)
        if self._elastic is not None:
            self._elastic.start(self.dispatcher, peers.drain)
            self._elastic.describe_models()
        if self._protocols:
            await self._open_doors(tracing)
        else:
            undo.callback(self._begin_stop)
        own.start(expected)

    def _dispatcher(self, peers: Peers, recorder: Recorder | None) -> Dispatcher:
        settings, own = self.settings, self.own
        transports: list[Transport] = [peers] if own.dask is None else [own.dask, peers]
        if self._objects:
            transports.append(LocalTransport(self._objects, workers=self._threads))
        expected = own if own else Expectation()
        if self._elastic is not None:
            # Where the user has set a limit, that counts, whatever the batch system forecasts.
            forecasts = settings.start_timeout_s is None
            expected = Expectation([expected, self._elastic], forecasts=forecasts)
        ends_at = allocation.end_time()  # of this process's job, if it is in one
        limit_s = settings.start_timeout_s or START_ELSEWHERE_S
        dispatcher = Dispatcher(
            transports,
            policies=settings.policies(),
            max_queued=settings.max_queued,
            max_queued_per_client=settings.max_queued_per_client,
            retries=settings.retries,
            ends_at=None if ends_at is None else ends_at - time.time() + time.monotonic(),
            memory=recorder,
            expected=expected,
            first_worker_s=limit_s if self._protocols else math.inf,
        )
        open_ = dispatcher.stages.tasks.open, dispatcher.stages.gathered
        dispatcher.turns.after_acting(LoneCaller(*open_, self._loop).acted)
        dispatcher.add_part("descriptions", lambda: served_models(dispatcher.models()))
        if recorder is not None:
            recorder.start(dispatcher.description, dispatcher.note)

            def state_of_record() -> dict[str, Any]:
                reused = sum(of_model.reused for of_model in dispatcher.statistics().values())
                return {**recorder.status(), "answered": reused}

            dispatcher.add_part("record", state_of_record)
        return dispatcher

    def _has_started(self, info: WorkerInfo) -> bool:
        """Whether this farm's supervisor, its jobs or the batch job around it started a worker."""
        started_by = (self.own, self._elastic)
        if any(by.has_started(info.labels) for by in started_by if by is not None):
            return True
        job = allocation.labels().get("job")
        return job is not None and info.labels.get("job") == job

    async def _open_doors(self, tracing: Tracing | None) -> None:
        settings, connection, readers = self.settings, self.folder.connection, Readers()
        self._undo.callback(readers.stop)
        access = Access(connection.token, auth=settings.auth, origins=settings.allow_origin)
        site = Site(
            self.dispatcher,
            access,
            Access(None) if settings.insecure else access,
            settings,
            readers=readers,
        )
        served = endpoints_of(self._protocols, site)
        for each in served.values():
            if each.hurry is not None:
                self._undo.hurries.callback(each.hurry)
        self._doors = doors = Doors(site, served, connection, tracing=tracing)
        self._undo.push_async_callback(lambda: doors.close(self._undo.grace_s))
        self._undo.callback(self._begin_stop)
        await doors.open()
        await doors.listen()
        self.folder.update(doors.connection)

    async def stop(self, *, grace_s: float | None = None) -> None:
        """Stop in order: close doors, finish running calls, end workers, close sockets."""
        await self._undo.all(self.settings.grace_s if grace_s is None else grace_s)

    def _begin_stop(self) -> None:
        """Submit no more jobs, and let no request wait for models."""
        if self._elastic is not None:
            self._elastic.begin_stop()
        self.dispatcher.first_worker.fails("the farm is shutting down")

    def hurry(self) -> None:
        """Make a running or later `stop` wait for nothing: open calls fail, workers are killed.

        May be called from any thread.
        """
        self._loop.call_soon_threadsafe(self._undo.hurries.close)


class _Undo(contextlib.AsyncExitStack):
    """Undoes the starts of a farm's parts, the last one first.

    grace_s: how long each may wait for running calls. hurries: make them wait for nothing, when
    it is closed.
    """

    grace_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.hurries = contextlib.ExitStack()

    async def all(self, grace_s: float) -> None:
        """Undo all."""
        self.grace_s = grace_s
        await self.aclose()
