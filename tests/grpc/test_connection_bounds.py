"""Bounds on one client of the gRPC server: work per turn of the loop, time, memory."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h2.settings
import pytest

from farm.bodies.body import Body
from farm.grpc import connection as grpc_connection
from farm.grpc.call import GrpcCall
from farm.grpc.connection import ALL_STEPS, LONGEST_STEP, STEP, GrpcConnection, GrpcTimeouts
from farm.grpc.http2.connection import Http2Connection
from farm.grpc.http2.frames import ACK, ENHANCE_YOUR_CALM, HEADERS, NO_ERROR, PREFACE, frame
from farm.grpc.server import GrpcServer
from farm.http1.turns import A_TURN
from tests.support.coroutines import LIMIT_S, LoopTurns, on_uvloop, until
from tests.support.grpc_server import Client, Methods, connected, served
from tests.support.http2_bytes import GREETING, block, framed, goaway, ping, request


@contextmanager
def counted(
    cls: type, name: str, cost: Callable[[Any], int] = lambda _: 1
) -> Iterator[Counter[int]]:
    """Sum up the cost of a method's calls by the turn of the loop in which they end."""
    by_turn, turn, before = Counter[int](), LoopTurns(), getattr(cls, name)

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        result = before(self, *args, **options)
        by_turn[turn.number] += cost(self)
        return result

    turn.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, name, counting)
        yield by_turn
    turn.stop()


def newest(server: GrpcServer) -> GrpcConnection:
    connection = list(server.connections or ())[-1]
    assert isinstance(connection, GrpcConnection)
    return connection


def read_nothing(client: Client) -> None:
    """Let all answers through and do not read them, nor let the system do so for long."""
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.http2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: (1 << 31) - 1})
    client.http2.increment_flow_control_window((1 << 31) - 1 - 65_535)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads, too


# Work


async def test_many_frames_are_handled_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (_, _, connect):
        others = [await connect() for _ in range(20)]
        for other in others:
            await other.echoes()
        monkeypatch.setattr(grpc_connection, "LONGEST_STEP", STEP)
        client = await connect()
        await client.echoes()
        with counted(Http2Connection, "receive", lambda http2: int(http2.spent)) as spent:
            client.writer.write(ping() * 9_000)
            said = await client.reader.readexactly(len(ping()) * 9_000)
        assert said == ping(flags=ACK) * 9_000
        assert sum(spent.values()) >= 9_000
        assert max(spent.values()) <= 2 * STEP


async def test_the_more_connections_the_less_each_does_at_a_time() -> None:
    async with connected() as (_, server, connect):
        steps = []
        for _ in range(30):
            client = await connect()
            await client.echoes()
            steps.append(newest(server).served.step)
        assert steps[0] == LONGEST_STEP
        assert steps[-1] == STEP
        assert all(s * n <= ALL_STEPS for n, s in enumerate(steps, 1) if s > STEP)


@pytest.mark.parametrize("end", ["cancel", "expire"])
async def test_calls_that_end_together_do_so_a_few_in_each_turn(end: str) -> None:
    async with connected() as (methods, server, connect):
        client = await connect()
        for _ in range(200):
            client.ask("Hold", b"")
        await until(lambda: methods.started == 200)
        connection = newest(server)
        with counted(GrpcCall, end) as ended:
            if end == "cancel":
                client.writer.transport.abort()
            else:
                for call in list(connection._calls.values()):
                    connection.overdue(call)
            await until(lambda: methods.cancelled == 200)
    assert sum(ended.values()) == 200
    assert max(ended.values()) <= A_TURN * 10


async def test_messages_that_come_together_are_taken_a_few_in_each_turn() -> None:
    async with connected() as (methods, _, connect):
        turn, taken = LoopTurns(), Counter[int]()
        turn.count()

        async def count(requests: Any, write: Any, caller: Any) -> None:
            async for _ in requests:
                taken[turn.number] += 1
            await write(b"done")

        methods.bidirectional = {"/x/Take": count}
        client = await connect()
        body, _ = await client.answer(client.ask("Take", body=framed(b"") * 3_000))
        turn.stop()
        assert body == framed(b"done")
        assert sum(taken.values()) == 3_000
        assert max(taken.values()) <= 4


@pytest.mark.slow
async def test_an_answer_ends_although_its_client_asked_for_thousands() -> None:
    """Requests and messages that were deferred are not forgotten."""
    async with connected() as (_, _, connect):
        client = await connect()
        streams = [client.ask("Echo", b"%d" % i) for i in range(1_000)]
        for i, stream in enumerate(streams):
            body, _ = await client.answer(stream)
            assert body == framed(b"%d" % i)


# Memory


@on_uvloop  # asyncio's `writelines` does not pause its writer in Python 3.12.1 and 3.13.0
async def test_who_opens_all_windows_and_does_not_read_is_not_written_to_without_end() -> None:
    async with connected() as (methods, server, connect):
        written = 0

        async def deluge(body: Body, write: Any, caller: Any) -> None:
            nonlocal written
            while written < 300:
                await write(bytes(100_000))
                written += 1

        methods.server_streams = {"/x/Deluge": deluge}
        client = await connect()
        read_nothing(client)
        client.ask("Deluge", b"")
        await until(lambda: server.connections)
        connection = newest(server)
        await until(lambda: connection._stuck)
        other = await connect()
        for _ in range(20):
            await other.echoes()
        assert written < 200  # as much as the system buffers
        assert connection._transport.get_write_buffer_size() < 1 << 20
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        while written < 300:
            client.events.clear()
            await client.until(lambda: client.events)


