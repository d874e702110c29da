"""The gRPC server with grpcio's client: its port, access rules, limits and shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from farm.bodies.body import Body
from farm.errors import FarmError, Overloaded, Unavailable
from farm.grpc.call import Caller, Requests, Service, Write
from farm.grpc.messages import ERRORS
from farm.grpc.server import GrpcServer, Tls
from farm.http1.access import Access
from farm.http1.call_ids import Naming, call_ids
from tests.support.body_bytes import bytes_of
from tests.support.certificates import certificate
from tests.support.coroutines import LIMIT_S

TOKEN = "secret"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Methods(Service):
    """Methods of each kind; `calls` records the callers."""

    def __init__(self) -> None:
        self.calls: list[Caller] = []
        self.unary = {"/x/Echo": self.echo, "/x/Fail": self.fail}
        self.server_streams = {"/x/Count": self.count}
        self.bidirectional = {"/x/EchoAll": self.echo_all}

    async def echo(self, body: Body, caller: Caller) -> bytes:
        self.calls.append(caller)
        return bytes_of(body)

    async def fail(self, body: Body, caller: Caller) -> bytes:
        kind = bytes_of(body).decode()
        if kind in FarmError.kinds:
            raise FarmError.kinds[kind]("no \ud800 ü")
        raise ValueError("a mistake")

    async def count(self, body: Body, write: Write, caller: Caller) -> None:
        for i in range(int(bytes_of(body))):
            await write(b"%d" % i)
        if body == b"2":
            raise Overloaded("enough")

    async def echo_all(self, requests: Requests, write: Write, caller: Caller) -> None:
        async for body in requests:
            await write(bytes_of(body))


@asynccontextmanager
async def served(
    token: str | None = None, tls: Tls | None = None, **options: Any
) -> AsyncIterator[tuple[Methods, GrpcServer, int]]:
    methods = Methods()
    server = GrpcServer(methods, Access(token), **options)
    _, port = await server.start(tls=tls)
    try:
        yield methods, server, port
    finally:
        await server.stop(0.1)


def channel_to(port: int, authority: str = "") -> Any:
    options = [("grpc.default_authority", authority)] if authority else None
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)


async def ask(
    port: int,
    method: str,
    body: bytes = b"",
    *,
    metadata: Mapping[str, str] | None = None,
    authority: str = "",
    **options: Any,
) -> bytes:
    async with channel_to(port, authority) as channel:
        answer: bytes = await channel.unary_unary(f"/x/{method}")(
            body, metadata=tuple((metadata or {}).items()), timeout=LIMIT_S, **options
        )
    return answer


async def refusal(port: int, method: str, body: bytes = b"", **options: Any) -> tuple[str, str]:
    """Return status and text of the error in the answer."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(port, method, body, **options)
    return caught.value.code().name, caught.value.details() or ""


async def test_bytes_go_in_and_out() -> None:
    async with served() as (methods, _, port):
        assert await ask(port, "Echo", b"abc", metadata={"farm-client": "me"}) == b"abc"
        (caller,) = methods.calls
        assert caller.peer == "127.0.0.1"
        assert caller.headers[b"farm-client"] == b"me"
        assert caller.headers[b"host"] == b"127.0.0.1:%d" % port
        assert caller.remaining_s is not None
        assert 0 < caller.remaining_s <= LIMIT_S + 1, "clients send it rounded up"


