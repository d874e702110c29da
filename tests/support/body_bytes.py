"""Bodies of requests in the server's form: short ones as bytes, long ones in a file."""

from __future__ import annotations

from farm.bodies.body import HEAVY_BYTES, Body, HeldBody


def body_of(data: bytes) -> Body:
    """A body of these bytes."""
    if len(data) <= HEAVY_BYTES:
        return data
    held = HeldBody(1 << 30)
    held.add(data)
    return held


def bytes_of(body: Body) -> bytes:
    """The content of a body."""
    return body.read() if isinstance(body, HeldBody) else body
