"""One gRPC connection, frame by frame: frames that no grpcio client would send."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import h2.errors
import pytest

from farm.grpc import server as grpc
from farm.grpc.connection import GrpcConnection
from farm.grpc.http2.frames import NO_ERROR, PREFACE, PROTOCOL_ERROR, literal
from tests.support.coroutines import LIMIT_S, until
from tests.support.garbage import garbage
from tests.support.grpc_server import Methods, connected, served
from tests.support.http2_bytes import framed, goaway, request


async def test_calls_with_the_headers_of_the_one_before_share_what_these_mean() -> None:
    async with connected() as (methods, _, connect):
        methods.unary = dict.fromkeys(("/x/Echo", "/x/Other"), methods.echo)
        client = await connect()
        asked: list[tuple[str, dict[str, Any]]] = [("Echo", {})] * 2
        asked += [("Echo", {"a": "b"}), ("Echo", {}), ("Other", {})]
        asked += [("Echo", {"grpc_timeout": "9S"})] * 3 + [("Echo", {"x_request_id": "one"})] * 3
        for i, (method, headers) in enumerate(asked):
            body, answered = await client.answer(client.ask(method, b"%d" % i, **headers))
            assert body == framed(b"%d" % i)
            assert answered.get("x-request-id") == headers.get("x_request_id")
    callers = methods.callers
    paths = [caller.headers[b":path"].decode() for caller in callers]
    assert paths == [f"/x/{method}" for method, _ in asked]
    assert callers[1].headers == callers[0].headers
    assert callers[2].headers[b"a"] == b"b"
    assert callers[4] is not callers[3]
    # gRPC's own field, and a name, belong to one call: nothing of them is kept.
    assert [caller.remaining_s for caller in callers[4:9]] == [None, 9.0, 9.0, 9.0, None]
    async with connected() as (methods, _, connect):
        client = await connect()
        for _ in range(4):  # from the second time on, the headers are indices of the table
            await client.echoes()
        assert methods.callers[-1] is methods.callers[-2]


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        ({"method": "Echo"}, "13", "no message for a method that takes one"),
        ({"method": "Nothing"}, "12", "there is no method '/x/Nothing'"),
        ({"method": "Echo", "body": b"\0\0\0"}, "3", "in the middle of a message"),
        ({"method": "Echo", "body": framed(b"a") * 2}, "13", "more than one message"),
        ({"method": "Echo", "grpc_encoding": "snappy"}, "12", "gzip and deflate are known"),
        ({"method": "Echo", "grpc_timeout": "soon"}, "13", "expected such as 500m or 2S"),
        ({"method": "Hold", "body": framed(b""), "grpc_timeout": "50m"}, "4", "deadline"),
        ({"method": "EchoAll", "body": framed(b"a") + b"\0"}, "3", "in the middle of a message"),
    ],
)
async def test_what_is_wrong_has_its_status(asked: dict[str, Any], status: str, text: str) -> None:
    async with connected() as (_, _, connect):
        client = await connect()
        _, headers = await client.answer(client.ask(**asked))
        assert headers["grpc-status"] == status
        assert text in headers["grpc-message"]
        await client.echoes(b"still here")


async def test_a_client_that_left_before_it_was_accepted_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = set[int]()

    class Recorded(GrpcConnection):
        def received(self, data: bytes) -> None:
            heard.add(id(self))
            super().received(data)

    monkeypatch.setattr(grpc, "GrpcConnection", Recorded)
    async with connected() as (_, _, connect):
        client = await connect()
        with socket.create_connection(client.writer.get_extra_info("peername")) as gone:
            gone.sendall(PREFACE)
        for one in (client, await connect()):
            await one.echoes()
    assert len(heard) == 2


async def test_what_is_not_grpc_is_told_by_http() -> None:
    async with connected() as (_, _, connect):
        client = await connect()
        stream = client.ask("Echo", b"abc", content_type="application/json")
        body, headers = await client.answer(stream)
        assert headers == {":status": "415", "content-type": "text/plain"}
        assert b"speaks gRPC" in body


async def test_metadata_that_is_too_long_fails_its_call_alone() -> None:
    async with connected() as (_, _, connect):
        client = await connect()
        client.http2.remote_settings.max_header_list_size = 1 << 20
        many: dict[str, Any] = {f"a{i}": "b" * 1000 for i in range(20)}
        _, headers = await client.answer(client.ask("Echo", b"abc", **many))
        assert headers["grpc-status"] == "8"
        assert headers["grpc-message"] == "the metadata is larger than 16384 bytes, the limit here"
        stream = client.ask("Echo", b"abc", content_type="text/html", **many)
        _, headers = await client.answer(stream)
        assert headers == {":status": "431"}
        await client.echoes(b"still here")


async def test_who_does_not_speak_http2_is_sent_away() -> None:
    async with served(Methods()) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        said = await asyncio.wait_for(reader.read(), LIMIT_S)
        assert goaway(0, PROTOCOL_ERROR) in said
        writer.close()


async def test_calls_taken_back_are_cancelled_also_before_they_run() -> None:
    async with connected() as (methods, _, connect):
        client = await connect()
        streams = [client.ask("Hold", b"") for _ in range(10)]
        await until(lambda: methods.started == 10)
        for stream in streams:
            client.http2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        client.send()
        await until(lambda: methods.cancelled == 10)
        methods.direct = {"/x/Hold": methods.hold_directly}  # which would start without a task
        for _ in range(100):  # requested and cancelled at once
            client.http2.reset_stream(client.ask("Hold", b"", sends=False))
        client.send()
        await client.echoes()
        assert methods.started - methods.cancelled == 0
        assert methods.started <= 30  # all but a few, whose frames are read in two steps


@pytest.mark.slow
async def test_who_does_not_read_is_not_heard_without_end() -> None:
    async with connected() as (_, _, connect):
        client = await connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads, too
        sent, stream = 0, 1
        with contextlib.suppress(TimeoutError):
            while sent < 200 << 20:
                for _ in range(1000):
                    client.writer.write(request(stream))  # answered with trailers
                    stream += 2
                sent += 1000 * len(request(1))
                await asyncio.wait_for(client.writer.drain(), 1.0)
        assert sent < 100 << 20
        await (await connect()).echoes()


async def test_at_the_end_what_runs_is_answered_and_idle_clients_are_let_go() -> None:
    async with connected() as (methods, server, connect):
        idle, busy = await connect(), await connect()
        busy.ask("Hold", b"abc")
        await until(lambda: methods.started == 1)
        stopping = asyncio.create_task(server.stop(LIMIT_S))
        said = await busy.read_to_the_end()
        assert goaway(1, NO_ERROR) in said
        assert framed(b"abc") in said
        assert literal(b"grpc-status", b"0") in said
        assert goaway(0, NO_ERROR) in await idle.read_to_the_end()
        await asyncio.wait_for(stopping, LIMIT_S)


async def test_what_does_not_end_in_time_is_unavailable() -> None:
    async with connected() as (methods, server, connect):
        methods.end_streams = lambda: None  # type: ignore[method-assign]  # nothing lets it go
        client = await connect()
        client.ask("Hold", b"abc")
        await until(lambda: methods.started == 1)
        stopping = asyncio.create_task(server.stop(0.1))
        assert literal(b"grpc-status", b"14") in await client.read_to_the_end()
        await asyncio.wait_for(stopping, LIMIT_S)
        assert methods.cancelled == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", ["answered", "cancelled", "gone"])
async def test_a_connection_leaves_nothing_for_the_garbage_collector(end: str) -> None:
    async with connected() as (methods, server, connect):
        with garbage() as left:
            for number in range(3):
                client = await connect()
                if end == "answered":
                    await client.answer(client.ask("Echo", b"abc", grpc_timeout="5S"))
                    await client.answer(client.ask("EchoAll", b"abc"))
                    await client.answer(client.ask("Nothing", b"abc"))
                else:
                    streams = [client.ask("Hold", b"abc"), client.ask("EchoAll", b"a", end=False)]
                    await until(lambda: methods.started == number + 1)  # noqa: B023
                    if end == "cancelled":
                        for stream in streams:
                            client.http2.reset_stream(stream)
                        client.send()
                        await until(lambda: methods.cancelled == number + 1)  # noqa: B023
                client.writer.transport.abort()
                await until(lambda: not server.connections)
        assert left == []
