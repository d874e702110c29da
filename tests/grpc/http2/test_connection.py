"""The server's half of HTTP/2, against the package h2 as a client and against hostile bytes."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import h2.events
import h2.settings
import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.grpc.http2 import connection as http2
from farm.grpc.http2 import frames
from farm.grpc.http2 import sending as http2_sending
from farm.grpc.http2.connection import Http2Connection, Opened
from farm.grpc.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    NO_ERROR,
    PADDED,
    PRIORITISED,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    SETTINGS,
    ConnectionFailed,
    frame,
)
from farm.grpc.http2.sending import Received
from tests.support.http2_bytes import (
    ANSWER,
    AS_READ,
    GREETING,
    REQUEST,
    TRAILERS,
    Pair,
    answer,
    block,
    data,
    goaway,
    greeted,
    ping,
    request,
    reset,
    said,
)


def test_a_request_and_its_answer() -> None:
    pair = Pair()
    stream = pair.ask(b"question")
    assert pair.exchange() == [Opened(stream, AS_READ), Received(stream, b"question", True)]
    answer(pair.server, stream, ANSWER, b"answer", TRAILERS)
    assert pair.server.open_streams == 0
    pair.exchange()
    assert pair.body_of(stream) == b"answer"
    assert pair.has_ended(stream)
    for kind, header in (
        (h2.events.ResponseReceived, (":status", "200")),
        (h2.events.TrailersReceived, ("grpc-status", "0")),
    ):
        (event,) = [e for e in pair.to_client if isinstance(e, kind)]
        assert [tuple(map(str, pair)) for pair in event.headers] == [header]


def test_every_split_of_the_bytes_says_the_same() -> None:
    packed = Encoder().encode(REQUEST)
    sent = (
        GREETING
        + frame(PRIORITY, 0, 1, bytes(5))
        + frame(HEADERS, PADDED | PRIORITISED, 1, b"\x02" + bytes(5) + packed[:7] + bytes(2))
        + frame(CONTINUATION, 0, 1, packed[7:20])
        + frame(CONTINUATION, END_HEADERS, 1, packed[20:])
        + frame(DATA, PADDED, 1, b"\x03abc" + bytes(3))
        + frame(0x77, 0xFF, 1, b"unknown")
        + ping(b"12345678")
        + data(1, b"d", end=True)
        + goaway(0, NO_ERROR)
    )
    expected = [Opened(1, AS_READ), Received(1, b"abc"), Received(1, b"d", True)]
    for cut in range(1, len(sent)):
        server = Http2Connection()
        assert server.receive(sent[:cut]) + server.receive(sent[cut:]) == expected
        told = said(server)
        assert told.endswith(ping(b"12345678", flags=ACK))
        assert frame(SETTINGS, ACK, 0) in told
    server = Http2Connection()
    assert [e for byte in sent for e in server.receive(bytes([byte]))] == expected


# Flow control


@pytest.mark.parametrize("window", [0, 10, 1000, 65_535, 1 << 20])
@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_a_body_waits_for_the_clients_leave(window: int, size: int) -> None:
    pair = Pair(window=window, frame_size=16_384)
    stream = pair.ask()
    pair.exchange()
    body = bytes(i % 251 for i in range(size))
    pair.server.send_headers(stream, ANSWER)
    went = pair.server.send_data(stream, body)
    assert went == (size <= min(window, 65_535))
    pair.server.end(stream, TRAILERS)
    pair.exchange()
    taken = 0
    while not pair.has_ended(stream):
        fresh = len(pair.body_of(stream)) - taken
        taken += fresh
        pair.client.increment_flow_control_window(max(fresh, 5_000))
        pair.client.increment_flow_control_window(max(fresh, 5_000), stream)
        pair.exchange()
    assert pair.body_of(stream) == body
    assert pair.server.open_streams == 0


def test_a_large_request_goes_through_and_an_unread_one_is_held_back() -> None:
    pair = Pair()
    stream = pair.ask(end=False)
    pair.exchange()
    sent = received = 0
    while sent < 3 * http2.CONNECTION_WINDOW:
        size = min(pair.client.local_flow_control_window(stream), http2.FRAME_SIZE)
        assert size > 0
        pair.client.send_data(stream, bytes(size))
        sent += size
        for event in pair.exchange():
            assert isinstance(event, Received)
            received += len(event.data)
            pair.server.acknowledge(stream, len(event.data))
    assert received == sent
    other = pair.ask(end=False)
    pair.exchange()
    while size := min(pair.client.local_flow_control_window(other), http2.FRAME_SIZE):
        pair.client.send_data(other, bytes(size))
        pair.exchange()
    third = pair.ask(b"short")
    assert Received(third, b"short", True) in pair.exchange()


# Ends of streams


def test_after_going_away_nothing_new_is_taken() -> None:
    server = greeted()
    server.receive(request(1))
    server.go_away()
    assert server.receive(request(3)) == []
    assert said(server).endswith(reset(3, REFUSED_STREAM))
    answer(server, 1, ANSWER, b"x", TRAILERS)
    assert server.open_streams == 0


def test_what_is_on_its_way_to_a_stream_that_was_cut_off_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_sending, "STREAMS", 2)
    server = greeted()
    for stream in (1, 3, 5):
        server.receive(request(stream, end=False))
        server.end(stream, ANSWER)  # before the client has sent all
        assert said(server).endswith(reset(stream, NO_ERROR))
    rest = data(3, b"more") + frame(HEADERS, END_HEADERS | END_STREAM, 5, b"")
    assert server.receive(rest) == []
    with pytest.raises(ConnectionFailed, match="has ended"):
        server.receive(data(1, b"of one that is forgotten"))


any_frame = st.builds(
    frame,
    st.integers(0, 11),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 2, 3, 5]),
    st.binary(max_size=40) | st.just(block(*REQUEST)) | st.just(bytes(4)),
)


@given(st.lists(any_frame, max_size=30), st.binary(max_size=20))
@settings(max_examples=5 * settings().max_examples)
def test_no_bytes_make_it_fail_in_another_way(sent: list[bytes], tail: bytes) -> None:
    server = greeted()
    with contextlib.suppress(ConnectionFailed):
        for part in [*sent, tail]:
            for event in server.receive(part):
                if isinstance(event, Opened):
                    answer(server, event.stream, ANSWER, b"answer", TRAILERS)
    said(server)


# Random clients


class Doing:
    """A client of the package h2 with random actions, in pieces of random size."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.pair = Pair()
        self.sent: dict[int, bytes] = {}  # bodies by stream
        self.open: list[int] = []
        self.reset: set[int] = set()
        self.got: dict[int, bytes] = {}
        self.answered: set[int] = set()

    def act(self) -> None:
        client = self.pair.client
        action = self.data.draw(
            st.sampled_from(["ask", "ask", "more", "end", "reset", "ping", "settings", "window"])
        )
        stream = self.data.draw(st.sampled_from(self.open)) if self.open else 0
        if action == "ask" or not stream:
            new = self.pair.ask(end=False)
            self.sent[new] = b""
            self.open.append(new)
        elif action in ("more", "end"):
            size = self.data.draw(st.integers(0, 20_000))
            room = client.local_flow_control_window(stream)
            body = bytes(min(size, room, client.max_outbound_frame_size))
            padding = self.data.draw(st.none() | st.integers(0, 50))
            if padding is not None and len(body) + padding + 1 > room:
                padding = None
            ends = action == "end"
            client.send_data(stream, body, end_stream=ends, pad_length=padding)
            self.sent[stream] += body
            if ends:
                self.open.remove(stream)
        elif action == "reset":
            client.reset_stream(stream)
            self.open.remove(stream)
            self.reset.add(stream)
        elif action == "ping":
            client.ping(b"12345678")
        elif action == "settings":
            window = self.data.draw(st.integers(0, 100_000))
            client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        else:
            client.increment_flow_control_window(self.data.draw(st.integers(1, 50_000)))

    def deliver(self, limit: int) -> None:
        """Answer each request with its own body."""
        server = self.pair.server
        sent = self.pair.client.data_to_send()
        while sent or server.busy:
            size = self.data.draw(st.integers(1, 5_000)) if sent else 0
            for event in server.receive(sent[:size], limit):
                if isinstance(event, Received):
                    self.got[event.stream] = self.got.get(event.stream, b"") + event.data
                    server.acknowledge(event.stream, len(event.data))
                if isinstance(event, Received) and event.ended:
                    answer(server, event.stream, ANSWER, self.got.get(event.stream, b""), TRAILERS)
                    self.answered.add(event.stream)
            sent = sent[size:]
            self.pair.to_client += self.pair.client.receive_data(said(server))


