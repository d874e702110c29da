"""What the ASGI side shares, fed with its messages: bodies, and clients that hang up."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from farm.errors import InvalidInput
from farm.server.asgi import (
    PATIENCE_S,
    ClientGone,
    answer_refused,
    read_body,
    while_client_waits,
)
from farm.server.door import Refused

Receive = Callable[[], Awaitable[dict[str, Any]]]
GZIPPED = gzip.compress(b"abc", mtime=0)  # without the time, so that test ids stay the same
GONE = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def messages(*sent: dict[str, Any]) -> Receive:
    """A `receive` that gives these messages and then none ever again."""
    waiting = list(sent)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.get_running_loop().create_future()
        return waiting.pop(0)

    return receive


def read(
    *sent: dict[str, Any], limit: int = 100, headers: dict[bytes, bytes] | None = None
) -> bytes:
    return asyncio.run(read_body(headers or {}, messages(*sent), limit))


def test_a_body_is_read_in_one_piece_or_many() -> None:
    assert read(part(b"abc", more=False)) == b"abc"
    assert read(part(b"ab", more=True), part(b"", more=True), part(b"c", more=False)) == b"abc"
    assert read(part(b"", more=False)) == b""


def test_a_body_that_announces_too_much_is_refused_unread() -> None:
    with pytest.raises(Refused, match="longer than 100 bytes") as caught:
        read(headers={b"content-length": b"101"})
    assert caught.value.status == 413


def test_a_body_that_grows_too_long_is_refused_on_the_way() -> None:
    endless = [part(b"x" * 30, more=True)] * 4
    with pytest.raises(Refused, match="longer than 100 bytes"):
        read(*endless)
    assert read(part(b"x" * 100, more=False)) == b"x" * 100
    with pytest.raises(Refused, match="longer than 100 bytes"):
        read(part(b"x" * 101, more=False))


def test_a_client_that_leaves_within_its_body_is_gone() -> None:
    with pytest.raises(ClientGone):
        read(part(b"ab", more=True), GONE)
    with pytest.raises(ClientGone):
        read(GONE)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (b"gzip", GZIPPED),
        (b"x-gzip", GZIPPED),
        (b"GZIP", GZIPPED),
        (b"deflate", zlib.compress(b"abc")),
        (b"identity", b"abc"),
    ],
)
def test_compressed_bodies_are_unpacked(encoding: bytes, packed: bytes) -> None:
    assert read(part(packed, more=False), headers={b"content-encoding": encoding}) == b"abc"


@pytest.mark.parametrize(
    ("encoding", "packed", "status"),
    [
        (b"br", b"abc", 415),
        (b"gzip", b"abc", 400),
        (b"gzip", GZIPPED[:-4], 400),
        (b"gzip", GZIPPED + b"tail", 400),
        (b"gzip", gzip.compress(bytes(10**6), mtime=0), 413),
        (b"gzip", b"", 400),
    ],
)
def test_compressed_bodies_that_cannot_be_are_refused(
    encoding: bytes, packed: bytes, status: int
) -> None:
    with pytest.raises(Refused) as caught:
        read(part(packed, more=False), limit=10**4, headers={b"content-encoding": encoding})
    assert caught.value.status == status


def test_a_body_that_swells_is_not_swallowed_whole() -> None:
    packed = gzip.compress(bytes(50 * 10**6))
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            read(part(packed, more=False), limit=10**5, headers={b"content-encoding": b"gzip"})
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_work_that_ends_gives_its_value_or_its_error() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    async def fail() -> int:
        await asyncio.sleep(2 * PATIENCE_S)
        raise InvalidInput("no")

    assert asyncio.run(while_client_waits(work(), messages())) == 3
    with pytest.raises(InvalidInput):
        asyncio.run(while_client_waits(fail(), messages()))


def test_work_stops_when_the_client_hangs_up() -> None:
    stopped = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    async def serve() -> int:
        with pytest.raises(ClientGone):
            await while_client_waits(work(), messages(part(b"", more=False), GONE))
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(serve()) == 0  # the task goes on as if it had never been cancelled
    assert stopped == [True]


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def serve() -> None:
        forever = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(_wait(forever))
        await asyncio.sleep(2 * PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def _wait(forever: asyncio.Future[None]) -> None:
        await while_client_waits(forever, messages())

    asyncio.run(serve())


def test_short_work_makes_no_second_task_and_long_work_leaves_none() -> None:
    counts = []

    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)
        counts.append(len(asyncio.all_tasks()))

    async def serve() -> int:
        await while_client_waits(work(0), messages())
        await while_client_waits(work(2 * PATIENCE_S), messages())
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(serve()) == 1
    assert counts == [1, 2]


def test_a_refused_request_is_told_why() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    refused = Refused(405, "MethodNotAllowed", "not so", headers=((b"allow", b"POST"),))
    asyncio.run(answer_refused(send, refused))
    start, body = sent
    assert start["status"] == 405
    assert (b"allow", b"POST") in start["headers"]
    assert (b"content-length", b"%d" % len(body["body"])) in start["headers"]
    assert body["body"] == b'{"error":{"type":"MethodNotAllowed","message":"not so"}}'
