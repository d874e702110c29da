"""The Dask transport: a Dask cluster is one Worker with one slot for each of its threads.

Each call, or each batch of a batchable model, is one Dask task. Dask places and moves it, and runs
it again if its worker dies. Dask's client has its own thread and event loop: calls are passed to
it, and facts come back to the dispatcher's loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.call import WorkerInfo
from farm.errors import FarmError, Unavailable
from farm.scheduler.state import TaskId, WorkerId
from farm.sequences import SequenceId
from farm.transports.dask.cluster import ANSWER_S, Membership, Tasks, one_line
from farm.transports.dask.processes import Processes
from farm.wording import needs as imports
from farm.worker.specs import located

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
"""Time between losing the cluster and the next attempt to reach it."""


class DaskTransport:
    """Carries calls to a Dask cluster, whose processes load the models themselves.

    cluster: the Dask scheduler's address, such as tcp://node1:8786, or its scheduler file.
    models: as for `farm serve`; the cluster must see a model's file under the same path.
    slots: minimum number of calls sent to the cluster, even if it has fewer threads, so that an
    adaptive cluster sees a load and grows, even from zero. Dask's configuration sets TLS and
    timeouts. needs: amount of each of Dask's resources that a call holds, such as {"GPU": 1}.

    Raises Unavailable without Dask, and if `cluster` is neither an address nor a file.
    """

    def __init__(
        self,
        cluster: str,
        models: Sequence[str],
        *,
        slots: int = 0,
        needs: Mapping[str, float] | None = None,
    ) -> None:
        with imports("dask", "a Dask cluster needs Dask", Unavailable):
            importlib.import_module("distributed")
        self._where = _where(cluster)
        self._specs = tuple(located(spec) for spec in models)
        self._slots = slots
        self._needs = dict(needs or {})
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done once the models are known; fails with Unavailable if they cannot be had."""
        self._member: Membership | None = None  # set by Dask's thread, read by both threads
        self._serving: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()  # awaited on Dask's loop

    def start(self, dispatcher: Dispatcher) -> None:
        """Start on the running loop."""
        self._dispatcher = dispatcher
        dispatcher.add_part("dask", self._rows)
        self._loop = asyncio.get_running_loop()
        # Dask's client is written for asyncio's own loop, and keeps one busy in bursts.
        self._dask_loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._run, name="dask", daemon=True)
        self._thread.start()

    def _rows(self) -> list[dict[str, Any]]:
        member = self._member
        return [] if member is None else member.processes.rows()

    def send(self, worker: WorkerId, tasks: Tasks) -> None:
        """Send tasks to the cluster."""
        now = time.perf_counter()
        self._ask(worker, lambda member: member.take(tasks, now))

    def recall(self, worker: WorkerId, tasks: Sequence[TaskId]) -> None:
        """Recall the tasks that have not begun."""
        self._ask(worker, lambda member: member.spawn(member.recall(tasks)))

    def end_stream(self, worker: WorkerId, task: TaskId) -> None:
        """Take a call back that has not begun; Dask tasks have no streams."""
        self.recall(worker, [task])

    def end_sequence(self, worker: WorkerId, model: str, sequence: SequenceId) -> None:
        """Do nothing: stateful models do not run over Dask."""

    def stop_workers(self) -> None:
        """Finish the running tasks, recall the others and leave; the cluster stays up."""
        self._soon(self._stop.set)
        member = self._member
        if member is not None:
            self._ask(member.name, lambda member: member.spawn(member.drain()))

    async def close(self) -> None:
        """Disconnect from the cluster, which then drops the tasks it still holds."""
        self._soon(self._end)
        await self._loop.run_in_executor(None, self._thread.join, 3 * ANSWER_S)

    def _ask(self, worker: WorkerId, ask: Callable[[Membership], None]) -> None:
        def do() -> None:
            # A different name means that the connection was lost; the dispatcher is about to learn
            # this.
            if self._member is not None and self._member.name == worker:
                ask(self._member)

        self._soon(do)

    def _soon(self, do: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._dask_loop.call_soon_threadsafe(do)

    # Methods on Dask's thread

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._dask_loop) as runner:
            try:
                runner.run(self._belong())
            finally:
                self._member = None  # no calls may be passed to the loop while it closes

    def _end(self) -> None:
        self._stop.set()
        if self._serving is not None:
            self._serving.cancel()

    async def _belong(self) -> None:
        """Connect to the cluster, and reconnect when the connection is lost, until stopped."""
        (cluster,) = self._where.values()
        while not self._stop.is_set():
            processes = Processes(self._needs, self._slots)
            member = self._member = Membership(self._specs, processes, self._tell)
            self._serving = asyncio.create_task(member.serve(self._where, self._joined))
            await asyncio.wait({self._serving})
            cancelled = self._serving.cancelled()
            error = Unavailable("closed") if cancelled else self._serving.exception()
            self._left(member.name, error)
            with _no_errors():
                await member.close()
            if cancelled or error is None:
                return
            if not self.ready.done():
                # The user must fix an error of the first attempt; a later one may go away.
                if not isinstance(error, FarmError):
                    error = Unavailable(f"no Dask cluster at {cluster}: {one_line(error)}")
                self.ready.set_exception(error)
                return
            log.warning("Dask cluster %s: %s", cluster, one_line(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), RECONNECT_S)

    def _tell(self, fact: Callable[[Dispatcher], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(fact, self._dispatcher)

    def _joined(self, info: WorkerInfo) -> None:
        self._tell(lambda dispatcher: dispatcher.worker_joined(info, self))
        if not self.ready.done():
            self.ready.set_result(None)  # this wakes waiters on the dispatcher's loop after that

    def _left(self, name: WorkerId, error: BaseException | None) -> None:
        reason = "stopped" if error is None else one_line(error)
        self._tell(lambda d: d.worker_left(name, reason, drained=error is None))


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
    """Silence errors that Dask's client logs when it closes while it looks for a lost scheduler."""

    def keep(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR

    client_log = logging.getLogger("distributed.client")
    client_log.addFilter(keep)
    try:
        yield
    finally:
        client_log.removeFilter(keep)
