"""The gRPC server with grpcio's client: its port, access rules, limits and shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from farm.errors import FarmError, Unavailable
from farm.grpc.messages import ERRORS
from farm.grpc.server import GrpcServer, Tls
from farm.http1.access import Access
from farm.http1.call_ids import Naming, call_ids
from tests.support.certificates import certificate
from tests.support.coroutines import LIMIT_S
from tests.support.grpc_server import Methods, served

TOKEN = "secret"


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
    async with served(Methods()) as (methods, _, port):
        assert await ask(port, "Echo", b"abc", metadata={"farm-client": "me"}) == b"abc"
        (caller,) = methods.callers
        assert caller.peer == "127.0.0.1"
        assert caller.headers[b"farm-client"] == b"me"
        assert caller.headers[b"host"] == b"127.0.0.1:%d" % port
        assert caller.remaining_s is not None
        assert 0 < caller.remaining_s <= LIMIT_S + 1, "clients send it rounded up"


async def test_streams() -> None:
    async with served(Methods()) as (_, _, port), channel_to(port) as channel:
        count = channel.unary_stream("/x/Count")
        assert [body async for body in count(b"3")] == [b"0", b"1", b"2"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            assert [body async for body in count(b"2")]
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        echo = channel.stream_stream("/x/EchoAll")
        assert [body async for body in echo(iter([b"a", b"b"]))] == [b"a", b"b"]


async def test_every_error_has_its_status_and_text() -> None:
    async with served(Methods()) as (_, _, port):
        for kind, status in ERRORS.items():
            assert await refusal(port, "Fail", kind.__name__.encode()) == (status, "no ? ü")


def test_every_status_exists_and_every_error_has_one() -> None:
    assert set(ERRORS) == set(FarmError.kinds.values()) - {FarmError}
    assert set(ERRORS.values()) <= {code.name for code in grpc.StatusCode}


async def test_a_message_above_the_limit_is_refused_also_when_it_is_packed() -> None:
    async with served(Methods(), max_body_bytes=100_000) as (methods, _, port):
        assert len(await ask(port, "Echo", bytes(99_000))) == 99_000
        for packing in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            status, text = await refusal(port, "Echo", bytes(10**7), compression=packing)
            assert status == "RESOURCE_EXHAUSTED"
            assert text == "the message is larger than 100000 bytes, the limit here"
        assert len(methods.callers) == 1


# Access rules


async def test_from_this_machine_no_token_is_needed() -> None:
    async with served(Methods(), TOKEN) as (_, _, port):
        assert await ask(port, "Echo", b"abc") == b"abc"
        status, text = await refusal(port, "Echo", metadata={"x-forwarded-for": "10.0.0.1"})
        assert status == "UNAUTHENTICATED"
        assert "Authorization: Bearer TOKEN" in text
        forwarded = {"authorization": f"Bearer {TOKEN}", "x-forwarded-for": "10.0.0.1"}
        assert await ask(port, "Echo", b"abc", metadata=forwarded) == b"abc"


async def test_who_names_another_host_is_not_from_this_machine() -> None:
    async with served(Methods(), TOKEN) as (methods, _, port):
        elsewhere: dict[str, Any] = {"authority": "elsewhere.example"}
        for wrong in ({"authorization": "Bearer wrong"}, {}):
            status, _ = await refusal(port, "Echo", b"abc", metadata=wrong, **elsewhere)
            assert status == "UNAUTHENTICATED"
        right = {"authorization": f"Bearer {TOKEN}"}
        assert await ask(port, "Echo", b"abc", metadata=right, **elsewhere) == b"abc"
        assert len(methods.callers) == 1


# TLS


async def test_tls(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    trusted = grpc.ssl_channel_credentials(tls.certificate.read_bytes())
    async with served(Methods(), tls=tls) as (_, _, port):
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


async def test_answers_name_their_calls() -> None:
    async with (
        served(Methods(), naming=Naming(call_ids())) as (methods, _, port),
        channel_to(port) as channel,
    ):
        found = []
        for given in ([], [], [("x-request-id", "a-1")]):
            call = channel.unary_unary("/x/Echo")(b"", metadata=given, timeout=LIMIT_S)
            found.append(dict(list(await call.initial_metadata()))["x-request-id"])
    assert len(set(found)) == 3
    assert found[2] == "a-1"
    assert [caller.headers[b"x-request-id"].decode() for caller in methods.callers] == found
