"""The bound on connections without a proved key: a real ROUTER, and strangers' sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

import pytest

from farm.transports.zmq import admission as module
from farm.transports.zmq.admission import Valve
from farm.wire.messages import Kind
from tests.support.coroutines import on_loop, until
from tests.transports.peers import Farm

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""What a ZeroMQ program with encryption sends first (ZMTP 3.1)."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the filter")


def valve_of(farm: Farm) -> Valve:
    """Return the valve of the ROUTER for clients."""
    return farm.router._routers[0]._valve


def stranger(farm: Farm, data: bytes = GREETING) -> socket.socket:
    """Return a socket that connects to the clients' address, and sends."""
    host, _, port = farm.for_clients.endpoint.removeprefix("tcp://").rpartition(":")
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex((host, int(port)))
    with contextlib.suppress(OSError):  # it is not connected
        made.send(data)
    return made


def is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


@on_loop
async def test_strangers_beyond_the_bound_are_not_connected_and_others_come_in_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_UNPROVED", 20)
    monkeypatch.setattr(module, "HANDSHAKE_S", 1)
    async with Farm.up() as farm:
        valve = valve_of(farm)
        known = farm.peer("client:known")
        known.say(Kind.PROBE)
        await known.hear(Kind.WELCOME)
        await until(lambda: valve.unproved == 0)  # who has proved its key does not count
        with contextlib.ExitStack() as strangers:
            while not valve.shut:
                strangers.enter_context(stranger(farm))
                await asyncio.sleep(0.001)
            late = [strangers.enter_context(stranger(farm)) for _ in range(50)]
            assert not any(map(is_connected, late))
            known.say(Kind.PROBE)
            await known.hear(Kind.WELCOME)
            client = farm.peer("client:new")
            client.say(Kind.PROBE)
            await client.hear(Kind.WELCOME)  # once the strangers' time is over
        await until(lambda: not valve.shut and valve.unproved == 0)


@on_loop
async def test_every_end_of_a_stranger_is_counted() -> None:
    async with Farm.up() as farm:
        valve = valve_of(farm)
        read = GREETING + b"\x04\x05\x04READ"
        for data in (GREETING, b"GET / HTTP/1.1\r\n\r\n", read, b"\xff", b"\x01\x00"):
            stranger(farm, data).close()
        with stranger(farm):
            await until(lambda: valve.unproved == 1)
        await until(lambda: valve.unproved == 0)


@on_loop
async def test_a_connection_that_sends_nothing_does_not_reach_the_process() -> None:
    async with Farm.up() as farm:
        with stranger(farm, b"") as silent, stranger(farm):
            await until(lambda: valve_of(farm).unproved == 1)
            assert is_connected(silent)
