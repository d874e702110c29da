"""Ends of the wire that a test scripts: a peer that connects, and a dispatcher to connect to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any, Self

import numpy as np
import zmq

from farm.call import Buffer, Call, ModelInfo, Operation, Result, TensorInfo, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.scheduler.state import WorkerId
from farm.transports.connection import Connection
from farm.transports.dial import Dialer
from farm.transports.identity import worker_identity
from farm.transports.keys import new_keys
from farm.transports.peers import Listener, Peers
from farm.transports.stream.address import ListeningSocket
from farm.transports.stream.line import StreamLine
from farm.transports.stream.listener import UnixListener
from farm.transports.zmq.line import DealerLine
from farm.transports.zmq.listener import ZmqListener
from farm.wire import messages as wire
from farm.wire.messages import Kind, Loss, Message, Outcome
from farm.wire.usage import SPLITS_RUNS
from farm.worker.host.host import WorkerProcess
from tests.support import host_process
from tests.support.coroutines import LIMIT_S, until

CUBE = ModelInfo("cube", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),))
ONCE = ModelInfo("once", CUBE.inputs, CUBE.outputs, repeatable=False)


class Kept(WorkerProcess):
    """A worker's `WorkerProcess` that notes what runs, and whether it was asked to leave."""

    def __init__(self, start_s: float | None = None) -> None:
        self.start_s = start_s
        self.noted: list[list[int]] = []
        self.left: list[bool] = []

    def runs(self, tasks: Sequence[int], row: int = 0, /) -> None:
        self.noted.append(list(tasks))

    def leave(self, *, drains: bool) -> None:
        self.left.append(drains)


def identity_of(name: str) -> str:
    """Return the identity of a peer of this name: workers add a secret."""
    return name if name.startswith(("client:", "supervisor:")) else worker_identity(name)


