"""Deferred work: a few steps per turn of the loop, in order, with other work in between."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import h2.config
import h2.connection
import pytest
import uvloop

from farm.grpc.http2.connection import Http2Connection
from farm.http1.access import Access
from farm.http1.request import Answer, Request
from farm.http1.server import HttpServer
from farm.http1.turns import A_TURN, LONG_PORTION_BYTES, PORTION_BYTES, Portions, Turns
from farm.protocols.interface import Endpoints
from farm.server.doors import Router
from tests.support.bare_server import path_told
from tests.support.coroutines import LIMIT_S, LoopTurns, on_uvloop
from tests.support.grpc_server import Methods, served
from tests.support.mip_farm import Double, mip_served


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("a_turn", [1, A_TURN])
def test_a_turn_takes_a_few_steps_and_lets_others_in(factory: type, a_turn: int) -> None:
    async def count() -> list[int]:
        turns, done, seen = Turns(asyncio.get_running_loop(), a_turn), list[int](), list[int]()
        for number in range(3 * a_turn + 1):
            turns.later(lambda number=number: done.append(number))  # type: ignore[misc]  # bound early
        assert done == []  # not at once
        while len(done) <= 3 * a_turn:
            await asyncio.sleep(0)
            seen.append(len(done))
        assert done == list(range(3 * a_turn + 1))
        return seen

    with asyncio.Runner(loop_factory=factory) as runner:
        seen = runner.run(count())
    steps = [b - a for a, b in zip([0, *seen], seen, strict=False)]
    assert max(steps) == a_turn
    assert sum(1 for step in steps if step) == 4


def test_a_step_may_ask_for_another_one() -> None:
    async def run() -> int:
        turns, count = Turns(asyncio.get_running_loop()), 0

        def step() -> None:
            nonlocal count
            count += 1
            if count < 10:
                turns.later(step)

        turns.later(step)
        for _ in range(20):
            await asyncio.sleep(0)
        return count

    assert asyncio.run(run()) == 10


def test_a_step_that_fails_stops_no_other() -> None:
    async def run() -> list[str]:
        loop, done = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _, context: done.append(str(context["exception"])))
        turns = Turns(loop)

        def fail() -> None:
            raise ValueError("no")

        turns.later(fail)
        turns.later(lambda: done.append("yes"))
        for _ in range(5):
            await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["no", "yes"]


def test_who_waits_has_a_turn_of_its_own() -> None:
    async def run() -> list[int]:
        of_loop, had = LoopTurns(), list[int]()
        turns = Turns(asyncio.get_running_loop(), 1)

        async def waits() -> None:
            await turns.wait()
            had.append(of_loop.number)

        of_loop.count()
        tasks = [asyncio.create_task(waits()) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[1].cancel()  # its turn is skipped
        await asyncio.gather(*tasks, return_exceptions=True)
        return had

    had = asyncio.run(run())
    assert len(had) == len(set(had)) == 4


CLIENTS = 8
MUCH = 6 << 20

Address = tuple[str, int]


def length(request: Request, answer: Answer) -> None:
    assert not isinstance(request.body, bytes)
    answer(200, b"%d bytes" % request.body.size)


@asynccontextmanager
async def http() -> AsyncIterator[Address]:
    server = HttpServer(Router(Endpoints({"/length": length}, otherwise=path_told), Access(None)))
    yield await server.start()
    await server.stop(0.0)


@asynccontextmanager
async def mip() -> AsyncIterator[Address]:
    async with mip_served(Double(), max_bytes=MUCH) as served:
        yield served.server.address.host, served.server.address.port


@asynccontextmanager
async def grpc() -> AsyncIterator[Address]:
    async with served(Methods()) as (_, _, port):
        yield "127.0.0.1", port


def in_http() -> bytes:
    return b"POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % MUCH + bytes(MUCH)


def in_mip() -> bytes:
    return struct.pack("!4BL", 0, 2, 0, 0, MUCH) + bytes(MUCH)


def in_grpc() -> bytes:
    """As many bytes as a client may send before the server's first acknowledgement."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    sent = client.data_to_send()
    server = Http2Connection()
    for _ in server.receive(sent, 1000):
        pass
    client.receive_data(b"".join(server.take()))
    head = [(":method", "POST"), (":scheme", "http"), (":path", "/x/Echo"), (":authority", "a")]
    client.send_headers(1, [*head, ("content-type", "application/grpc")])
    body = b"\0" + (60_000).to_bytes(4, "big") + bytes(60_000)
    for at in range(0, len(body), 16_000):
        client.send_data(1, body[at : at + 16_000], end_stream=at + 16_000 >= len(body))
    return sent + client.data_to_send()


@pytest.mark.parametrize(
    ("served", "sent", "answered"),
    [(http, in_http, b"%d bytes" % MUCH), (mip, in_mip, b""), (grpc, in_grpc, bytes(10_000))],
)
def test_each_connection_is_read_once_in_a_turn_and_few_are_for_long(
    served: Callable[[], AbstractAsyncContextManager[Address]],
    sent: Callable[[], bytes],
    answered: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[tuple[int, Portions, int]] = []
    turns, data = LoopTurns(), sent()
    updated = Portions.buffer_updated

    def noted(portions: Portions, nbytes: int) -> None:
        read.append((turns.number, portions, nbytes))
        updated(portions, nbytes)

    async def ask(address: Address) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(data)
        answer = b""
        while not answer or answered not in answer:
            answer += await reader.read(1 << 20)
        writer.close()
        return answer

    @on_uvloop
    async def run() -> None:
        async with served() as address:
            monkeypatch.setattr(Portions, "buffer_updated", noted)
            turns.count()
            asked: list[Awaitable[bytes]] = [ask(address) for _ in range(CLIENTS)]
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(*asked)

    run()
    assert sum(nbytes for _, _, nbytes in read) == CLIENTS * len(data)
    times = Counter((turn, portions) for turn, portions, nbytes in read if nbytes >= PORTION_BYTES)
    assert max(times.values()) <= 1
    long = Counter(turn for turn, _, nbytes in read if nbytes > PORTION_BYTES)
    assert max(long.values(), default=0) <= A_TURN
    assert max(nbytes for _, _, nbytes in read) <= LONG_PORTION_BYTES
    if len(data) > MUCH:
        assert long
