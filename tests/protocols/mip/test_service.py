"""The MIP server: its addresses and its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from itertools import pairwise
from pathlib import Path

import pytest
import uvloop

from farm.errors import Unavailable
from farm.http1.access import Access
from farm.protocols.mip.address import MipAddress
from farm.protocols.mip.packets import HEAD
from farm.protocols.mip.service import ACCEPTED_AT_ONCE, MipServer, MipTimeouts
from tests.support.coroutines import LIMIT_S, until
from tests.support.mip_farm import PING, PONG, Double, doubled, mip_served, request


async def test_a_socket_file_is_its_owners_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "double.sock"
    async with mip_served(Double(), address=MipAddress("double", path=str(path))) as served:
        assert path.stat().st_mode & 0o777 == 0o600
        client = await served.connect()
        assert await client.ask(request("[3]")) == doubled(3)
        with pytest.raises(Unavailable, match=r"cannot listen on unix:.*in use"):
            await MipServer(served.dispatcher, served.server.address, access=Access(None)).start()
    assert not path.exists()


async def test_a_port_that_is_taken_is_told() -> None:
    async with mip_served(Double()) as served:
        with pytest.raises(Unavailable, match=r"cannot listen on 127\.0\.0\.1"):
            await MipServer(served.dispatcher, served.server.address, access=Access(None)).start()


def test_uvloop_does_as_asyncio() -> None:
    async def run() -> None:
        model = Double()
        async with mip_served(model, timeouts=MipTimeouts(look_every_s=0.02)) as served:
            client, gone = await served.connect(), await served.connect()
            assert await client.ask(PING) == PONG
            client.send(request("[0]"), request("[3]"))
            client.writer.write_eof()
            await until(model.running.is_set)
            gone.send(request("[1]"))
            await until(lambda: served.open_calls() == 3)
            gone.writer.close()
            await until(lambda: served.open_calls() == 2)
            model.go.set()
            assert await client.rest() == doubled(0) + doubled(3)
            wrong = await served.connect()
            assert (await wrong.ask(b"GET / HTTP/1.1\r\n\r\n"))[:4] == bytes(4)
            assert await wrong.rest() == b""

    uvloop.run(run())


def test_a_burst_of_connections_is_accepted_in_parts() -> None:
    async def burst() -> list[int]:
        seen = [0]
        async with mip_served(Double()) as served:
            address = served.server.address.host, served.server.address.port
            with contextlib.ExitStack() as stack:
                for _ in range(20):  # the loop is blocked meanwhile
                    stack.enter_context(socket.create_connection(address))
                while served.server.open_connections < 20:
                    await asyncio.sleep(0)
                    seen.append(served.server.open_connections)
                await served.server.stop(0.1)
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(address)
        return [after - before for before, after in pairwise(seen)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        accepted = runner.run(burst())
    assert max(accepted) == ACCEPTED_AT_ONCE


async def test_the_end_waits_for_what_runs() -> None:
    model = Double()
    async with mip_served(model) as served:
        client, idle = await served.connect(), await served.connect()
        assert await idle.ask(PING) == PONG
        client.send(request("[0]"))
        await until(model.running.is_set)
        stopping = asyncio.create_task(served.server.stop(LIMIT_S))
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await served.connect()
        model.go.set()
        assert await client.packet() == doubled(0)
        assert await client.rest() == b""
        await stopping


async def test_what_does_not_end_in_time_is_answered_so() -> None:
    model = Double()
    async with mip_served(model) as served:
        client = await served.connect()
        client.send(request("[0]"))
        await until(model.running.is_set)
        await served.server.stop(0.05)
        answer = await client.packet()
        assert answer[:4] == bytes([0, 0, 5, 0])
        assert answer[HEAD.size :].decode() == "the farm shut down before the call finished"
        await served.server.stop(0.05)