async def test_streams() -> None:
    async with served() as (_, _, port), channel_to(port) as channel:
        count = channel.unary_stream("/x/Count")
        assert [body async for body in count(b"3")] == [b"0", b"1", b"2"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            assert [body async for body in count(b"2")]
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        echo = channel.stream_stream("/x/EchoAll")
        assert [body async for body in echo(iter([b"a", b"b"]))] == [b"a", b"b"]


async def test_every_error_has_its_status_and_text() -> None:
    async with served() as (_, _, port):
        for kind, status in ERRORS.items():
            assert await refusal(port, "Fail", kind.__name__.encode()) == (status, "no ? ü")


def test_every_status_exists_and_every_error_has_one() -> None:
    assert set(ERRORS) == set(FarmError.kinds.values()) - {FarmError}
    assert set(ERRORS.values()) <= {code.name for code in grpc.StatusCode}


async def test_a_mistake_of_ours_is_not_told_in_detail(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (_, _, port):
        status, text = await refusal(port, "Fail")
    assert status == "INTERNAL"
    assert "ValueError" not in text
    assert "ValueError: a mistake" in caplog.text


async def test_a_message_above_the_limit_is_refused_also_when_it_is_packed() -> None:
    async with served(max_body_bytes=100_000) as (methods, _, port):
        assert len(await ask(port, "Echo", bytes(99_000))) == 99_000
        for packing in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            status, text = await refusal(port, "Echo", bytes(10**7), compression=packing)
            assert status == "RESOURCE_EXHAUSTED"
            assert text == "the message is larger than 100000 bytes, the limit here"
        assert len(methods.calls) == 1


# Access rules


async def test_from_this_machine_no_token_is_needed() -> None:
    async with served(TOKEN) as (_, _, port):
        assert await ask(port, "Echo", b"abc") == b"abc"
        status, text = await refusal(port, "Echo", metadata={"x-forwarded-for": "10.0.0.1"})
        assert status == "UNAUTHENTICATED"
        assert "Authorization: Bearer TOKEN" in text
        forwarded = {"authorization": f"Bearer {TOKEN}", "x-forwarded-for": "10.0.0.1"}
        assert await ask(port, "Echo", b"abc", metadata=forwarded) == b"abc"


async def test_who_names_another_host_is_not_from_this_machine() -> None:
    async with served(TOKEN) as (methods, _, port):
        elsewhere: dict[str, Any] = {"authority": "elsewhere.example"}
        for wrong in ({"authorization": "Bearer wrong"}, {}):
            status, _ = await refusal(port, "Echo", b"abc", metadata=wrong, **elsewhere)
            assert status == "UNAUTHENTICATED"
        right = {"authorization": f"Bearer {TOKEN}"}
        assert await ask(port, "Echo", b"abc", metadata=right, **elsewhere) == b"abc"
        assert len(methods.calls) == 1


# TLS


async def test_tls(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    trusted = grpc.ssl_channel_credentials(tls.certificate.read_bytes())
    async with served(tls=tls) as (_, _, port):
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted) as channel:
            assert await channel.unary_unary("/x/Echo")(b"abc", timeout=LIMIT_S) == b"abc"
        status, _ = await refusal(port, "Echo")
        assert status == "UNAVAILABLE"


def test_tls_files_that_are_wrong_are_said_in_one_line(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    missing = Tls(tmp_path / "none.pem", tls.key)
    with pytest.raises(Unavailable, match=r"none\.pem .*cannot be used: No such file"):
        asyncio.run(_start(tls=missing))
    tls.certificate.write_text("nonsense")
    with pytest.raises(Unavailable, match=r"cert\.pem .*cannot be used: .*PEM"):
        asyncio.run(_start(tls=tls))


# Ports


async def _start(**options: Any) -> None:
    await GrpcServer(Methods(), Access(None)).start(**options)


def test_where_it_cannot_listen_is_said_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(Unavailable, match="Address already in use; grpc_port=0 picks"),
    ):
        asyncio.run(_start(port=taken.getsockname()[1]))
    with pytest.raises(Unavailable, match=r"cannot listen on 203\.0\.113\.9"):
        asyncio.run(_start(host="203.0.113.9"))
    assert capfd.readouterr().err == ""


async def metadata_of(port: int, method: str, body: bytes, *given: tuple[str, str]) -> Any:
    """Return the initial metadata of an answer, or all of that of a failure."""
    async with channel_to(port) as channel:
        call = channel.unary_unary(method)(body, metadata=given, timeout=LIMIT_S)
        found = list(await call.initial_metadata())
        if await call.code() is not grpc.StatusCode.OK:
            found += await call.trailing_metadata()
    return dict(found)


async def test_the_answer_names_the_call_as_its_caller_did() -> None:
    parent = f"00-{TRACE}-00f067aa0ba902b7-01"
    async with served() as (methods, _, port):
        for method, body in (("/x/Echo", b""), ("/x/Fail", b"InvalidInput"), ("/x/Fail", b"")):
            found = await metadata_of(port, method, body, ("x-request-id", "a-1"))
            assert found["x-request-id"] == "a-1"
        found = await metadata_of(port, "/x/Echo", b"", ("traceparent", parent))
        assert found["x-request-id"] == TRACE
        for given in ([], [("x-request-id", "a b")]):
            assert "x-request-id" not in await metadata_of(port, "/x/Echo", b"", *given)
        async with channel_to(port) as channel:
            count = channel.unary_stream("/x/Count")
            call = count(b"2", metadata=[("x-request-id", "a-2")], timeout=LIMIT_S)
            assert ("x-request-id", "a-2") in list(await call.initial_metadata())
    assert methods.calls[0].headers[b"x-request-id"] == b"a-1"


async def test_calls_without_an_id_may_get_one() -> None:
    async with served(naming=Naming(call_ids())) as (methods, _, port):
        made = [(await metadata_of(port, "/x/Echo", b""))["x-request-id"] for _ in range(2)]
        found = await metadata_of(port, "/x/Echo", b"", ("x-request-id", "a-1"))
    assert len(set(made)) == 2
    assert found["x-request-id"] == "a-1"
    assert [call.headers[b"x-request-id"].decode() for call in methods.calls] == [*made, "a-1"]
