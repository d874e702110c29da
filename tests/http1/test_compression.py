"""Compression of answers: when they are compressed, and that their content is the same."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from farm.bodies.unpacking import Extra
from farm.http1.compression import AT_ONCE, WORTH_IT, answer_compressed, encoding_for
from farm.http1.request import JSON, Request
from tests.support.coroutines import until

OCTETS = b"application/octet-stream"


@pytest.mark.parametrize(
    ("accepted", "json", "octets"),
    [
        (b"", b"", b""),
        (b"gzip", b"gzip", b"gzip"),
        (b"deflate", b"deflate", b"deflate"),
        (b"GZIP", b"gzip", b"gzip"),
        (b"gzip, deflate", b"gzip", b""),
        (b"gzip, deflate, br", b"gzip", b""),
        (b"br", b"", b""),
        (b"gzip;q=0, deflate", b"deflate", b"deflate"),
        (b"gzip;q=0.0", b"", b""),
        (b"gzip; q=0.5", b"gzip", b"gzip"),
        (b"identity", b"", b""),
        (b",;,", b"", b""),
    ],
)
def test_what_a_client_accepts(accepted: bytes, json: bytes, octets: bytes) -> None:
    assert encoding_for(accepted, JSON) == json
    assert encoding_for(accepted, OCTETS) == octets


def sent(accepted: bytes, body: bytes) -> list[tuple[int, bytes, dict[bytes, bytes], bytes]]:
    answers: list[Any] = []

    def answer(
        status: int, body: bytes | memoryview, headers: Extra = (), content_type: bytes = JSON
    ) -> None:
        answers.append((status, bytes(body), dict(headers), content_type))

    request = Request("GET", "/", {b"accept-encoding": accepted}, b"", "", "")
    answer_compressed(request, answer, body, ((b"a", b"b"),))
    return answers


def test_short_answers_and_those_of_silent_clients_stay_as_they_are() -> None:
    short, long = b"x" * (WORTH_IT - 1), b"x" * WORTH_IT
    assert sent(b"gzip", short) == [(200, short, {b"a": b"b"}, JSON)]
    assert sent(b"", long) == [(200, long, {b"a": b"b"}, JSON)]


@pytest.mark.parametrize(("encoding", "wbits"), [(b"gzip", 31), (b"deflate", 15)])
def test_long_answers_are_compressed(encoding: bytes, wbits: int) -> None:
    body = b"0123456789" * WORTH_IT
    ((status, packed, headers, _),) = sent(encoding, body)
    assert (status, headers[b"content-encoding"], headers[b"a"]) == (200, encoding, b"b")
    assert zlib.decompress(packed, wbits) == body


async def test_very_long_ones_hold_up_nobody() -> None:
    body = bytes(AT_ONCE + 1)
    answers = sent(b"gzip", body)
    assert answers == []
    await until(lambda: answers)
    assert zlib.decompress(answers[0][1], 31) == body
    await asyncio.sleep(0)
