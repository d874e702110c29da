"""Who is admitted to the ZeroMQ sockets, and how handshakes are answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading

import pytest
import zmq

from farm.transports.zmq import admission as module
from farm.transports.zmq import listener
from farm.transports.zmq.admission import Valve, answer
from farm.wire.messages import Kind
from tests.support.coroutines import LIMIT_S, until
from tests.support.scripted_peers import Farm

KEY, OTHER = bytes(range(32)), bytes(32)


def question(
    *, domain: bytes = b"workers", mechanism: bytes = b"CURVE", key: bytes = KEY
) -> list[bytes]:
    """A question of libzmq, with the frames of ZMQ RFC 27."""
    return [b"1.0", b"7", domain, b"127.0.0.1", b"me", mechanism, key]


def status(frames: list[bytes]) -> bytes:
    version, request, code, _, user, metadata = answer(frames, {"workers": KEY, "clients": OTHER})
    assert (version, request, user, metadata) == (b"1.0", b"7", b"", b"")
    return code


def test_the_key_of_the_domain_is_admitted_alone() -> None:
    assert status(question()) == b"200"
    assert status(question(key=OTHER)) == b"400"
    assert status(question(domain=b"clients", key=OTHER)) == b"200"
    assert status(question(domain=b"clients")) == b"400"


@pytest.mark.parametrize(
    "frames",
    [
        question(domain=b""),
        question(domain=b"\xff\xfe"),
        question(domain=b"elsewhere"),
        question(mechanism=b"NULL"),
        question(mechanism=b"PLAIN"),
        question(key=b""),
        question(key=KEY[:-1]),
        question()[:-1],
        [*question(), b"more"],
        [b"2.0", *question()[1:]],
    ],
)
def test_everything_else_is_refused(frames: list[bytes]) -> None:
    assert status(frames) == b"400"


async def test_a_storm_of_joins_is_answered_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread for it would starve beside a busy loop: handshakes time out and begin again."""
    monkeypatch.setattr(module, "ANSWERS_PER_TURN", 3)  # more come than one turn answers
    before = set(threading.enumerate())
    async with Farm.up() as farm:
        assert set(threading.enumerate()) <= before
        for number in range(40):
            farm.peer(f"node{number}/1-a").join()
        await until(lambda: len(farm.workers()) == 40, LIMIT_S)


async def test_what_one_turn_leaves_is_taken_though_nothing_more_arrives() -> None:
    taken: list[bytes] = []

    class Reader(module._Read):
        def _take(self, frames: list[bytes], now: float) -> None:
            taken.extend(frames)

    with (
        zmq.Context() as context,
        context.socket(zmq.PULL) as pull,
        context.socket(zmq.PUSH) as push,
    ):
        pull.bind("inproc://questions")
        push.connect("inproc://questions")
        for number in range(100):
            push.send(b"%d" % number)
        reader = Reader(pull, 3)
        reader.start()
        await until(lambda: len(taken) == 100, LIMIT_S)
        reader.close()
    assert taken == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 1), (8, 2), (16, 4), (64, 4)])
def test_connections_are_spread_over_threads_where_there_are_processors(
    monkeypatch: pytest.MonkeyPatch, processors: int, threads: int
) -> None:
    monkeypatch.setattr(listener, "allowed_cpus", lambda: processors)
    assert listener.io_threads() == threads
    with zmq.Context(listener.io_threads()) as context:
        assert context.get(zmq.IO_THREADS) == threads


# The valve


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""What a ZeroMQ program with encryption sends first (ZMTP 3.1)."""

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the filter")


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


@LINUX
async def test_strangers_beyond_the_bound_are_not_connected_and_others_come_in_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_UNPROVED", 20)
    monkeypatch.setattr(module, "HANDSHAKE_S", 3)
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


@LINUX
async def test_every_end_of_a_stranger_is_counted() -> None:
    async with Farm.up() as farm:
        valve = valve_of(farm)
        read = GREETING + b"\x04\x05\x04READ"
        for data in (GREETING, b"GET / HTTP/1.1\r\n\r\n", read, b"\xff", b"\x01\x00"):
            stranger(farm, data).close()
        with stranger(farm):
            await until(lambda: valve.unproved == 1)
        await until(lambda: valve.unproved == 0)


@LINUX
async def test_a_connection_that_sends_nothing_does_not_reach_the_process() -> None:
    async with Farm.up() as farm:
        with stranger(farm, b"") as silent, stranger(farm):
            await until(lambda: valve_of(farm).unproved == 1)
            assert is_connected(silent)
