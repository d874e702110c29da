"""The Dask transport: a Dask cluster is one Worker with as many slots as the cluster has threads.

Each call, or each batch of a batchable model, is one Dask task, which Dask places, moves and runs
again when its worker dies. Dask's client lives on a loop and a thread of its own: calls go there,
and facts come back to the dispatcher's loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from farm.call import WorkerInfo
from farm.errors import FarmError, Unavailable
from farm.scheduler.state import TaskId, WorkerId
from farm.transports.dask_cluster import ANSWER_S, Membership, Tasks, one_line
from farm.worker.load import located

if TYPE_CHECKING:
    from farm.dispatcher import Dispatcher

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
"""Time between a lost cluster and the next attempt to reach it."""


class DaskTransport:
    """Carries calls to a Dask cluster, whose processes load the models themselves.

    cluster: the Dask scheduler's address, such as tcp://node1:8786, or its scheduler file.
    models: as `farm serve` takes them; a file must be there under the same path for the cluster.
    slots: calls the cluster is given at once even if it has fewer threads, so that one that grows
    with its load, from nothing even, sees a load. TLS and time-outs are Dask's configuration's.

    Raises Unavailable without Dask, and when `cluster` is neither.
    """

    def __init__(self, cluster: str, models: Sequence[str], *, slots: int = 0) -> None:
        self._dask = _dask_package()
        self._cluster = cluster
        self._where = _where(cluster)
        self._specs = tuple(located(spec) for spec in models)
        self._slots = slots
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done once the models are known; Unavailable if they or the cluster cannot be had."""
        self._member: Membership | None = None  # set by Dask's thread, read by both
        self._serving: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()  # Dask's loop waits for it

    def start(self, dispatcher: Dispatcher) -> None:
        """Begin, on the running loop."""
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        # Dask's client is made for asyncio's own loop, and keeps one busy in bursts.
        self._dask_loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._run, name="dask", daemon=True)
        self._thread.start()

    def send(self, worker: WorkerId, tasks: Tasks) -> None:
        """Give tasks to the cluster."""
        now = time.perf_counter()
        self._ask(worker, lambda member: member.take(tasks, now))

    def take_back(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Take back what has not begun."""
        self._ask(worker, lambda member: member.spawn(member.hand_back(tasks)))

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Nothing: there are none here."""

    def stop_workers(self) -> None:
        """Finish what runs in the cluster, hand back the rest and leave; the cluster lives on."""
        self._soon(self._stop.set)
        member = self._member
        if member is not None:
            self._ask(member.name, lambda member: member.spawn(member.drain()))

    async def close(self) -> None:
        """Let go of the cluster; it drops what it still holds of ours."""
        self._soon(self._end)
        await self._loop.run_in_executor(None, self._thread.join, 3 * ANSWER_S)

    def _ask(self, worker: WorkerId, ask: Callable[[Membership], None]) -> None:
        def do() -> None:
            # Another name means that the connection was lost, as the dispatcher is about to hear.
            if self._member is not None and self._member.name == worker:
                ask(self._member)

        self._soon(do)

    def _soon(self, do: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: all is over
            self._dask_loop.call_soon_threadsafe(do)

    # Dask's thread

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._dask_loop) as runner:
            try:
                runner.run(self._belong())
            finally:
                self._member = None  # nobody may ask it for anything while the loop closes

    def _end(self) -> None:
        self._stop.set()
        if self._serving is not None:
            self._serving.cancel()

    async def _belong(self) -> None:
        """One connection to the cluster after another, until stopped."""
        while not self._stop.is_set():
            member = self._member = Membership(
                self._dask, self._where, self._specs, self._slots, self._tell, self._joined
            )
            self._serving = asyncio.create_task(member.serve())
            await asyncio.wait({self._serving})
            cancelled = self._serving.cancelled()
            error = Unavailable("closed") if cancelled else self._serving.exception()
            self._left(member.name, error)
            with _no_errors():
                await member.close()
            if cancelled or error is None:
                return
            if not self.ready.done():
                # What is wrong from the start is the user's to mend; later, better times may come.
                self._fail(error)
                return
            log.warning("Dask cluster %s: %s", self._cluster, one_line(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), RECONNECT_S)

    def _tell(self, fact: Callable[[Dispatcher], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(fact, self._dispatcher)

    def _joined(self, info: WorkerInfo) -> None:
        self._tell(lambda dispatcher: dispatcher.worker_joined(info, self))
        if not self.ready.done():
            self.ready.set_result(None)  # who waits on the dispatcher's loop hears of it after that

    def _left(self, name: WorkerId, error: BaseException | None) -> None:
        reason = "stopped" if error is None else one_line(error)
        self._tell(lambda d: d.worker_left(name, reason, drained=error is None))

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, FarmError):
            error = Unavailable(f"no Dask cluster at {self._cluster}: {one_line(error)}")
        self.ready.set_exception(error)


def _where(cluster: str) -> dict[str, str]:
    if Path(cluster).is_file():
        return {"scheduler_file": cluster}
    if "://" in cluster or cluster.rpartition(":")[2].isdigit():
        return {"address": cluster}
    raise Unavailable(
        f"{cluster!r} is neither a scheduler file of Dask nor an address like tcp://HOST:8786"
    )


@contextlib.contextmanager
def _no_errors() -> Iterator[None]:
    """Dask's client logs some when it is closed while it looks for a lost scheduler."""

    def keep(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR

    client_log = logging.getLogger("distributed.client")
    client_log.addFilter(keep)
    try:
        yield
    finally:
        client_log.removeFilter(keep)


def _dask_package() -> ModuleType:
    try:
        import distributed
    except ImportError:
        raise Unavailable('a Dask cluster needs Dask: pip install "modelfarm[dask]"') from None
    return distributed
