"""Compresses answers for clients that ask for it, where that is worth the time."""

from __future__ import annotations

import asyncio
import zlib
from functools import lru_cache

from farm.bodies.unpacking import Extra
from farm.http1.request import JSON, Answer, Request

WORTH_IT = 8 * 1024
"""Smallest answer that is compressed, in bytes: below, compression costs more than it saves."""

AT_ONCE = 128 * 1024
"""Largest answer that is compressed on the event loop, in bytes; a thread compresses longer
ones."""

LEVEL = 1
"""zlib's level: three times as fast as the usual 6, and higher levels hardly shorten numbers."""

WBITS = {b"gzip": 31, b"deflate": 15}
"""zlib's `wbits` for each encoding."""


@lru_cache(maxsize=256)
def encoding_for(accepted: bytes, content_type: bytes) -> bytes:
    """Return the Content-Encoding for this Accept-Encoding header, or b"" for none.

    Binary numbers hardly get shorter. They are compressed only for a client that asks for exactly
    one encoding and so means it, not for clients that always list all encodings they know.
    """
    asked = {}
    for part in accepted.lower().split(b","):
        name, _, parameters = part.partition(b";")
        weight = parameters.replace(b" ", b"").removeprefix(b"q=") or b"1"
        if name.strip() and weight.strip(b"0."):
            asked[name.strip()] = weight
    if content_type != JSON and len(asked) != 1:
        return b""
    return next((encoding for encoding in WBITS if encoding in asked), b"")


def answer_compressed(
    request: Request,
    answer: Answer,
    body: bytes | memoryview,
    extra: Extra = (),
    content_type: bytes = JSON,
) -> None:
    """Send an answer with status 200, compressed if it is long and the client accepts that."""
    encoding = b""
    if len(body) >= WORTH_IT:
        accepted = request.headers.get(b"accept-encoding", b"")
        encoding = encoding_for(accepted, content_type)
    if not encoding:
        answer(200, body, extra, content_type)
        return
    extra += ((b"content-encoding", encoding), (b"vary", b"accept-encoding"))
    if len(body) <= AT_ONCE:
        answer(200, packed(body, encoding), extra, content_type)
        return
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(None, packed, body, encoding)
    work.add_done_callback(lambda done: answer(200, done.result(), extra, content_type))


def packed(body: bytes | memoryview, encoding: bytes) -> bytes:
    """Return the body in this Content-Encoding."""
    packer = zlib.compressobj(LEVEL, wbits=WBITS[encoding])
    return packer.compress(body) + packer.flush()