class Peer:
    """A worker, supervisor or client at the dispatcher that sends what the test wants."""

    def __init__(self, connection: Connection, name: str, *, identity: str = "") -> None:
        self.name = name
        self.identity = identity or identity_of(name)
        self.line = Dialer(connection, self.identity).dial()
        self.heard: list[Message] = []

    def say(self, kind: Kind, data: object = None) -> None:
        self.send(wire.encode(kind, data))

    def send(self, frames: list[Buffer]) -> None:
        self.line.send(frames)
        if not self.line.flush(0.0) and not self.line.ended():
            asyncio.get_running_loop().add_writer(self.line.fileno(), self._flush)

    def _flush(self) -> None:
        descriptor = self.line.fileno()
        if self.line.flush(0.0) or self.line.ended():
            asyncio.get_running_loop().remove_writer(descriptor)

    def join(self, *models: ModelInfo, life: str = "a", slots: int = 1) -> None:
        labels = {SPLITS_RUNS: "yes"}
        info = WorkerInfo(self.name, models or (CUBE,), slots, labels=labels)
        self.send(wire.encode_join(life, info))

    def answer(self, *answers: tuple[int, Outcome]) -> None:
        self.send(wire.encode_answers(answers))

    def tell(self, loss: Loss) -> None:
        """Say as a supervisor that a worker was lost."""
        self.send(wire.encode_loss(loss))

    def settle(self, task_id: int, y: float = 8.0, run_time_s: float = 0.001) -> None:
        """Answer this call with one number."""
        self.answer((task_id, Result((np.array([y]),), run_time_s)))

    async def hear(self, *kinds: Kind) -> Message:
        """Return the next message of these kinds; skip probes, fail on others."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                frames = self.line.receive()
                if frames is None:
                    assert not self.line.ended()
                    await asyncio.sleep(0.001)
                    continue
                message = wire.decode(frames)
                if message.kind in kinds:
                    return message
                assert message.kind in (Kind.PROBE, Kind.CHECK), message

    async def hear_calls(self) -> list[tuple[int, Call]]:
        """Return the calls of the next message."""
        _, calls = wire.decode_calls(await self.hear(Kind.CALLS))
        return [(task_id, call) for task_id, call in calls if isinstance(call, Call)]

    async def hear_call(self) -> int:
        """Return the id of the next call, the only one of its message."""
        ((task_id, _),) = await self.hear_calls()
        return task_id

    async def answer_next(self, y: float = 8.0) -> int:
        """Answer the next call; return its id."""
        task_id = await self.hear_call()
        self.settle(task_id, y)
        return task_id

    async def hear_answers(self) -> list[tuple[int, Outcome]]:
        return wire.decode_answers(await self.hear(Kind.ANSWERS))

    async def joined(self) -> Self:
        self.join()
        await self.hear(Kind.WELCOME)
        return self

    def close(self) -> None:
        if isinstance(self.line, DealerLine) and not self.line._socket.closed:
            self.line._socket.set(zmq.LINGER, 0)
        self.line.close()


class Farm:
    """A dispatcher with one listener, and peers and processes that are closed at the end.

    folder: where the local stream listens; None: ZeroMQ.
    """

    folder: Path | None = None

    def __init__(self, *, retries: int = 3, max_queued: int = 1000, **options: Any) -> None:
        self.listener: Listener
        if self.folder is None:
            self.listener = ZmqListener(**options)
            self.for_clients = self.listener.for_clients
            self.for_workers = self.listener.for_workers
        else:
            self.listener = UnixListener(self.folder)
            path = str(self.listener.place.path)
            self.for_clients = Connection("", local=path, host=socket.gethostname())
            self.for_workers = self.for_clients
        self.transport = Peers(self.listener)
        self.dispatcher = Dispatcher([self.transport], retries=retries, max_queued=max_queued)
        self.peers: list[Peer] = []
        self.processes: list[Popen[bytes]] = []

    def peer(self, name: str, *, identity: str = "") -> Peer:
        is_client = name.startswith("client:")
        connection = self.for_clients if is_client else self.for_workers
        self.peers.append(Peer(connection, name, identity=identity))
        return self.peers[-1]

    def put(self, peer: Peer, kind: Kind) -> bool:
        """Send to a peer past the transport; False if it is gone."""
        if isinstance(self.listener, UnixListener):
            return peer.identity.encode() in {line.name for line in self.listener._lines}
        clients, workers = self.router._routers
        router = clients if peer.name.startswith("client:") else workers
        return router.put(peer.identity.encode(), wire.encode(kind))

    async def worker(self, name: str = "node1/1-a", *models: ModelInfo, slots: int = 1) -> Peer:
        peer = self.peer(name)
        peer.join(*models, slots=slots)
        await peer.hear(Kind.WELCOME)
        return peer

    async def process(self, name: str = "node1/1-a", **options: Any) -> Popen[bytes]:
        process = host_process.start(self.for_workers, name, **options)
        self.processes.append(process)
        await until(lambda: name in self.workers())
        return process

    def give_up(self, name: str) -> None:
        """Lose a worker with its connection; what it runs counts no attempt, as it drained."""
        worker = self.transport._workers[WorkerId(name)]
        worker.resized(0)
        worker.line.close()
        self.transport._patient_until = 0.0  # on a busy machine this process may have been away
        self.transport._give_up(worker)

    def submit(
        self, x: float = 2.0, model: str = "cube", config: str = "{}"
    ) -> asyncio.Task[Result]:
        call = Call(model, Operation.EVALUATE, (np.array([x]),), config)
        return asyncio.create_task(self.dispatcher.submit(call))

    async def sent_to(
        self, worker: Peer, x: float = 2.0, model: str = "cube"
    ) -> tuple[asyncio.Task[Result], int]:
        """Submit a call that this worker gets; return the call and its id."""
        waiting = self.submit(x, model)
        return waiting, await worker.hear_call()

    async def served_by(self, worker: Peer, y: float = 8.0) -> Result:
        """Submit a call that this worker gets, let it answer, and return the result."""
        waiting = self.submit()
        await worker.answer_next(y)
        return await waiting

    def workers(self) -> list[str]:
        return [row["name"] for row in self.dispatcher.snapshot()["workers"]]

    def events(self, *kinds: str) -> list[str]:
        """Messages logged when workers joined or left."""
        events = self.dispatcher.snapshot()["events"]
        return [e["text"] for e in events if e["event"] in (kinds or ("lost",))]

    @property
    def router(self) -> ZmqListener:
        assert isinstance(self.listener, ZmqListener)
        return self.listener

    def slots(self) -> list[int]:
        """The slots that each worker offers."""
        return [row["slots"] for row in self.dispatcher.snapshot()["workers"]]

    def queued(self) -> int:
        return sum(row["queued"] for row in self.dispatcher.snapshot()["queues"])

    @classmethod
    @asynccontextmanager
    async def up(cls, **options: Any) -> AsyncIterator[Self]:
        """Run one until the end of the block."""
        farm = cls(**options)
        farm.dispatcher.start()
        try:
            yield farm
        finally:
            for process in farm.processes:
                process.kill()
                process.wait()
            for peer in farm.peers:
                peer.close()
            await farm.dispatcher.close(grace_s=0.0)


def a_router(
    context: zmq.Context[zmq.Socket[bytes]],
) -> tuple[zmq.Socket[bytes], Connection]:
    """A ROUTER on loopback, and its address and key; it accepts every holder of the key."""
    keys = new_keys()
    router = context.socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_publickey = keys.server.public.encode()
    router.curve_secretkey = keys.server.secret.encode()
    port = router.bind_to_random_port("tcp://127.0.0.1")
    connection = Connection(
        f"tcp://127.0.0.1:{port}",
        server_key=keys.server.public,
        client_public=keys.clients.public,
        client_secret=keys.clients.secret,
    )
    return router, connection


class Desk:
    """A dispatcher's end, for one worker or supervisor at a time; blocking.

    It passes over what a worker reports of its use, unless `hear_use` waits for that.
    folder: where the local stream listens; None: a ROUTER.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._at: _Router | _Reception = _Router() if folder is None else _Reception(folder)
        self.connection = self._at.connection
        self.peer = b""
        self._kept: list[tuple[bytes, Message]] = []

    def _next(self, timeout_s: float) -> tuple[bytes, Message] | None:
        return self._kept.pop(0) if self._kept else self._from_line(timeout_s)

    def _from_line(self, timeout_s: float) -> tuple[bytes, Message] | None:
        end = time.monotonic() + timeout_s
        while (heard := self._at.hear(max(0.0, end - time.monotonic()))) is not None:
            message = wire.decode(heard[1])
            if message.kind is not Kind.PROBE or message.data is None:
                return heard[0], message
        return None

    def hear_use(self) -> object:
        """Return the next report of what a worker uses."""
        while True:
            heard = self._at.hear(LIMIT_S)
            assert heard is not None
            message = wire.decode(heard[1])
            if message.kind is Kind.PROBE and message.data is not None:
                return message.data

    def hear(self, *kinds: Kind, limit_s: float = LIMIT_S, skip: bool = False) -> Message:
        """Return the next message, which must be of one of these kinds unless `skip`."""
        end = time.monotonic() + limit_s
        while True:
            heard = self._next(max(0.0, end - time.monotonic()))
            if heard is None:
                raise TimeoutError(f"nothing of {kinds} within {limit_s} s")
            self.peer, message = heard
            if message.kind in kinds:
                return message
            assert skip or message.kind is Kind.PROBE, message

    def silent(self, for_s: float = 0.05) -> bool:
        """Whether no message arrives in that time."""
        heard = self._next(for_s)
        if heard is not None:
            self._kept.insert(0, heard)
        return heard is None

    def say(self, kind: Kind, data: object = None) -> None:
        self.send(wire.encode(kind, data))

    def send(self, frames: list[Buffer]) -> None:
        self._at.say(self.peer, frames)

    def welcome(self) -> str:
        """Let a worker join; return its life."""
        life, _ = wire.decode_join(self.hear(Kind.JOIN))
        self.say(Kind.WELCOME, life)
        return life

    def call(self, *calls: tuple[int, Call]) -> None:
        self.send(wire.encode_calls(calls))

    def answers(self, *, skip: bool = False) -> dict[int, Outcome]:
        """Return the answers of the next message."""
        return dict(wire.decode_answers(self.hear(Kind.ANSWERS, skip=skip)))

    def close(self) -> None:
        self._at.close()


