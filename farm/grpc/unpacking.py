"""Decompression of gRPC messages, in a thread where it takes long."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from farm.bodies.body import Body, HeldBody
from farm.grpc.messages import LONG, Packed, PackedLong

Message = bytes | HeldBody | Packed | PackedLong


async def unpacked(message: Message) -> Body:
    """Return the message; a thread unpacks it, as zlib releases the interpreter's lock."""
    if isinstance(message, bytes | HeldBody):
        return message
    return await asyncio.get_running_loop().run_in_executor(_thread, _body_of, message)


def _body_of(message: Packed | PackedLong) -> Body:
    if isinstance(message, PackedLong):
        message = Packed(message.collected.read(), message.limit)
    body = message.unpack()
    if len(body) <= LONG:
        return body
    held = HeldBody(len(body))
    held.add(body)
    return held


_thread = ThreadPoolExecutor(1, "unpacking")
"""One thread, so that clients with much to unpack wait for each other."""