@given(st.data(), st.sampled_from([1, 20, 1 << 30]))
def test_whatever_a_client_does_each_request_is_answered(data: st.DataObject, limit: int) -> None:
    doing = Doing(data)
    for _ in range(data.draw(st.integers(1, 25))):
        doing.act()
        if data.draw(st.booleans()):
            doing.deliver(limit)
    for stream in doing.open:
        doing.pair.client.end_stream(stream)
    doing.pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    doing.pair.client.increment_flow_control_window(1 << 24)
    for _ in range(3):  # settings are sent, acknowledged and applied
        doing.deliver(limit)
    assert doing.answered >= doing.sent.keys() - doing.reset
    for stream in doing.sent.keys() - doing.reset:
        assert doing.pair.has_ended(stream)
        assert doing.pair.body_of(stream) == doing.sent[stream]
    assert doing.pair.server.open_streams == 0
    assert not doing.pair.server.has_waiting


# The package by itself


def test_the_readme_runs() -> None:
    """Its server answers a request, and is written to in bytes of HTTP/2."""
    text = (Path(http2.__file__).parent / "README.md").read_text()
    written: list[bytes] = []
    names: dict[str, Any] = {**vars(frames), **vars(http2), **vars(http2_sending)}
    names |= {"write": written.append, "received": [GREETING + request(1), b"\0" * 9]}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    assert data(1, b"an answer") in b"".join(written)
    assert goaway(1, PROTOCOL_ERROR)[:13] in b"".join(written)


def test_it_imports_nothing_else_of_farm() -> None:
    for path in Path(http2.__file__).parent.glob("*.py"):
        found = re.findall(r"^ *(?:from|import) (farm\S*)", path.read_text(), re.MULTILINE)
        assert all(name.startswith("farm.grpc.http2.") for name in found), path
