"""A complete farm: starts and stops dispatcher, transports, local workers and doors in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import uvloop

from farm.bodies.held import HeldBytes
from farm.bodies.readers import Readers
from farm.call import WorkerInfo
from farm.descriptors import every
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.lone_caller import LoneCaller
from farm.dispatcher.transport import Transport
from farm.errors import Unavailable
from farm.experiment.host import Experiments
from farm.experiment.loop.evaluators import Around
from farm.experiment.loop.runs import Runs
from farm.grpc.call import Service
from farm.grpc.reflection import Reflection
from farm.grpc.server import GrpcServer, Services, Tls, check_packages
from farm.http.access import Access
from farm.http.server import HttpServer
from farm.machine.memory import usable_memory
from farm.model import Model
from farm.monitoring.monitor import Monitor
from farm.monitoring.tracing import Tracing, start_tracing
from farm.protocols.site import ProtocolListener, Site
from farm.provision.batch import allocation
from farm.provision.batch.elastic import Elastic
from farm.provision.batch.plan import ClusterPlan
from farm.provision.local import supervisor as local
from farm.provision.local.group import launch_of
from farm.record.recorder import Recorder
from farm.server.app import checked_options, endpoints_of, front_door
from farm.server.restarts import restarts, show_restarts
from farm.server.run_folder import take_folder
from farm.server.served_models import served_models
from farm.server.stopping import Asked, offer_stop
from farm.server.wires import Wires, listen
from farm.server.worker_actions import WorkerActions
from farm.settings import ANY_HOST, Settings
from farm.transports.connection import (
    CLIENTS_FILE,
    WORKERS_FILE,
    Connection,
    read_connection,
    write_connection,
)
from farm.transports.dask.transport import DaskTransport
from farm.transports.peers import Peers
from farm.transports.threads import LocalTransport

log = logging.getLogger(__name__)

SHARE_OF_MEMORY = 4
"""Bodies may use 1 / SHARE_OF_MEMORY of the memory: as arrays, in queues and in answers they
take as much again."""

START_HERE_S = 600.0
"""Default time in seconds that the first worker on this machine may take to load its models."""

START_ELSEWHERE_S = 3600.0
"""Default time in seconds that calls wait for the first worker of a job or another machine."""

DESCRIBING_S = 10.0
"""Seconds that the doors stay closed for models that are being described; requests wait then."""

STOP_WORKERS_S = 5.0
"""Seconds after which idle workers that were asked to end are killed."""


class Farm:
    """One farm in this process, on one event loop.

    models: models that each worker process loads, as `farm serve` takes them. objects: models that
    exist in this process already; they run in threads here, which suits notebooks and tests. doors:
    whether to serve HTTP; native clients and workers need only the connection file. plan: jobs
    of workers that start and end with demand; then this raises Unavailable if the batch system's
    commands are missing, and SettingsError if a template cannot be used.
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
        self._protocols = every() if doors else ()  # a sweep need not look for other packages
        self._options = checked_options(self._protocols, settings)
        self.connection_file = settings.dir / CLIENTS_FILE
        self._workers_file = settings.dir / WORKERS_FILE
        self._models = list(models)
        self._objects = objects
        self._with_doors = doors
        self._plan = plan
        self._elastic: Elastic | None = None
        if plan is not None:
            jobs = settings.dir / "jobs"
            self._elastic = Elastic(plan, connect=self.connection_file, folder=jobs)
        # Workers from elsewhere may bring models that the farm does not know yet.
        self._more_models = plan is not None or not (models or objects)
        self._mark = secrets.token_hex(8)
        self.on_stop: Asked | None = None  # for the action `stop`
        self.took_over = asyncio.Event()  # the jobs of a farm that was killed here
        # Set while it runs.
        self.connection = Connection("")
        self.dispatcher: Dispatcher
        self._wires: Wires
        self._workers: local.Workers | None = None
        self._dask: DaskTransport | None = None
        self._readers: Readers | None = None
        self._http: HttpServer | None = None
        self._grpc: GrpcServer | None = None
        self._listeners: list[ProtocolListener] = []
        self._closes: list[Callable[[], None]] = []
        self.announced: list[str] = []
        self.experiments: Experiments | None = None
        self._runs: Runs | None = None
        self._recorder: Recorder | None = None
        self._tracing: Tracing | None = None

    @property
    def batch_system(self) -> str:
        """The system whose jobs run the workers, starting and ending with demand; empty: none."""
        return "" if self._plan is None else self._plan.system.title

    async def start(self) -> Connection:
        """Start the dispatcher and the workers, and open the doors once a worker has joined.

        Raises Unavailable if the run folder or the port is taken, or no worker starts; and
        `local.WorkersFailed` if the models cannot be loaded. Nothing is left running then, unless
        a keeper started this front door again: the workers and jobs of its predecessor wait.
        """
        self._loop = asyncio.get_running_loop()
        take_folder(self.settings.dir, self.connection_file)
        try:
            await self._start()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) or not restarts():
                await self.stop(grace_s=0.0)
            raise
        return self.connection

    async def _start(self) -> None:
        settings = self.settings
        if settings.grpc_port is not None:
            check_packages()  # before anything starts that would have to be stopped
        if settings.otel:
            self._tracing = start_tracing()
        for protocol in self._protocols:
            options = self._options[protocol.name]
            if protocol.experiments and options is not None:  # another server may use the journal
                self.experiments = Experiments(options.journal or settings.dir / "experiments.db")
                await self.experiments.start()
        if settings.record is not None:  # another farm may use the file
            self._recorder = Recorder(settings.record.absolute(), reuses=settings.reuse)
        transports: list[Transport] = []
        if settings.dask is not None:  # first, as it may fail and nothing is open yet
            slots, needs = settings.dask_slots, settings.dask_needs()
            self._dask = DaskTransport(settings.dask, self._models, slots=slots, needs=needs)
            transports.append(self._dask)
        reach = self._plan.host if self._plan else ""
        self._wires = wires = listen(settings, elastic=self._plan is not None, reach=reach)
        self.connection = wires.for_clients
        peers = Peers(*wires.listeners, is_own=self._has_started)
        transports.append(peers)
        if self._objects:
            transports.append(LocalTransport(self._objects, workers=max(1, settings.workers)))
        self.dispatcher = Dispatcher(
            transports,
            policies=settings.policies(),
            max_queued=settings.max_queued,
            max_queued_per_client=settings.max_queued_per_client,
            retries=settings.retries,
            memory=self._recorder,
        )
        self.dispatcher.after_acting(LoneCaller(self.dispatcher.calls_open).acted)
        self._monitor = Monitor(self.dispatcher, self._tracing)
        self.dispatcher.add_part("descriptions", lambda: served_models(self.dispatcher.models()))
        WorkerActions(self.dispatcher, peers, settings.dir)
        if self._recorder is not None:
            self._recorder.start(self.dispatcher.description, self.dispatcher.note)
            self.dispatcher.add_part("record", self._state_of_record)
        # Workers that are replaced when they end, or started when calls wait.
        self.dispatcher.first_worker.may_come = lambda: (
            self._workers is not None or self._elastic is not None or self._dask is not None
        )
        if self._with_doors:
            self.dispatcher.first_worker.limit_s = settings.start_timeout_s or START_ELSEWHERE_S
        self.dispatcher.start()
        write_connection(self._workers_file, wires.for_workers)
        write_connection(self.connection_file, self.connection)
        wires.keep()
        show_restarts(self.dispatcher)
        if self.on_stop is not None:
            offer_stop(self.dispatcher, settings.grace_s, self.on_stop)
        if self._elastic is not None:
            self._elastic.start(self.dispatcher, peers.drain)
            if settings.start_timeout_s is None:  # otherwise the user's word counts
                self.dispatcher.first_worker.starts_in = self._elastic.starts_in
        self.took_over.set()
        if self._elastic is not None:
            await self._elastic.describe_models(within_s=DESCRIBING_S)
        if self._models and settings.workers:
            self._start_workers()
        if self._workers is not None or self._dask is not None:
            # Native clients may be here already: those of a farm that was killed in this folder.
            first = self.dispatcher.first_worker
            awaited, first.awaited = first.awaited, _starting
            await self._first_worker()
            first.awaited = awaited
        if not self._more_models:
            settings.check_policies(self.dispatcher.models())
        if self._with_doors:
            await self._open_doors()

    def _state_of_record(self) -> dict[str, Any]:
        """Return the state of the record, with the rows that were answered without a run."""
        reused = sum(of_model.reused for of_model in self.dispatcher.statistics().values())
        recorder = self._recorder
        return {} if recorder is None else {**recorder.status(), "answered": reused}

    def _has_started(self, info: WorkerInfo) -> bool:
        """Whether this farm's supervisor, its jobs or the batch job around it started a worker."""
        if info.labels.get("started_by") == self._mark:
            return True
        if self._elastic is not None and self._elastic.has_started(info.labels):
            return True
        job = allocation.labels().get("job")
        return job is not None and info.labels.get("job") == job

    def _start_workers(self) -> None:
        settings = self.settings
        self._workers = local.Workers(
            local.WorkerSettings(
                models=self._models,
                count=settings.workers,
                connect=self.connection_file,
                logs=settings.dir / "logs",
                launch=launch_of(settings.mpi, settings.mpi_launch),
                fork=settings.fork,
                time_limit_s=settings.time_limit_s,
                # They end with this process (machine/lifeline.py), even when its event loop is
                # blocked.
                lost_after_s=math.inf,
                frozen_after_s=settings.heartbeat_s,
                started_by=self._mark,
            )
        )
        self._workers.start()

    async def _first_worker(self) -> None:
        """Wait until a worker has joined. Raises the error of the workers' start if that fails."""
        joined: asyncio.Future[None] = asyncio.create_task(
            self.dispatcher.wait_for_workers(
                1, timeout_s=self.settings.start_timeout_s or START_HERE_S
            )
        )
        ready = []
        if self._workers is not None:
            ready.append(asyncio.wrap_future(self._workers.ready))
        if self._dask is not None:
            ready.append(asyncio.shield(asyncio.wrap_future(self._dask.ready)))
        try:
            done, _ = await asyncio.wait({joined, *ready}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await joined
        finally:
            for task in (joined, *ready):
                task.cancel()

    async def _open_doors(self) -> None:
        settings = self.settings
        access = Access(self.connection.token, auth=settings.auth, origins=settings.allow_origin)
        self._readers = Readers()
        site = Site(
            self.dispatcher,
            access,
            Access(None) if settings.insecure else access,
            settings,
            readers=self._readers,
            experiments=self.experiments,
            more_models=self._more_models,
        )
        served = endpoints_of(self._protocols, site, self._options)
        self._closes = [each.close for each in served.values() if each.close is not None]
        held = HeldBytes(settings.max_held_bytes or usable_memory() // SHARE_OF_MEMORY)
        self._http = HttpServer(
            front_door(site, served.values()),
            host=settings.host,
            port=settings.port,
            unix=settings.unix,
            held=held,
            names_requests=settings.log_format == "json",
            tracing=self._tracing,
        )
        _, port = await self._http.start()
        self.dispatcher.add_part("http", self._http.traffic.shown)
        reach = settings.host
        if reach in ANY_HOST:
            reach = self.connection.host
        self.connection = replace(self.connection, url=f"http://{reach}:{port}")
        if settings.grpc_port is not None:
            services = [each.grpc() for each in served.values() if each.grpc is not None]
            services.append(Reflection(each.grpc_descriptors for each in served.values()))
            await self._open_grpc(settings.grpc_port, reach, services, access, held)
        self._run_experiments()
        for name, each in served.items():
            if each.listener is not None:
                await self._open_listener(name, each.listener)
        write_connection(self.connection_file, self.connection)

    async def _open_grpc(
        self, port: int, reach: str, services: Sequence[Service], access: Access, held: HeldBytes
    ) -> None:
        settings = self.settings
        tls = None
        if settings.grpc_tls_cert is not None and settings.grpc_tls_key is not None:
            tls = Tls(settings.grpc_tls_cert, settings.grpc_tls_key)
        server = GrpcServer(
            Services(services),
            access,
            host=settings.host,
            port=port,
            max_body_bytes=settings.max_body_bytes,
            tls=tls,
            held=held,
            names_requests=settings.log_format == "json",
            tracing=self._tracing,
        )
        _, port = await server.start()
        self._grpc = server
        self.connection = replace(self.connection, grpc=f"{reach}:{port}")

    async def _open_listener(self, name: str, listener: ProtocolListener) -> None:
        self._listeners.append(listener)  # before it starts, which may fail halfway
        opened = await listener.start()
        self.announced += opened.lines
        addresses = {**self.connection.addresses, name: opened.address}
        self.connection = replace(self.connection, addresses=addresses)

    def _run_experiments(self) -> None:
        """Evaluate the points of experiments that run without a client."""
        if self.experiments is not None:
            self._runs = Runs(self.experiments, Around(self.dispatcher))
            self._runs.start()
            self.dispatcher.add_part("experiments", self.experiments.status)

    async def _close_doors(self, grace_s: float) -> None:
        (http, self._http), (grpc, self._grpc) = (self._http, None), (self._grpc, None)
        listeners, self._listeners = self._listeners, []
        stops = [door.stop(grace_s) for door in (http, grpc, *listeners) if door is not None]
        await asyncio.gather(*stops)
        closes, self._closes = self._closes, []
        for close in closes:
            close()
        if self._readers is not None:
            self._readers.stop()
            self._readers = None

    async def wait_failed(self) -> None:
        """Wait until starting workers fails for good, then raise WorkersFailed or Unavailable."""
        ends = []
        if self._workers is not None:
            ends.append(asyncio.shield(asyncio.wrap_future(self._workers.ended)))
        if self._dask is not None:
            ends.append(asyncio.shield(asyncio.wrap_future(self._dask.ready)))
        await asyncio.gather(*ends)
        await asyncio.get_running_loop().create_future()

    async def stop(self, *, grace_s: float | None = None) -> None:
        """Stop in order: close doors, finish running calls, end workers, close sockets."""
        grace_s = self.settings.grace_s if grace_s is None else grace_s
        if self._elastic is not None:
            self._elastic.begin_stop()
        await self._close_doors(grace_s)
        if self._runs is not None:
            await self._runs.stop()
            self._runs = None
        if self.experiments is not None:
            await self.experiments.stop()
            self.experiments = None
        if hasattr(self, "dispatcher"):
            await self.dispatcher.close(grace_s=grace_s)
            self._monitor.close()
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        if self._workers is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._workers.stop, min(grace_s, STOP_WORKERS_S))
            self._workers = None
        if self._elastic is not None:
            await self._elastic.stop()
        if self._tracing is not None:
            tracing, self._tracing = self._tracing, None
            await asyncio.get_running_loop().run_in_executor(None, tracing.close)
        with contextlib.suppress(FileNotFoundError, Unavailable):
            if read_connection(self.connection_file).pid == os.getpid():
                self.connection_file.unlink()
                self._workers_file.unlink()
                self._wires.forget()

    def hurry(self) -> None:
        """Make a running or later `stop` wait for nothing: open calls fail, workers are killed.

        May be called from any thread.
        """
        self._loop.call_soon_threadsafe(self._hurry)

    def _hurry(self) -> None:
        self.dispatcher.give_up()
        if self.experiments is not None:
            self.experiments.hurry()
        if self._elastic is not None:
            self._elastic.hurry()
        if self._workers is not None:
            self._workers.hurry(0.0)


def _starting() -> str:
    return "the farm is starting and waits for its first worker"


@contextlib.contextmanager
def running(farm: Farm) -> Iterator[Connection]:
    """Run the farm in a thread of its own for the length of the block; for synchronous programs.

    Raises the errors of `Farm.start`.
    """
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="farm", daemon=True)
    thread.start()

    def wait(work: Coroutine[Any, Any, Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, loop)
        return future.result()

    try:
        connection: Connection = wait(farm.start())
        try:
            yield connection
        finally:
            wait(farm.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
