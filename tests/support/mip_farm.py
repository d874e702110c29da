"""Models served over MIP in this process, and a client that sends raw bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import farm
from farm.dispatcher.dispatcher import Dispatcher
from farm.http1.access import Access
from farm.model import Model
from farm.protocols.mip.address import MipAddress
from farm.protocols.mip.calls import COUNTS, TYPE_AND_SIZE, Type
from farm.protocols.mip.packets import HEAD
from farm.protocols.mip.service import MipServer, MipTimeouts
from farm.transports.threads import LocalTransport
from tests.support.coroutines import LIMIT_S

QUICK = MipTimeouts(head_s=0.2, body_s=0.2, idle_s=0.2, drain_s=0.5, look_every_s=0.02)
PING = bytes.fromhex("0001000000000000")
PONG = bytes.fromhex("0001010000000000")


class Double(Model):
    """Twice its input; a negative one fails, and zero waits until `go`."""

    name = "double"
    inputs = {"x": 1}
    outputs = {"y": 1}

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = threading.Event()
        self.ran = 0

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        x = float(inputs["x"][0])
        self.ran += 1
        if x == 0:
            self.running.set()
            assert self.go.wait(LIMIT_S)
        if x < 0:
            raise ValueError(f"no root of {x}")
        return {"y": [2 * x]}


def request(*entries: str, kind: int = Type.JSON) -> bytes:
    """The packet of an inference with one input."""
    values = [TYPE_AND_SIZE.pack(kind, len(e.encode())) + e.encode() for e in entries]
    payload = COUNTS.pack(1, 0, len(entries)) + b"".join(values)
    return HEAD.pack(0, 2, 0, 0, len(payload)) + payload


def doubled(*entries: float) -> bytes:
    """The packet that `Double` answers."""
    texts = [f"[{2.0 * x}]".encode() for x in entries]
    values = [TYPE_AND_SIZE.pack(Type.JSON, len(text)) + text for text in texts]
    payload = COUNTS.pack(1, 1, len(entries)) + b"".join(values)
    return HEAD.pack(0, 2, 1, 0, len(payload)) + payload


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))

    async def packet(self) -> bytes:
        """Return the next packet."""
        async with asyncio.timeout(LIMIT_S):
            head = await self.reader.readexactly(HEAD.size)
            return head + await self.reader.readexactly(HEAD.unpack(head)[4])

    async def rest(self) -> bytes:
        """Return everything received until the server closes."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.read()

    async def ask(self, packet: bytes) -> bytes:
        self.send(packet)
        return await self.packet()

    def reset(self) -> None:
        """Leave like a process whose connection is cut off."""
        linger = struct.pack("ii", 1, 0)
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


class Served:
    """A model served over MIP; `dispatcher` and `server` for inspection."""

    def __init__(self, dispatcher: Dispatcher, server: MipServer) -> None:
        self.dispatcher, self.server = dispatcher, server
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        address = self.server.address
        opening = (
            asyncio.open_unix_connection(address.path)
            if address.path
            else asyncio.open_connection(address.host, address.port)
        )
        self.clients.append(Client(*await opening))
        return self.clients[-1]

    def open_calls(self) -> int:
        """Number of calls that wait or run."""
        models = self.dispatcher.snapshot()["queues"]
        return sum(row["queued"] + row["in_flight"] for row in models)


@asynccontextmanager
async def mip_client(model: Model, **options: Any) -> AsyncIterator[tuple[Served, Client]]:
    """Serve the model as `mip_served` does, and connect a client."""
    async with mip_served(model, **options) as served:
        yield served, await served.connect()


@asynccontextmanager
async def mip_served(
    model: Model,
    *,
    served_as: str = "",
    address: MipAddress | None = None,
    workers: int = 1,
    others: Sequence[Model] = (),
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve the model at a free port, or another address, for the duration of the block."""
    models = {one.name: one for one in (model, *others)}
    dispatcher = Dispatcher([LocalTransport(models, workers=workers)])
    dispatcher.start()
    await dispatcher.wait_for_workers(workers, timeout_s=LIMIT_S)
    address = address or MipAddress(served_as or model.name, "127.0.0.1", 0)
    server = MipServer(dispatcher, address, **{"access": Access("t0ken"), **options})
    await server.start()
    served = Served(dispatcher, server)
    try:
        yield served
    finally:
        if isinstance(model, Double):
            model.go.set()
        for client in served.clients:
            client.writer.transport.abort()
        await server.stop(1.0)
        await dispatcher.close(grace_s=1.0)
