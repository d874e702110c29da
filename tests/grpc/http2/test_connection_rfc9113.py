"""The cases of h2spec, in its order and with its numbers, without sockets.

test_headers.py and test_hpack.py have those of malformed headers and of header compression.

The numbers are sections of RFC 7540 and RFC 7541. Against `farm.grpc.server.GrpcServer` h2spec
2.6.1-dev fails in one of its 146 cases, and sometimes in a second one:
- http2/4.2/3 sends a HEADERS frame of 17 KiB and expects a FRAME_SIZE_ERROR whatever the announced
  SETTINGS_MAX_FRAME_SIZE is. farm announces 64 KiB, so the frame is legal.
- http2/6.9.1/3 sends a request that is none of gRPC's and then makes its window too large. Where
  the request arrives first it has been answered, and the stream is closed, before the rest comes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from farm.grpc.http2.connection import FRAME_SIZE, Http2Connection, Opened
from farm.grpc.http2.frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_CLOSED,
    ConnectionFailed,
    frame,
    settings_frame,
)
from farm.grpc.http2.sending import STREAMS, Received, Reset
from tests.support.http2_bytes import (
    ANSWER,
    GREETING,
    REQUEST,
    TRAILERS,
    answer,
    block,
    data,
    frames_in,
    goaway,
    greeted,
    number,
    ping,
    request,
    reset,
    said,
    setting,
    window_update,
)

BODY = b"hello"
WHOLE = END_HEADERS | END_STREAM
HALF = END_HEADERS


@dataclass
class Said:
    """The server's answer to a client's bytes. failed: the code of its GOAWAY, or None."""

    failed: int | None = None
    reset: dict[int, int] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    answered: list[int] = field(default_factory=list)
    pings: list[bytes] = field(default_factory=list)
    settings: list[int] = field(default_factory=list)


def said_to(sent: bytes, *, greeting: bytes = GREETING, answers: bool = True) -> Said:
    """Return what a server sends that answers each complete request with `BODY`."""
    server, told = Http2Connection(), Said()
    try:
        for event in server.receive(greeting + sent):
            if isinstance(event, Received) and event.ended and answers:
                server.send_headers(event.stream, ANSWER)
                server.send_data(event.stream, BODY)
                server.end(event.stream, b"")
    except ConnectionFailed as failed:
        told.failed = failed.code
    for kind, flags, stream, payload in frames_in(said(server)):
        if kind == RST_STREAM:
            told.reset[stream] = int.from_bytes(payload, "big")
        elif kind == DATA:
            told.data[stream] = told.data.get(stream, b"") + payload
        elif kind == HEADERS:
            told.answered.append(stream)
        elif kind == PING and flags & ACK:
            told.pings.append(payload)
        elif kind == SETTINGS:
            told.settings.append(flags)
    return told


def head(stream: int, flags: int, payload: bytes) -> bytes:
    return frame(HEADERS, flags, stream, payload)


R = block(*REQUEST)
OPEN = request(1, end=False)
DUMMY = block(("x-dummy0", "x" * 4000))
PINGED = b"h2spec\0\0"
ASK_PING = ping(PINGED)
WEIGHT = b"\xff"
TEST = data(1, b"test", end=True)
RESET = reset(1)


def continued(payload: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(CONTINUATION, flags, 1, payload)


def priority(stream: int, on: int, *, exclusive: bool = False) -> bytes:
    return frame(PRIORITY, 0, stream, number(on | exclusive << 31) + WEIGHT)


ACCEPTED = {
    "generic/2/1, 3.3/2 PRIORITY 256 on an idle stream": priority(1, 0) + request(),
    "generic/2/2, 3.9/2 WINDOW_UPDATE on a half-closed stream": request() + window_update(1, 1),
    "generic/2/3 PRIORITY on a half-closed stream": request() + priority(1, 0),
    "generic/3.1/1, 4/3 DATA": OPEN + TEST,
    "generic/3.1/2 several DATA": OPEN + data(1, b"a") + data(1, b"b", end=True),
    "generic/3.1/3 DATA with padding": OPEN
    + frame(DATA, PADDED | END_STREAM, 1, b"\x05test" + bytes(5)),
    "generic/3.2/1 HEADERS": request(),
    "generic/3.2/2 HEADERS with padding": head(1, WHOLE | PADDED, b"\x08" + R + bytes(8)),
    "generic/3.2/3 HEADERS with priority": head(1, WHOLE | PRIORITISED, number(0) + WEIGHT + R),
    "generic/3.3/1 PRIORITY 1": frame(PRIORITY, 0, 1, number(0) + b"\0") + request(),
    "generic/3.3/3 PRIORITY that depends": priority(3, 1) + request(),
    "generic/3.3/4 PRIORITY exclusive": priority(1, 0, exclusive=True) + request(),
    "generic/3.3/5 PRIORITY of an idle stream, then a smaller one": priority(5, 0) + request(),
    "generic/3.10/1 CONTINUATION": head(1, END_STREAM, R[:5]) + continued(R[5:]),
    "generic/3.10/2 several CONTINUATION": head(1, END_STREAM, R[:5])
    + continued(R[5:10], 0)
    + continued(R[10:]),
    "generic/4/1 GET": head(1, WHOLE, block((":method", "GET"), *REQUEST[1:])),
    "generic/4/2 HEAD": head(1, WHOLE, block((":method", "HEAD"), *REQUEST[1:])),
    "generic/4/4 POST with trailers": OPEN
    + data(1, b"test")
    + head(1, WHOLE, block(("x-test", "ok"))),
    "generic/5/1 indexed": head(1, WHOLE, b"\x83\x86\x84\x01\x00"),
    "generic/5/6 without indexing, indexed name": head(1, WHOLE, R + b"\x0f\x2b\x04test"),
    "generic/5/14 an update of the table's size": head(1, WHOLE, b"\x21" + R),
    "generic/5/15 two of them": head(1, WHOLE, b"\x21\x3e" + R),
    "http2/4.1/1 a frame of unknown type": frame(0x16, 0, 0, bytes(8)) + request(),
    "http2/4.2/1 DATA of 2^14 bytes": OPEN + data(1, bytes(1 << 14), end=True),
    "http2/5.5/1 an unknown extension": frame(0xFF, 0xFF, 0, bytes(8)) + request(),
    "http2/6.5.3/2 SETTINGS": setting(3, 100) + request(),
    "http2/6.5.2/5 an unknown setting": setting(0xFF, 1) + request(),
    "http2/6.10/1 several CONTINUATION after HEADERS": head(1, END_STREAM, R)
    + continued(DUMMY, 0)
    + continued(DUMMY),
    "http2/7/1 GOAWAY of unknown code": goaway(0, 0xFF) + request(),
    "http2/8.1.2.6/3 a content-length that is right": request(1, ("content-length", "4"), end=False)
    + TEST,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted(name: str) -> None:
    told = said_to(ACCEPTED[name] + ASK_PING)
    assert told.failed is None
    assert told.reset == {}
    assert told.answered == [1]
    assert told.data == {1: BODY}
    assert told.pings == [PINGED]


CONNECTION_ERRORS = {
    FRAME_SIZE_ERROR: {
        "http2/4.2/2 a DATA frame that is too large": OPEN
        + data(1, bytes(FRAME_SIZE + 1), end=True),
        "http2/4.2/3 a HEADERS frame that is too large": head(1, WHOLE, R + bytes(FRAME_SIZE)),
        "6.2 HEADERS with half a priority": head(1, WHOLE | PRIORITISED, b"123"),
        "6.3 PRIORITY of another length on an idle stream": frame(PRIORITY, 0, 1, bytes(4)),
        "http2/6.4/3 RST_STREAM of another length": OPEN + frame(RST_STREAM, 0, 1, b"abc"),
        "http2/6.5/1 SETTINGS with ACK and more": frame(SETTINGS, ACK, 0, b"\0"),
        "http2/6.5/3 SETTINGS of another length": frame(SETTINGS, 0, 0, b"abc"),
        "http2/6.7/4 PING of another length": ping(bytes(6)),
        "6.8 GOAWAY of another length": frame(GOAWAY, 0, 0, bytes(7)),
        "http2/6.9/3 WINDOW_UPDATE of another length": frame(8, 0, 0, b"abc"),
    },
    COMPRESSION_ERROR: {
        "http2/4.3/1 a block that is cut short": head(1, WHOLE, b"\x40"),
        "hpack/2.3.3/1 an index that is not there": head(1, WHOLE, R + b"\xc6"),
    },
    PROTOCOL_ERROR: {
        "http2/4.3/2 PRIORITY within headers": head(1, 0, R) + priority(1, 0) + continued(DUMMY),
        "http2/4.3/3 other HEADERS within headers": head(1, 0, R) + request(3),
        "http2/5.1/1 idle: DATA": TEST,
        "http2/5.1/2, 6.4/2 idle: RST_STREAM": RESET,
        "http2/5.1/3 idle: WINDOW_UPDATE": window_update(1, 100),
        "http2/5.1/4 idle: CONTINUATION": continued(R),
        "http2/5.1/7 half-closed: CONTINUATION": request() + continued(R),
        "http2/5.1.1/1 an even stream": request(2),
        "http2/5.1.1/2 a smaller stream": request(5) + request(3),
        "http2/5.3.1/2 PRIORITY that depends on itself": priority(1, 1),
        "http2/5.4.1/1 PING of a stream": frame(PING, 0, 3, bytes(8)),
        "http2/5.5/2 an unknown extension within headers": head(1, END_STREAM, R)
        + frame(0x16, 0, 0, bytes(8)),
        "http2/6.1/1 DATA of no stream": data(0, b"test", end=True),
        "http2/6.1/3 DATA with too much padding": OPEN
        + frame(DATA, PADDED | END_STREAM, 1, b"\x06Test"),
        "http2/6.2/3 HEADERS of no stream": request(0),
        "http2/6.2/4 HEADERS with too much padding": head(
            1, WHOLE | PADDED, bytes((len(R) + 2,)) + R
        ),
        "http2/6.3/1 PRIORITY of no stream": priority(0, 0),
        "http2/6.4/1 RST_STREAM of no stream": reset(0),
        "http2/6.5/2 SETTINGS of a stream": frame(SETTINGS, 0, 1, SETTING.pack(3, 100)),
        "http2/6.5.2/1 ENABLE_PUSH 2": setting(2, 2),
        "http2/6.5.2/3 MAX_FRAME_SIZE 16383": setting(5, 16_383),
        "http2/6.5.2/4 MAX_FRAME_SIZE 2^24": setting(5, 1 << 24),
        "http2/6.7/3 PING of a stream": frame(PING, 0, 1, bytes(8)),
        "http2/6.8/1 GOAWAY of a stream": frame(GOAWAY, 0, 1, bytes(8)),
        "http2/6.9/1 WINDOW_UPDATE of 0": window_update(0, 0),
        "http2/6.10/2 DATA after CONTINUATION": head(1, 0, R) + continued(DUMMY, 0) + TEST,
        "http2/6.10/3 CONTINUATION of no stream": head(1, END_STREAM, R)
        + frame(CONTINUATION, END_HEADERS, 0, DUMMY),
        "http2/6.10/4 CONTINUATION after the end of HEADERS": request() + continued(DUMMY),
        "http2/6.10/5 CONTINUATION after the end of CONTINUATION": head(1, END_STREAM, R)
        + continued(DUMMY) * 2,
        "http2/6.10/6 CONTINUATION after DATA": head(1, 0, R) + TEST + continued(DUMMY, 0),
        "http2/8.2/1 PUSH_PROMISE": frame(PUSH_PROMISE, END_HEADERS, 1, number(3) + R),
    },
    FLOW_CONTROL_ERROR: {
        "http2/6.5.2/2 INITIAL_WINDOW_SIZE 2^31": setting(4, 1 << 31),
        "http2/6.9.1/2 a window above 2^31-1": window_update(0, (1 << 31) - 1) * 2,
        "6.9.2 SETTINGS that make a stream's window too large": OPEN
        + window_update(1, (1 << 31) - 1 - 65_535)
        + setting(4, 65_536),
    },
}


Errors = dict[int, dict[str, bytes]]


def each(errors: Errors) -> list[Any]:
    return [
        pytest.param(sent, code, id=name)
        for code, cases in errors.items()
        for name, sent in cases.items()
    ]


@pytest.mark.parametrize(("sent", "code"), each(CONNECTION_ERRORS))
def test_what_ends_the_connection(sent: bytes, code: int) -> None:
    assert said_to(sent).failed == code


STREAM_ERRORS = {
    STREAM_CLOSED: {
        "http2/5.1/5, 6.1/2 half-closed: DATA": request() + TEST,
        "http2/5.1/6 half-closed: HEADERS": request() + request(),
    },
    PROTOCOL_ERROR: {
        "http2/5.3.1/1 HEADERS that depend on themselves": head(
            1, WHOLE | PRIORITISED, number(1) + WEIGHT + R
        ),
        "5.3.1 PRIORITY that depends on itself, of an open stream": OPEN + priority(1, 1),
        "http2/6.9/2 WINDOW_UPDATE of 0": OPEN + window_update(1, 0),
        "http2/8.1/1 a second HEADERS that ends nothing": OPEN
        + data(1, b"test")
        + head(1, HALF, block(("x-test", "ok"))),
        "http2/8.1.2/1 a name in upper case": request(1, ("X-TEST", "ok")),
        "http2/8.1.2.1/3 one among trailers": OPEN
        + data(1, b"test")
        + head(1, WHOLE, block((":method", "POST"))),
        "http2/8.1.2.6/1 a content-length that is wrong": request(
            1, ("content-length", "1"), end=False
        )
        + TEST,
        "http2/8.1.2.6/2 one that is wrong for several DATA": request(
            1, ("content-length", "9"), end=False
        )
        + data(1, b"test")
        + TEST,
        "8.1.2.6 one without a body": request(1, ("content-length", "1")),
        "8.1.2.6 one with trailers": request(1, ("content-length", "9"), end=False)
        + head(1, WHOLE, block(("a", "b"))),
    },
    FRAME_SIZE_ERROR: {
        "http2/6.3/2 PRIORITY of another length": OPEN + frame(PRIORITY, 0, 1, bytes(4)),
    },
    FLOW_CONTROL_ERROR: {
        "http2/6.9.1/3 a stream's window above 2^31-1": OPEN + window_update(1, (1 << 31) - 1) * 2,
        "6.9.1 more data than the stream's window": OPEN + data(1, bytes(FRAME_SIZE)) * 65,
    },
}


@pytest.mark.parametrize(("sent", "code"), each(STREAM_ERRORS))
def test_what_ends_the_stream_alone(sent: bytes, code: int) -> None:
    told = said_to(sent + request(3) + ASK_PING, answers=False)
    assert told.failed is None
    assert told.reset == {1: code}
    assert told.pings == [PINGED]
    server = Http2Connection()  # the next one is answered, with its headers
    assert Opened(3, {k.encode(): v.encode() for k, v in REQUEST}) in server.receive(
        GREETING + sent + request(3)
    )


# Cases that need several answers, or another one


def test_generic_1_and_http2_3_5_1_the_first_frame_is_settings() -> None:
    assert b"".join(Http2Connection().take())[3:5] == bytes((SETTINGS, 0))


@pytest.mark.parametrize("first", [b"INVALID CONNECTION PREFACE\r\n\r\n", b"X", b"PRI * HTTP/1"])
def test_http2_3_5_2_an_invalid_preface(first: bytes) -> None:
    assert said_to(b"", greeting=first).failed == PROTOCOL_ERROR


@pytest.mark.parametrize("first", [ASK_PING, request(), frame(SETTINGS, ACK, 0)])
def test_3_5_settings_come_first(first: bytes) -> None:
    assert said_to(first, greeting=PREFACE).failed == PROTOCOL_ERROR


@pytest.mark.parametrize("flags", [0, 0x16])
@pytest.mark.parametrize("reserved", [0, 1 << 31])
def test_generic_3_7_and_http2_4_1_flags_and_reserved_bit_are_ignored(
    flags: int, reserved: int
) -> None:
    assert said_to(frame(PING, flags, reserved, PINGED)).pings == [PINGED]


def test_generic_2_4_and_7_2_a_reset_takes_the_answer_back() -> None:
    for code in (8, 0xFF):
        told = said_to(request() + reset(1, code) + ASK_PING)
        assert (told.failed, told.answered, told.pings) == (None, [], [PINGED])


@pytest.mark.parametrize("ended", ["reset", "answered"])
def test_what_comes_for_a_stream_that_has_ended(ended: str) -> None:
    """generic/2/5, http2/5.1/8 to 13."""
    for late, code in (
        (priority(1, 0), None),
        (window_update(1, 1), None),
        (RESET, None),
        (TEST, STREAM_CLOSED),
        (request(), STREAM_CLOSED),
        (continued(DUMMY), PROTOCOL_ERROR),
    ):
        server = greeted()
        server.receive(request(end=ended != "reset"))
        if ended == "reset":
            assert server.receive(RESET) == [Reset(1)]
        answer(server, 1, ANSWER, BODY, TRAILERS)
        assert bool(said(server)) == (ended == "answered")
        if code is None:
            assert server.receive(late) == []
            continue
        with pytest.raises(ConnectionFailed) as caught:
            server.receive(late)
        assert caught.value.code == code


def test_http2_5_1_2_more_streams_than_announced() -> None:
    sent = b"".join(request(2 * i + 1) for i in range(STREAMS + 1))
    told = said_to(setting(4, 0) + sent)
    assert told.failed is None
    assert told.reset == {2 * STREAMS + 1: REFUSED_STREAM}


def test_http2_6_5_3_values_in_their_order() -> None:
    both = settings_frame((4, 100), (4, 1))
    told = said_to(both + request())
    assert told.data == {1: BODY[:1]}
    assert told.settings == [0, ACK, ACK]


def test_http2_6_7_2_a_ping_with_ack_is_not_answered() -> None:
    told = said_to(ping(b"invalid\0", flags=ACK) + ASK_PING)
    assert told.pings == [PINGED]


def test_http2_6_9_2_the_first_window_of_open_streams() -> None:
    server = Http2Connection()
    server.receive(GREETING + setting(4, 0) + request())
    server.send_data(1, BODY)
    for say, body in (
        (setting(4, 3), BODY[:3]),
        (setting(4, 2), b""),  # the window is -1
        (window_update(1, 1), b""),
        (window_update(1, 1), BODY[3:4]),
        (setting(4, 10), BODY[4:]),
    ):
        server.take()
        server.receive(say)
        bodies = [sent.payload for sent in frames_in(said(server)) if sent.kind == DATA]
        assert b"".join(bodies) == body
