"""One MIP connection, byte by byte: order, errors, slow clients, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import Call, ModelInfo
from farm.http1.access import Access
from farm.model import Model
from farm.protocols.mip import calls as mip_calls
from farm.protocols.mip import connection as mip_connection
from farm.protocols.mip.address import MipAddress
from farm.protocols.mip.connection import (
    ANSWERED,
    CONNECTIONS,
    DRAINING,
    LAST,
    OPEN,
    SENT_AHEAD,
)
from farm.protocols.mip.packets import HEAD
from farm.protocols.mip.service import MipTimeouts
from farm.transitions import NoTransition
from tests.support.coroutines import LIMIT_S, LoopTurns, until
from tests.support.mip_farm import (
    PING,
    PONG,
    QUICK,
    Client,
    Double,
    doubled,
    mip_client,
    mip_served,
    request,
)

WATCHFUL = MipTimeouts(look_every_s=0.02)
"""Notices soon who has left, and is patient with all others."""


class Wide(Model):
    """Returns an answer of some 400 kB."""

    name = "wide"
    inputs = {"x": 1}
    outputs = {"y": 100_000}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        return {"y": np.ones(100_000)}


async def flood(client: Client, data: bytes, pause_s: float = 0.0) -> None:
    """Send repeatedly until that fails."""
    for _ in range(1000):
        client.send(data)
        await client.writer.drain()
        await asyncio.sleep(pause_s)


async def test_a_ping_a_call_and_a_batch_on_one_connection() -> None:
    async with mip_client(Double()) as (_, client):
        assert await client.ask(PING) == PONG
        assert await client.ask(request("[3]")) == doubled(3)
        assert await client.ask(request("[1]", "[2]", "[NaN]"))
        assert await client.ask(request("[1]", "[2]", "[3]", "[4]")) == doubled(1, 2, 3, 4)


VECTORS = [
    ("01 01 00 00 00000000", "00 00 00 00"),
    ("00 01 01 00 00000000", "00 00 01 00"),
    ("00 03 00 00 00000000", "00 00 02 00"),
    ("00 02 00 00 00000004 01000000", "00 00 04 00"),
    ("00 02 00 00 0000000c 01000001 00000002 ffffffff", "00 00 04 00"),
    ("00 02 00 00 ffffffff", "00 00 03 00"),
    ("47 45 54 20 2f 20 48 54 54 50 2f 31 2e 31 0d 0a 0d 0a", "00 00 00 00"),
]


@pytest.mark.parametrize(("asked", "answered"), VECTORS)
async def test_what_mistakes_are_answered_with(asked: str, answered: str) -> None:
    async with mip_client(Double(), max_bytes=1 << 20) as (_, client):
        answer = await client.ask(bytes.fromhex(asked))
        assert answer[:4] == bytes.fromhex(answered)
        assert answer[HEAD.size :].decode()  # a text with the reason
        if answered in ("00 00 00 00", "00 00 03 00"):
            assert await client.rest() == b""
        else:
            assert await client.ask(request("[3]")) == doubled(3)


async def test_errors_of_calls_have_their_texts_and_the_connection_goes_on() -> None:
    async with mip_client(Double()) as (_, client):
        for entries, code, said in (
            (["[-1]"], 5, "ValueError: no root of -1.0"),
            (["[1]", "[2]", "[-1]"], 5, "row 2: ValueError: no root of -1.0"),
            (["[1]", "[1, 2]"], 4, "entry 1, input 0 ('x') has shape [2]"),
            (["[1]", "hello"], 5, "entry 1, input 0 ('x') is not JSON"),
        ):
            answer = await client.ask(request(*entries))
            assert answer[:4] == bytes([0, 0, code, 0])
            assert said in answer[HEAD.size :].decode()
        assert await client.ask(request("[3]")) == doubled(3)


class Batched(Model):
    """Takes four entries at once."""

    name = "batched"
    inputs = {"x": 1}
    outputs = {"y": 1}
    max_batch = 4

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        if (inputs["x"] < 0).any():
            raise ValueError("no root")
        return {"y": inputs["x"]}


async def test_errors_of_batches_name_the_rows_however_these_run() -> None:
    async with mip_client(Batched()) as (_, client):
        for entries in (["[1]", "[-1]"], ["[1]", "[-1]", *["[2]"] * 9]):
            answer = await client.ask(request(*entries))
            assert answer[:4] == bytes([0, 0, 5, 0])
            assert re.match(rb"rows? \d", answer[HEAD.size :])
        answer = await client.ask(request("[-1]"))
        assert answer[HEAD.size :].startswith(b"ValueError")


async def test_a_model_that_is_not_there_is_code_2() -> None:
    async with mip_client(Double(), served_as="other") as (_, client):
        answer = await client.ask(request("[1]"))
        assert answer[:3] == bytes([0, 0, 2])
        assert "model 'other' is not served here" in answer.decode()


# Order of answers


async def test_pipelined_requests_are_answered_in_order() -> None:
    model = Double()
    async with mip_client(model, workers=3) as (_, client):
        client.send(request("[1]"), request("[0]"), request("[2]"))
        client.send(PING, request("[-1]"), request("[3]"))
        await until(lambda: model.ran == 5)  # all but that of zero are done
        assert await client.packet() == doubled(1)
        model.go.set()
        assert [await client.packet() for _ in range(3)] == [doubled(0), doubled(2), PONG]
        assert (await client.packet())[:3] == bytes([0, 0, 5])
        assert await client.packet() == doubled(3)


async def test_many_pipelined_requests_wait_in_the_network() -> None:
    model = Double()
    async with mip_client(model) as (served, client):
        numbers = range(10 * SENT_AHEAD)
        client.send(*[request(f"[{n}]") for n in numbers])
        await until(lambda: served.open_calls() >= SENT_AHEAD)
        assert served.open_calls() == SENT_AHEAD
        model.go.set()
        assert [await client.packet() for _ in numbers] == [doubled(n) for n in numbers]


# After a fatal error


async def test_who_still_sends_gets_the_answer_and_no_reset() -> None:
    async with mip_client(Double(), max_bytes=1 << 20) as (_, client):
        client.send(request("[3]"), HEAD.pack(0, 2, 0, 0, 2**30))
        for _ in range(20):
            client.send(bytes(1 << 20))
            await client.writer.drain()
        assert await client.packet() == doubled(3)
        assert (await client.packet())[:4] == bytes([0, 0, 3, 0])
        assert await client.rest() == b""


async def test_who_sends_on_and_on_is_cut_off() -> None:
    timeouts = MipTimeouts(drain_bytes=1 << 20, drain_s=LIMIT_S)
    async with mip_client(Double(), timeouts=timeouts) as (_, client):
        client.send(b"G")
        with pytest.raises(ConnectionError):
            await flood(client, bytes(1 << 16))


async def test_answers_to_what_came_before_a_mistake_outlast_what_follows_it() -> None:
    model = Double()
    timeouts = MipTimeouts(drain_bytes=1 << 20)
    async with mip_client(model, timeouts=timeouts) as (_, client):
        client.send(request("[0]"), b"G")
        await until(model.running.is_set)
        sending = asyncio.create_task(flood(client, bytes(1 << 16)))
        await asyncio.wait([sending], timeout=0.3)  # far more than drain_bytes, if it was read
        model.go.set()
        assert await client.packet() == doubled(0)
        assert (await client.packet())[:4] == bytes(4)
        client.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await sending


async def test_who_does_not_leave_after_an_error_is_left() -> None:
    async with mip_client(Double(), timeouts=QUICK) as (served, client):
        assert (await client.ask(b"G"))[:4] == bytes(4)
        await until(lambda: served.server.open_connections == 0)


# Clients that leave


async def test_a_half_closed_client_is_answered() -> None:
    model = Double()
    async with mip_client(model) as (_, client):
        client.send(request("[0]"), request("[3]"), request("[4]")[:-1])
        client.writer.write_eof()
        await until(model.running.is_set)
        model.go.set()
        assert await client.rest() == doubled(0) + doubled(3)


@pytest.mark.parametrize("count", [5, SENT_AHEAD + 1])
async def test_calls_of_a_client_that_is_cut_off_are_taken_back(count: int) -> None:
    """Even of one that asks so much ahead that the server reads no further."""
    model = Double()
    async with mip_served(model, timeouts=WATCHFUL) as served:
        client, other = await served.connect(), await served.connect()
        client.send(request("[0]"))
        await until(model.running.is_set)
        other.send(*[request("[1]")] * count)
        await until(lambda: served.open_calls() == 1 + min(count, SENT_AHEAD))
        other.reset()
        await until(lambda: served.open_calls() == 1)
        model.go.set()
        assert await client.packet() == doubled(0)
        assert model.ran == 1


@pytest.mark.parametrize("by_file", [False, True], ids=["tcp", "a socket file"])
async def test_a_client_that_closes_in_the_middle_of_a_call_is_seen_to_have_left(
    by_file: bool, tmp_path: Path
) -> None:
    model = Double()
    address = MipAddress("double", path=str(tmp_path / "s")) if by_file else None
    async with mip_served(model, address=address, timeouts=WATCHFUL) as served:
        client, waits = await served.connect(), await served.connect()
        client.send(request("[0]"))
        await until(model.running.is_set)
        waits.send(request("[1]"), request("[-1]"))
        waits.writer.write_eof()  # waits for its answers, so it does not count as gone
        other = await served.connect()
        other.send(request("[2]"), request("[3]"))
        await until(lambda: served.open_calls() == 5)
        other.writer.close()
        await until(lambda: served.open_calls() == 3)
        model.go.set()
        assert await client.packet() == doubled(0)
        assert (await waits.rest()).startswith(doubled(1) + bytes([0, 0, 5]))


async def test_a_client_that_left_before_it_was_accepted_is_not_served() -> None:
    model = Double()
    async with mip_served(model, access=Access(None)) as served:
        address = served.server.address
        with socket.create_connection((address.host, address.port)) as gone:
            gone.sendall(request("[1]"))
        client = await served.connect()
        client.send(request("[2]"))
        assert await client.packet() == doubled(2)
        assert model.ran == 1


# Slow clients


@pytest.mark.parametrize("begun", [b"", request("[3]")[:5], request("[3]")[:10], PING[:1]])
async def test_who_takes_too_long_is_left(begun: bytes) -> None:
    async with mip_client(Double(), timeouts=QUICK) as (_, client):
        client.send(begun)
        assert await client.rest() == b""


async def test_who_waits_for_an_answer_is_not_left() -> None:
    model = Double()
    async with mip_client(model, timeouts=QUICK) as (_, client):
        client.send(request("[0]"))
        await asyncio.sleep(3 * QUICK.idle_s)
        client.send(PING)  # before its answer, after which it may be left
        model.go.set()
        assert await client.packet() == doubled(0)
        assert await client.packet() == PONG


async def test_a_payload_that_trickles_in_is_cut_off_in_the_end() -> None:
    async with mip_client(Double(), timeouts=QUICK) as (_, client):
        client.send(HEAD.pack(0, 2, 0, 0, 10_000))
        with pytest.raises(ConnectionError):
            await flood(client, b"\0", pause_s=0.02)


async def test_who_does_not_read_its_answers_is_left() -> None:
    async with mip_client(Wide(), timeouts=QUICK) as (served, client):
        assert await client.ask(PING) == PONG  # it is accepted
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport of both ways
        client.send(*[request("[1]")] * 100)  # some 40 MB of answers
        await until(lambda: served.server.open_connections == 0)


async def test_who_takes_its_answer_slowly_has_it_whole() -> None:
    # All take longer than the time limit, and each takes a part that a busy machine allows.
    timeouts = replace(QUICK, idle_s=1.0)
    async with mip_client(Wide(), timeouts=timeouts) as (_, client):
        count = 40  # some 16 MB of answers, more than the network holds
        client.send(*[request("[1]")] * count)
        for _ in range(count):
            await client.packet()
            await asyncio.sleep(1.5 * timeouts.idle_s / count)


async def test_sixteen_clients_work_beside_stalled_ones() -> None:
    async with mip_served(Double(), workers=2) as served:
        stalled = [await served.connect() for _ in range(16)]
        for i, client in enumerate(stalled):
            client.send(request("[1]")[: 1 + i])
        half_open = [await served.connect() for _ in range(4)]

        async def work(number: int) -> None:
            for n in range(1, 21):
                client = await served.connect()  # as KubeMo's client does
                assert await client.ask(request(f"[{n + number}]")) == doubled(n + number)
                client.writer.close()

        await asyncio.gather(*[work(number) for number in range(16)])
        rests = [request("[1]")[1 + i :] for i in range(16)]
        for client, rest in zip(stalled, rests, strict=True):
            assert await client.ask(rest) == doubled(1)
        assert all(not client.reader.at_eof() for client in half_open)


async def test_random_bytes_disturb_nobody() -> None:
    async with mip_served(Double(), timeouts=WATCHFUL, max_bytes=1000) as served:
        for size in (1, 7, 8, 100, 5000):
            for _ in range(10):
                client = await served.connect()
                client.send(b"\0" * (size % 2) + os.urandom(size))
                client.writer.write_eof()
        good = await served.connect()
        assert await good.ask(request("[3]")) == doubled(3)
        good.writer.close()
        await until(lambda: served.server.open_connections == 0)


async def test_longer_requests_of_many_clients_are_read_one_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_loop, turns = LoopTurns(), list[int]()
    decode_call = mip_calls.decode_call

    def noted(payload: bytes, info: ModelInfo) -> Call:
        turns.append(of_loop.number)
        return decode_call(payload, info)

    async with mip_served(Double()) as served:
        clients = [await served.connect() for _ in range(10)]
        for client in clients:
            assert await client.ask(PING) == PONG
        monkeypatch.setattr(mip_connection, "decode_call", noted)
        of_loop.count()
        packet = request(*["[3]"] * 20)
        for client in clients:
            assert os.write(client.writer.get_extra_info("socket").fileno(), packet) == len(packet)
        for client in clients:
            assert await client.packet() == doubled(*[3] * 20)
    assert len(set(turns)) == 10


def test_a_connection_that_drains_or_takes_no_more_never_opens_again() -> None:
    assert [move.then for move in CONNECTIONS if move.phase in (LAST, DRAINING)] == [
        LAST,
        LAST,
        DRAINING,
    ]
    with pytest.raises(NoTransition, match="'answered' cannot happen in 'open'"):
        ANSWERED[OPEN]
