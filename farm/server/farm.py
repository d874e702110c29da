"""A farm put together: dispatcher, transports, workers of this machine, doors; up and down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import socket
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from farm.call import WorkerInfo
from farm.dispatcher import Dispatcher, Transport
from farm.errors import Unavailable
from farm.experiment.evaluators import Around
from farm.experiment.host import Experiments
from farm.experiment.runs import Runs
from farm.machine.memory import usable_memory
from farm.machine.private import make_private_folder
from farm.model import Model
from farm.provision import allocation, local
from farm.provision.elastic import Elastic
from farm.provision.group import launch_of
from farm.provision.kinds import Plan
from farm.server import aepsych
from farm.server.access import Access
from farm.server.aepsych import AepsychServer
from farm.server.app import create_app
from farm.server.grpc import GrpcServer, Tls, check_packages
from farm.server.held import HeldBytes
from farm.server.http import HttpServer
from farm.server.kserve_grpc import KServeGrpc
from farm.server.kserve_repository import Repository
from farm.server.mip import MipServer
from farm.server.mip_address import model_of, read_address
from farm.server.readers import READS_HERE, Readers
from farm.server.wires import Wires, listen
from farm.settings import ANY_HOST, Settings
from farm.transports.connection import (
    CLIENTS_FILE,
    WORKERS_FILE,
    Connection,
    read_connection,
    write_connection,
)
from farm.transports.dask import DaskTransport
from farm.transports.local import LocalTransport
from farm.transports.peers import Peers
from farm.transports.reach import accepts_tcp

log = logging.getLogger(__name__)

RUN_FOLDER = ("farm.*", ".farm.*", "workers.*", "logs", "jobs", "experiments.db*")
"""What farms have made in their run folders; one with other things in it is not farm's alone."""

SHARE_OF_MEMORY = 4
"""Bodies may take one of so many parts of the memory: as arrays, in queues and in answers they take
as much again."""

STOP_WORKERS_S = 5.0
"""Workers that were asked to end and have nothing to run are killed after so long."""