# Time


def outlasts(connection: GrpcConnection, limit_s: float) -> None:
    """Let the client remain as it is for longer than it may; until then nothing happens."""
    now = asyncio.get_running_loop().time()
    connection.look(now)
    connection.look(now + limit_s - 1.0)
    assert not connection._transport.is_closing()
    connection.look(now + limit_s + 0.1)


SLOW: dict[str, tuple[bytes, Callable[[Http2Connection], bool]]] = {
    "nothing": (b"", lambda http2: True),
    "half a greeting": (PREFACE[:10], lambda http2: http2._have == 10),
    "no settings": (PREFACE, lambda http2: http2._greeted),
    "half a frame": (GREETING + request()[:20], lambda http2: http2._have == 20),
    "half a head": (
        GREETING + frame(HEADERS, 0, 1, block((":method", "POST"))),
        lambda http2: http2._block is not None,
    ),
}
"""The bytes to send, and the condition that shows that the server has read them."""


@pytest.mark.parametrize("sent", SLOW)
async def test_who_is_slow_with_a_frame_is_parted_with(sent: str) -> None:
    async with served(Methods()) as (_, server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data, has_come = SLOW[sent]
        writer.write(data)
        await until(lambda: server.connections)
        connection = newest(server)
        await until(lambda: has_come(connection.http2))
        outlasts(connection, 10.0)
        said = await asyncio.wait_for(reader.read(), LIMIT_S)
        assert goaway(0, ENHANCE_YOUR_CALM) in said
        writer.close()


async def test_who_gets_on_with_its_frames_is_not() -> None:
    async with connected() as (_, server, connect):
        client = await connect()
        await client.echoes()
        connection = newest(server)
        now = asyncio.get_running_loop().time()
        for i in range(20):
            client.writer.write(ping()[:5])  # the rest follows later
            await until(lambda: connection.http2.is_partial)
            connection.look(now + 8.0 * i)
            client.writer.write(ping()[5:])
            await client.echoes()
        await client.echoes()


async def test_a_body_that_comes_too_slowly_fails_its_call_alone() -> None:
    async with connected() as (_, server, connect):
        client = await connect()
        begun = framed(bytes(1 << 20))
        slow = [
            client.ask("Echo", end=False, body=begun[:10]),
            client.ask("EchoAll", end=False, body=begun[:10]),
        ]
        quick = client.ask("EchoAll", b"whole", end=False)
        large = client.ask("Echo", end=False, body=begun[:10])
        await client.echoes()
        connection = newest(server)
        now = asyncio.get_running_loop().time()
        connection.look(now + 31.0)
        for stream in slow:
            client.http2.send_data(stream, begun[10:20])
        client.http2.send_data(large, bytes(16_384))
        for _ in range(3):
            client.http2.send_data(large, bytes(16_384))
        client.send()
        await client.echoes()
        connection.look(now + 62.0)
        for stream in slow:
            _, headers = await client.answer(stream)
            assert headers["grpc-status"] == "4"
            assert headers["grpc-message"] == "the request came too slowly"
        client.http2.end_stream(quick)
        client.send()
        body, _ = await client.answer(quick)
        assert body == framed(b"whole")
        assert large in connection._calls


@pytest.mark.parametrize(("closes", "limit_s"), [(False, 7.0), (True, 5.0)])
async def test_who_does_not_read_is_cut_off(closes: bool, limit_s: float) -> None:
    async with connected(timeouts=GrpcTimeouts(stuck=7.0)) as (_, server, connect):
        client = await connect()
        read_nothing(client)
        client.ask("Flood", b"")
        await until(lambda: server.connections)
        connection = newest(server)
        await until(lambda: connection._stuck)
        if closes:
            connection.turn_away("too many connections")
        now = asyncio.get_running_loop().time()
        connection.look(now)
        connection.look(now + limit_s - 1.0)
        assert connection._transport.get_write_buffer_size() > 0
        connection.look(now + limit_s + 0.1)
        assert connection._transport.get_write_buffer_size() == 0
        await until(lambda: not server.connections)


async def test_an_idle_client_is_let_go_and_one_that_waits_for_an_answer_is_not() -> None:
    async with connected(timeouts=GrpcTimeouts(idle=100.0)) as (methods, server, connect):
        client = await connect()
        stream = client.ask("Hold", b"abc")
        await until(lambda: methods.started == 1)
        connection = newest(server)
        now = asyncio.get_running_loop().time()
        connection.look(now)
        connection.look(now + 10_000.0)
        methods.held.set()
        body, _ = await client.answer(stream)
        assert body == framed(b"abc")
        outlasts(connection, 100.0)
        assert goaway(1, NO_ERROR) in await client.read_to_the_end()


async def test_who_does_not_let_an_answer_through_is_let_go() -> None:
    async with connected(timeouts=GrpcTimeouts(idle=100.0)) as (_, server, connect):
        client = await connect()
        client.http2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        client.ask("Echo", b"abc")
        await client.until(lambda: any("ResponseReceived" in repr(e) for e in client.events))
        outlasts(newest(server), 100.0)
        assert goaway(1, NO_ERROR) in await client.read_to_the_end()