class _Router:
    """A Desk's messages over ZeroMQ."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router, self.connection = a_router(self._context)

    def hear(self, timeout_s: float) -> tuple[bytes, Sequence[Buffer]] | None:
        if not self._router.poll(int(1000 * timeout_s)):
            return None
        peer, *frames = self._router.recv_multipart()
        return peer, frames

    def say(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        self._router.send_multipart([peer, *frames])

    def close(self) -> None:
        self._context.destroy(linger=0)


class _Reception:
    """A Desk's messages over the local stream."""

    def __init__(self, folder: Path) -> None:
        self._place = ListeningSocket(folder)
        self.connection = Connection("", local=str(self._place.path), host=socket.gethostname())
        self._lines: dict[bytes, StreamLine] = {}
        self._heard: list[tuple[bytes, Sequence[Buffer]]] = []

    def hear(self, timeout_s: float) -> tuple[bytes, Sequence[Buffer]] | None:
        end = time.monotonic() + timeout_s
        while not self._listen():
            if time.monotonic() > end:
                return None
            time.sleep(0.001)
        return self._heard.pop(0)

    def _listen(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            line = StreamLine(self._place.socket.accept()[0])
            while (frames := line.receive()) is None:
                time.sleep(0.001)
            name = bytes(frames[0])
            if name in self._lines:  # the peer has dialed again
                self._lines.pop(name).close()
            self._lines[name] = line
        for name, line in list(self._lines.items()):
            while (frames := line.receive()) is not None:
                self._heard.append((name, frames))
            if line.ended():
                del self._lines[name]
                line.close()
        return bool(self._heard)

    def say(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        line = self._lines[peer]
        line.send(frames)
        line.flush(LIMIT_S)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._place.close()


def value(outcome: Outcome | None) -> float:
    """Return the one number in a call's result."""
    assert isinstance(outcome, Result), outcome
    return float(outcome.outputs[0][0])
