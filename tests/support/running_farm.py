"""A farm without protocols: a dispatcher and its transport, on a loop in its own thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Call, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.first_worker import Expectation
from farm.provision.local.starter import WorkerSettings
from farm.provision.local.supervisor import Workers
from farm.scheduler.state import WorkerId
from farm.transports.connection import WORKERS_FILE, Connection, write_connection
from farm.transports.keys import Keys
from farm.transports.peers import Listener, Peers
from farm.transports.stream.listener import UnixListener
from farm.transports.zmq.listener import ZmqListener
from tests.support import coroutines
from tests.support.time_limits import scaled

LIMIT_S = scaled(20.0)
"""Limit for events that take a second or two on an idle machine."""


def wait_until(condition: Callable[[], Any], what: str) -> None:
    coroutines.wait_until(condition, LIMIT_S, what=what, every_s=0.01)


class Farm:
    """A running dispatcher; `connect` is its connection file.

    wire: the transport, `stream` or `zmq`; by default the one of the class.
    """

    wire = "stream"

    def __init__(
        self, folder: Path, *, heartbeat_s: float = 5.0, keys: Keys | None = None, wire: str = ""
    ) -> None:
        self.connect = folder / "farm.json"
        self.wire = wire or self.wire
        self._heartbeat_s = heartbeat_s
        self._keys = keys
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._on_loop(self._start())
        self._write()

    async def _start(self) -> None:
        listener: Listener
        if self.wire == "zmq":
            zmq = ZmqListener(heartbeat_s=self._heartbeat_s, keys=self._keys)
            self._files, listener = (zmq.for_clients, zmq.for_workers), zmq
        else:
            listener = unix = UnixListener(self.connect.parent)
            there = Connection("", local=str(unix.place.path), host=socket.gethostname())
            self._files = there, there
        self._transport = Peers(listener)
        self.dispatcher = Dispatcher([self._transport])
        self.dispatcher.start()

    def _on_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(LIMIT_S)

    def submit(self, model: str, x: float) -> Future[Result]:
        call = Call(model, Operation.EVALUATE, (np.array([x], dtype=float),))
        return asyncio.run_coroutine_threadsafe(self.dispatcher.submit(call), self._loop)

    def submit_rows(self, model: str, values: Sequence[float]) -> Future[Result]:
        """Submit one call of `rows` rows."""
        x = np.array(values, dtype=float).reshape(-1, 1)
        call = Call(model, Operation.EVALUATE, (x,), rows=len(x))
        return asyncio.run_coroutine_threadsafe(self.dispatcher.submit(call), self._loop)

    def call(self, model: str, x: float) -> float:
        return float(self.submit(model, x).result(LIMIT_S).outputs[0][0])

    def wait_for_workers(self, count: int) -> list[str]:
        """Return the names of the workers, once there are `count`."""
        wait_until(lambda: len(self.snapshot()["workers"]) == count, f"{count} workers")
        return [row["name"] for row in self.snapshot()["workers"]]

    def snapshot(self) -> dict[str, Any]:
        async def snapshot() -> dict[str, Any]:
            return self.dispatcher.snapshot()

        found: dict[str, Any] = self._on_loop(snapshot())
        return found

    def losses(self) -> list[str]:
        """Return why workers were lost, in the dispatcher's words."""
        return [e["text"] for e in self.snapshot()["events"] if e["event"] == "lost"]

    def restart(self, worker: str) -> bool:
        """Restart a worker by the supervisor that it names."""

        async def restart() -> bool:
            info = self.dispatcher._workers[WorkerId(worker)]
            return self._transport.restart(worker, info.labels["supervisor"])

        return bool(self._on_loop(restart()))

    def answered_elsewhere(self, worker: str) -> None:
        """Tell a worker that the answer to its only call is not needed any more."""

        async def tell() -> None:
            (task,) = self.dispatcher.view.sent()
            self._transport.end_stream(WorkerId(worker), task)

        self._on_loop(tell())

    def expect(self, model: str) -> None:
        """Accept calls of a model whose workers will join."""

        async def expect() -> None:
            self.dispatcher.expect([ModelInfo(model, (), ())])

        self._on_loop(expect())

    def expect_later(self, model: str, why: str, *, asked: int) -> None:
        """Give a reason why a model is not known yet; know it when asked for the nth time."""
        dispatcher, times = self.dispatcher, 0

        class Later(Expectation):
            incomplete = True

            def awaited(self, known: Collection[str]) -> str:
                nonlocal times
                times += 1
                self.incomplete = times < asked
                if times == asked:
                    dispatcher.expect([ModelInfo(model, (), ())])
                return why

        dispatcher.first_worker.expected = Later()

    def stop_workers(self) -> None:
        self._loop.call_soon_threadsafe(self._transport.stop_workers)

    def vanish(self) -> None:
        """Remove the dispatcher without a goodbye, as when its machine loses power."""
        self._on_loop(self._transport.close())

    def come_back(self) -> None:
        """Start another dispatcher in its place, over ZeroMQ at another address."""
        self._on_loop(self._start())
        self._write()

    def _write(self) -> None:
        for_clients, for_workers = self._files
        write_connection(self.connect.with_name(WORKERS_FILE), for_workers)
        write_connection(self.connect, for_clients)

    def close(self) -> None:
        self._on_loop(self.dispatcher.close(grace_s=0.0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()


@contextmanager
def workers_at(farm: Farm, settings: WorkerSettings) -> Iterator[Workers]:
    """Run worker processes under a supervisor for the block, which begins when all have joined."""
    workers = Workers(settings)
    workers.start()
    try:
        workers.ready.result(3 * LIMIT_S)
        farm.wait_for_workers(settings.count)
        yield workers
    finally:
        workers.stop(0.0)
