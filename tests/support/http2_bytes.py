"""Requests as bytes of HTTP/2, and a client of the package h2 connected to our server's codec."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import h2.config
import h2.connection
import h2.events
import h2.settings

from farm.grpc import messages as grpc
from farm.grpc.http2.connection import Event, Http2Connection
from farm.grpc.http2.frames import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    literal,
    settings_frame,
)

Pairs = tuple[tuple[str, str], ...]

REQUEST: Pairs = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/x/Echo"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
)
AS_READ = {name.encode(): value.encode() for name, value in REQUEST}
ANSWER, TRAILERS = literal(b":status", b"200"), literal(b"grpc-status", b"0")
GREETING = PREFACE + frame(SETTINGS, 0, 0)


def framed(message: bytes) -> bytes:
    """Return a gRPC message with its prefix."""
    return b"".join(grpc.framed(message))


def block(*headers: tuple[str, str]) -> bytes:
    """Encode headers literally, without table entries."""
    return b"".join(literal(name.encode(), value.encode("latin-1")) for name, value in headers)


def request(stream: int = 1, *more: tuple[str, str], end: bool = True) -> bytes:
    """Return the HEADERS of a request."""
    flags = END_HEADERS | END_STREAM * end
    return frame(HEADERS, flags, stream, block(*REQUEST, *more))


def data(stream: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM * end, stream, payload)


def reset(stream: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, number(code))


def setting(name: int, value: int) -> bytes:
    """Return SETTINGS with one parameter."""
    return settings_frame((name, value))


def ping(payload: bytes = bytes(8), *, flags: int = 0) -> bytes:
    return frame(PING, flags, 0, payload)


def goaway(last: int, code: int) -> bytes:
    return frame(GOAWAY, 0, 0, number(last) + number(code))


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, number(more))


def number(value: int) -> bytes:
    """Return an integer as frames contain it."""
    return struct.pack(">L", value)


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frames_in(sent: bytes) -> Iterator[Frame]:
    """Yield the frames of these bytes."""
    while sent:
        high, low, kind, flags, stream = HEAD.unpack_from(sent)
        end = 9 + (high << 8 | low)
        yield Frame(kind, flags, stream, sent[9:end])
        sent = sent[end:]


def said(server: Http2Connection) -> bytes:
    """Return the bytes that the server sends now."""
    return b"".join(server.take())


def greeted() -> Http2Connection:
    """Return a connection that has received the client's preface and answered it."""
    server = Http2Connection()
    server.receive(GREETING)
    server.take()
    return server


def answer(server: Http2Connection, stream: int, headers: bytes, body: bytes, end: bytes) -> None:
    server.send_headers(stream, headers)
    server.send_data(stream, body)
    server.end(stream, end)


class Pair:
    """Our server and a client of h2, connected back to back."""

    def __init__(self, *, window: int | None = None, frame_size: int | None = None) -> None:
        self.server = Http2Connection()
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.client = h2.connection.H2Connection(config)
        self.client.initiate_connection()
        changes: dict[h2.settings.SettingCodes | int, int] = {}
        if window is not None:
            changes[h2.settings.SettingCodes.INITIAL_WINDOW_SIZE] = window
        if frame_size is not None:
            changes[h2.settings.SettingCodes.MAX_FRAME_SIZE] = frame_size
        if changes:
            self.client.update_settings(changes)
        self.to_client: list[Any] = []
        self.exchange()

    def exchange(self) -> list[Event]:
        """Pass bytes both ways until neither end sends; return the server's events."""
        heard: list[Event] = []
        while True:
            sent = self.client.data_to_send()
            heard += self.server.receive(sent)
            said = b"".join(self.server.take())
            self.to_client += self.client.receive_data(said)
            if not sent and not said:
                return heard

    def ask(self, body: bytes = b"", *, end: bool = True) -> int:
        stream: int = self.client.get_next_available_stream_id()
        self.client.send_headers(stream, REQUEST, end_stream=end and not body)
        if body:
            self.client.send_data(stream, body, end_stream=end)
        return stream

    def body_of(self, stream: int) -> bytes:
        return b"".join(
            event.data
            for event in self.to_client
            if isinstance(event, h2.events.DataReceived) and event.stream_id == stream
        )

    def has_ended(self, stream: int) -> bool:
        return any(
            isinstance(event, h2.events.StreamEnded) and event.stream_id == stream
            for event in self.to_client
        )
