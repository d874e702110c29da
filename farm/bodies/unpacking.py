"""Decompression of bodies by their Content-Encoding, and refusals of requests."""

from __future__ import annotations

import zlib

Headers = dict[bytes, bytes]
"""Request headers, names in lower case."""

Extra = tuple[tuple[bytes, bytes], ...]
"""Headers of an answer besides its type and length."""

MOST_SWELLING = 128
"""Maximum ratio of a body's unpacked to its compressed size. Numbers as text shrink to a third, as
bytes hardly at all; only long runs of one number exceed this, and zip bombs: 1,000 times.
"""

SWELLS_FREELY = 1 << 20
"""Unpacked size up to which the ratio is not limited."""

FIRST_PIECE = 1024
"""Bytes of a further member that are unpacked at first, then twice as many, and so on."""


class Refused(Exception):
    """A request is refused before its content is looked at.

    kind: the `type` of the error body; headers: sent along with the answer.
    """

    def __init__(self, status: int, kind: str, message: str, *, headers: Extra = ()) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = headers


def unpacked(body: bytes, headers: Headers, limit: int) -> bytes:
    """Return the body without its Content-Encoding. Raises Refused, also above `limit` bytes."""
    encoding = headers.get(b"content-encoding")
    if encoding is None:
        return body
    encoding = encoding.lower()
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        shown = encoding.decode("ascii", "replace")
        message = f"Content-Encoding {shown!r} is not understood here; gzip and deflate are"
        raise Refused(415, "UnsupportedEncoding", message)
    swells_to = max(SWELLS_FREELY, MOST_SWELLING * len(body))
    most = min(limit, swells_to) + 1
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: detect gzip or zlib
    try:
        whole = unpacker.decompress(body, most)
        if unpacker.unused_data and b"gzip" in encoding:
            whole, is_whole = _more_members(whole, unpacker.unused_data, most)
        else:
            is_whole = unpacker.eof and not unpacker.unused_data
    except zlib.error as error:
        raise Refused(
            400, "InvalidInput", f"the body is not {encoding.decode()}: {error}"
        ) from None
    if len(whole) > limit:
        raise too_large(limit)
    if len(whole) > swells_to:
        raise Refused(
            413, "TooLarge", f"the body unpacks to more than {MOST_SWELLING} times its size"
        )
    if not is_whole:
        raise Refused(400, "InvalidInput", "the compressed body is cut short or has a tail")
    return whole


def wrong_method(what: str, method: str, *allowed: str) -> Refused:
    """Return the refusal of a request to `what` by any other method than those allowed."""
    message = f"{what} is asked with {allowed[0]}, not {method}"
    allow = ((b"allow", ", ".join(allowed).encode()),)
    return Refused(405, "MethodNotAllowed", message, headers=allow)


def too_large(limit: int) -> Refused:
    """Return the refusal of a body above `limit` bytes."""
    return Refused(413, "TooLarge", f"the body is longer than {limit} bytes, the limit here")


def _more_members(unpacked: bytes, rest: bytes, most: int) -> tuple[bytes, bool]:
    """Return `unpacked` with the gzip members in `rest` (RFC 1952 2.2), and whether all are whole.

    It stops at `most` bytes. Pieces are small at first: each member copies what is behind it.
    """
    parts, size, at = [unpacked], len(unpacked), 0
    while True:
        unpacker, piece_bytes = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), FIRST_PIECE
        while at < len(rest) and not unpacker.eof and size < most:
            piece = rest[at : at + piece_bytes]
            parts.append(unpacker.decompress(piece, most - size))
            size += len(parts[-1])
            at, piece_bytes = at + len(piece) - len(unpacker.unused_data), 2 * piece_bytes
        if at >= len(rest) or size >= most:
            return b"".join(parts), unpacker.eof