class Farm:
    """One farm in this process, on one event loop.

    models: what each worker process loads, as `farm serve` takes them. objects: models that exist
    in this process already; they run in threads here, which suits notebooks and tests.
    doors: whether HTTP is served; native clients and workers need the connection file only.
    plan: SLURM jobs of workers that come and go with demand. Raises Unavailable then when SLURM's
    commands are not there, and SettingsError when a template cannot be used.
    """

    def __init__(
        self,
        models: Sequence[str],
        settings: Settings,
        *,
        objects: Mapping[str, Model] | None = None,
        doors: bool = True,
        plan: Plan | None = None,
    ) -> None:
        self.settings = settings
        self._mip_addresses = [
            read_address(x, insecure=settings.insecure, auth=settings.auth) for x in settings.mip
        ]
        self._aepsych_address = (
            aepsych.read_address(settings.aepsych, insecure=settings.insecure, auth=settings.auth)
            if settings.aepsych is not None
            else None
        )
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
        self._mark = secrets.token_hex(8)
        # Set while it runs.
        self.connection = Connection("")
        self.dispatcher: Dispatcher
        self._wires: Wires
        self._workers: local.Workers | None = None
        self._dask: DaskTransport | None = None
        self._readers: Readers | None = None
        self._http: HttpServer | None = None
        self._grpc: GrpcServer | None = None
        self._mip: list[MipServer] = []
        self.experiments: Experiments | None = None
        self._aepsych: AepsychServer | None = None
        self._runs: Runs | None = None

    @property
    def has_plan(self) -> bool:
        """Whether SLURM jobs of workers come and go."""
        return self._plan is not None

    async def start(self) -> Connection:
        """Up: dispatcher, workers, and once a worker is there the doors.

        Raises Unavailable when the run folder or the port is taken, or no worker comes up; and
        `local.WorkersFailed` when the models cannot be loaded. Nothing is left running then.
        """
        self._loop = asyncio.get_running_loop()
        self._take_folder()
        try:
            await self._start()
        except BaseException:
            await self.stop(grace_s=0.0)
            raise
        return self.connection

    async def _start(self) -> None:
        settings = self.settings
        if settings.grpc_port is not None:
            check_packages()  # before anything starts that this would have to end
        if self._aepsych_address is not None:  # also, as another server may have the journal
            self.experiments = Experiments(settings.journal or settings.dir / "experiments.db")
            await self.experiments.start()
        transports: list[Transport] = []
        if settings.dask is not None:  # first, as it may be refused and nothing is open yet
            self._dask = DaskTransport(settings.dask, self._models, slots=settings.dask_slots)
            transports.append(self._dask)
        reach = self._plan.host if self._plan else ""
        self._wires = wires = listen(settings, elastic=self._plan is not None, reach=reach)
        self.connection = wires.for_clients
        transports.append(Peers(*wires.listeners, is_own=self._has_started))
        if self._objects:
            transports.append(LocalTransport(self._objects, workers=max(1, settings.workers)))
        self.dispatcher = Dispatcher(
            transports,
            max_queued=settings.max_queued,
            max_queued_per_client=settings.max_queued_per_client,
            retries=settings.retries,
        )
        # Those that are replaced when they end, or started when calls wait.
        self.dispatcher.workers_may_come = lambda: (
            self._workers is not None or self._elastic is not None or self._dask is not None
        )
        self.dispatcher.start()
        write_connection(self._workers_file, wires.for_workers)
        write_connection(self.connection_file, self.connection)
        if self._elastic is not None:
            wires.keep()
            self._elastic.start(self.dispatcher)
        if self._models and settings.workers:
            self._start_workers()
        if self._workers is not None or self._dask is not None:
            await self._first_worker()
        if self._with_doors:
            await self._open_doors()

    def _has_started(self, info: WorkerInfo) -> bool:
        """Whether a worker is of this farm's supervisor, its jobs, or the SLURM job it is in."""
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
                time_limit_s=settings.time_limit_s,
                # They end with this process (`worker/lifeline.py`), whatever its loop is busy with.
                lost_after_s=math.inf,
                frozen_after_s=settings.heartbeat_s,
                started_by=self._mark,
            )
        )
        self._workers.start()

    async def _first_worker(self) -> None:
        """Until some worker is there, or what should bring workers fails."""
        joined: asyncio.Future[None] = asyncio.create_task(
            self.dispatcher.wait_for_workers(1, timeout_s=self.settings.start_timeout_s)
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
        token, repository = self.connection.token, Repository(self.dispatcher)
        access = Access(token, auth=settings.auth, origins=settings.allow_origin)
        self._readers = readers = Readers()
        app = create_app(
            self.dispatcher,
            access=access,
            settings=settings,
            repository=repository,
            readers=readers,
        )
        held = HeldBytes(settings.max_held_bytes or usable_memory() // SHARE_OF_MEMORY)
        self._http = HttpServer(
            app, host=settings.host, port=settings.port, unix=settings.unix, held=held
        )
        _, port = await self._http.start()
        reach = settings.host
        if reach in ANY_HOST:
            reach = self.connection.host
        self.connection = replace(self.connection, url=f"http://{reach}:{port}")
        if settings.grpc_port is not None:
            await self._open_grpc(settings.grpc_port, reach, repository, access, held)
        tokenless = Access(None) if settings.insecure else access
        await self._open_mip(tokenless)
        await self._open_aepsych(tokenless)
        write_connection(self.connection_file, self.connection)

    async def _open_grpc(
        self, port: int, reach: str, repository: Repository, access: Access, held: HeldBytes
    ) -> None:
        settings = self.settings
        tls = None
        if settings.grpc_tls_cert is not None and settings.grpc_tls_key is not None:
            tls = Tls(settings.grpc_tls_cert, settings.grpc_tls_key)
        server = GrpcServer(
            KServeGrpc(self.dispatcher, repository, self._readers or READS_HERE),
            access,
            host=settings.host,
            port=port,
            max_body_bytes=settings.max_body_bytes,
            tls=tls,
            held=held,
        )
        _, port = await server.start()
        self._grpc = server
        self.connection = replace(self.connection, grpc=f"{reach}:{port}")

    async def _open_mip(self, access: Access) -> None:
        settings = self.settings
        # Workers from elsewhere may bring models that nobody knows yet.
        may_come = self._plan is not None or not (self._models or self._objects)
        models = [*self.dispatcher.models()]
        served: dict[str, str] = {}
        for address in self._mip_addresses:
            address = replace(address, model=model_of(address, models, may_come=may_come))
            server = MipServer(
                self.dispatcher,
                address,
                access=access,
                max_bytes=settings.mip_max_bytes,
                readers=self._readers or READS_HERE,
            )
            served[str(await server.start())] = address.model
            self._mip.append(server)
        self.connection = replace(self.connection, mip=served)

    async def _open_aepsych(self, access: Access) -> None:
        if self._aepsych_address is not None and self.experiments is not None:
            self._runs = Runs(self.experiments, Around(self.dispatcher))
            self._runs.start()
            self.dispatcher.add_part("experiments", self.experiments.status)
            host, port = self._aepsych_address
            self._aepsych = AepsychServer(
                self.experiments, access=access, host=host, port=port, readers=self._readers
            )
            self.connection = replace(self.connection, aepsych=await self._aepsych.start())

    async def _close_doors(self, grace_s: float) -> None:
        (http, self._http), (grpc, self._grpc) = (self._http, None), (self._grpc, None)
        (mip, self._mip), (asks, self._aepsych) = (self._mip, []), (self._aepsych, None)
        stops = [door.stop(grace_s) for door in (http, grpc, asks, *mip) if door is not None]
        await asyncio.gather(*stops)
        if self._readers is not None:
            self._readers.stop()
            self._readers = None

    async def wait_failed(self) -> None:
        """Until what brings workers fails for good; then raises WorkersFailed or Unavailable."""
        ends = []
        if self._workers is not None:
            ends.append(asyncio.shield(asyncio.wrap_future(self._workers.ended)))
        if self._dask is not None:
            ends.append(asyncio.shield(asyncio.wrap_future(self._dask.ready)))
        await asyncio.gather(*ends)
        await asyncio.get_running_loop().create_future()

    async def stop(self, *, grace_s: float | None = None) -> None:
        """Down in order: doors stop listening, running calls finish, workers end, sockets close."""
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
        if self._workers is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._workers.stop, min(grace_s, STOP_WORKERS_S))
            self._workers = None
        if self._elastic is not None:
            await self._elastic.stop()
        with contextlib.suppress(FileNotFoundError, Unavailable):
            if read_connection(self.connection_file).pid == os.getpid():
                self.connection_file.unlink()
                self._workers_file.unlink()
                self._wires.forget()

    def hurry(self) -> None:
        """Let a `stop` under way or to come wait for nothing: open calls fail, workers are killed.

        From any thread.
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

    def _take_folder(self) -> None:
        """Make the run folder ours. Raises Unavailable when a living farm has it."""
        folder = self.settings.dir
        try:
            make_private_folder(folder, known=RUN_FOLDER)
        except OSError as error:
            raise Unavailable(f"run folder {folder} cannot be made: {error}") from None
        try:
            before = read_connection(self.connection_file)
        except Unavailable:
            return
        if before.host == socket.gethostname() and _lives(before.pid):
            raise Unavailable(
                f"a farm (process {before.pid}) runs in {folder} already; "
                "stop it, or give this one its own --dir"
            )
        if before.host != socket.gethostname() and accepts_tcp(before.endpoint):
            raise Unavailable(
                f"a farm on {before.host} runs in {folder} already, as something answers at "
                f"{before.endpoint}; stop it, or give this one its own --dir"
            )


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid() and not _has_ended(pid)


def _has_ended(pid: int) -> bool:
    """Whether all that is left of the process is its number, until its parent takes note."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # no such system, or gone by now
        return False
    return stat.rpartition(b")")[2].split()[0] in (b"Z", b"X")  # proc(5)


@contextlib.contextmanager
def running(farm: Farm) -> Iterator[Connection]:
    """The farm in a thread of its own, up for the length of the block; for synchronous programs.

    Raises what `Farm.start` raises.
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
