"""Decompression of gRPC messages in a thread; test_call.py has their memory."""

from __future__ import annotations

import zlib

import pytest

from farm.bodies.body import HeldBody
from farm.grpc.messages import LONG, SHORT, GrpcFailure, Packed, PackedLong
from farm.grpc.requests import unpacked
from tests.support.body_bytes import bytes_of


async def test_a_message_that_is_not_packed_stays_as_it_is() -> None:
    assert await unpacked(b"abc") == b"abc"


async def test_packed_messages_are_unpacked() -> None:
    for size in (3, SHORT + 1, LONG + 1):
        message = b"x" * size
        packed = zlib.compress(message)
        assert bytes_of(await unpacked(Packed(packed, 2 * LONG))) == message
        collected = HeldBody(len(packed))
        collected.add(packed)
        assert bytes_of(await unpacked(PackedLong(collected, 2 * LONG))) == message


async def test_a_message_beyond_the_limit_fails() -> None:
    with pytest.raises(GrpcFailure, match="larger than 50000 bytes"):
        await unpacked(Packed(zlib.compress(b"x" * 50_001), 50_000))
