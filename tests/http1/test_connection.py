"""An HTTP/1.1 connection with clients that are slow, greedy, do not read, or are gone."""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import threading
from contextlib import ExitStack
from itertools import pairwise

import pytest

from farm.bodies.held import FREE_BYTES, HeldBytes
from farm.call import CancelCall
from farm.http1 import connection as http_connection
from farm.http1.connection import (
    AHEAD_BYTES,
    MOST_TINY_PARTS,
    PASSED_OVER_BYTES,
    REQUEST_STEPS,
    STEPS,
    STEPS_AT_ONCE,
    HttpConnection,
)
from farm.http1.connections import HttpTimeouts, Stage
from farm.http1.request import Answer, Request
from farm.http1.turns import PORTION_BYTES
from tests.support.bare_server import Server, post, rest_of, serving
from tests.support.coroutines import LoopTurns
from tests.support.front_door import WAIT_S, read_answer, until
from tests.support.garbage import garbage

LAST = "Connection: close"


def chunked(path: str) -> bytes:
    """The head of a request whose body follows in chunks."""
    return b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % path.encode()


def body_of(request: Request) -> bytes:
    return request.body if isinstance(request.body, bytes) else request.body.read()


def echo(request: Request, answer: Answer) -> None:
    answer(200, body_of(request))


def length(request: Request, answer: Answer) -> None:
    answer(200, b"%d" % len(body_of(request)))


class Later:
    """A door that keeps its answers until the test sends them."""

    def __init__(self) -> None:
        self.open: list[tuple[Request, Answer]] = []
        self.taken_back: list[bytes] = []

    def __call__(self, request: Request, answer: Answer) -> CancelCall:
        self.open.append((request, answer))
        return lambda: self.taken_back.append(body_of(request))


def the_connection(server: Server) -> HttpConnection:
    until(lambda: len(server.connections) == 1, "it is there")
    (one,) = server.call(list, server.connections)
    assert isinstance(one, HttpConnection)
    return one


def stage(server: Server) -> Stage:
    standing: tuple[Stage, int, float] = server.call(the_connection(server).standing)
    return standing[0]


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it; other bytes that arrive are discarded."""
    return rest_of(connection) == b""


# Limits before a request reaches its door


def test_twenty_megabytes_of_headers_get_their_answer() -> None:
    with serving({"/echo": echo}) as server, server.connect() as connection:
        connection.sendall(b"GET /echo HTTP/1.1\r\nHost: a\r\n")
        for _ in range(20 << 10):
            connection.sendall(b"A: " + b"b" * 1019 + b"\r\n")
        connection.sendall(b"\r\n")
        assert read_answer(connection)[0] == 431
        connection.shutdown(socket.SHUT_WR)
        until(lambda: len(server.connections) == 0, "it is closed")


@pytest.mark.parametrize("half", [False, True])
def test_requests_with_one_head_have_bodies_of_their_own(half: bool) -> None:
    """The second begins as the first did; its body may come in parts, or be the third's start."""
    with serving({"/echo": echo}) as server, server.connect() as connection:
        for body in (b"abc", b"def"):
            connection.sendall(post("/echo", body, "Farm-Client: a"))
            assert read_answer(connection) == (200, body)
        rest = post("/echo", b"ghi", "Farm-Client: a") + post("/echo", b"jkl", "Farm-Client: a")
        for part in (rest[:-5], rest[-5:]) if half else (rest,):
            connection.sendall(part)
        received = b""
        while not received.endswith(b"jkl"):
            received += connection.recv(1000)
        found = re.findall(rb"200 OK|ghi|jkl", received)
        assert found == [b"200 OK", b"ghi", b"200 OK", b"jkl"]


def test_each_request_is_asked_for_its_body_though_the_heads_are_equal() -> None:
    head, _, body = post("/echo", b"abc", "Expect: 100-Continue").partition(b"abc")
    with serving({"/echo": echo}) as server, server.connect() as connection:
        for _ in range(2):
            connection.sendall(head)
            assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(b"abc" + body)
            assert read_answer(connection) == (200, b"abc")


@pytest.mark.parametrize(
    ("headers", "status"),
    [(("Content-Length: 5000", "Expect: 100-continue"), 413), (("Expect: tea",), 417)],
)
def test_a_body_that_is_asked_for_in_vain_ends_the_connection(
    headers: tuple[str, ...], status: int
) -> None:
    """The client decides whether it follows: the next bytes could be a body or a request."""
    head = "\r\n".join(["POST /echo HTTP/1.1", "Host: a", *headers, "", ""]).encode()
    with serving({"/echo": echo}) as server, server.connect() as connection:
        connection.sendall(head)
        assert read_answer(connection)[0] == status
        assert is_closed(connection)


# Work per turn of the loop and per connection


class Counting:
    """A door that records in which turn of the loop each request reached it."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.of_loop = LoopTurns()

    def __call__(self, request: Request, answer: Answer) -> None:
        self.turns.append(self.of_loop.number)
        answer(200, b"")


def test_a_flood_of_requests_gets_its_share_of_a_turn() -> None:
    door = Counting()
    with serving({"/count": door}) as server, server.connect() as connection:
        server.loop.call_soon_threadsafe(door.of_loop.count)
        connection.sendall(b"GET /count HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
        until(lambda: len(door.turns) == 1000, "all are answered")
        most = max(map(door.turns.count, set(door.turns)))
        assert most <= 2 * STEPS // REQUEST_STEPS  # as the bytes arrive, and once more
        received = bytearray()
        while received.count(b"HTTP/1.1 200 ") < 1000:
            received += connection.recv(10**6)


def test_tiny_chunks_get_their_share_of_a_turn() -> None:
    turns = list[int]()
    chunk = b"1\r\nx\r\n"
    with serving({"/n": length}, limit=10**6) as server, server.connect() as connection:
        connection.sendall(chunked("/n"))
        one = the_connection(server)
        until(lambda: server.call(lambda: one._exchange is not None), "the head is read")
        exchange = one._exchange
        assert exchange is not None

        def look() -> None:
            turns.append(exchange.size)
            server.loop.call_soon(look)

        server.loop.call_soon_threadsafe(look)
        connection.sendall(chunk * 20_000 + b"0\r\n\r\n")
        assert read_answer(connection) == (200, b"20000")
        grown = [b - a for a, b in pairwise(turns)]
        assert max(grown) <= 2 * STEPS


def test_only_a_few_tiny_chunks_are_read_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "STEPS", 0)  # nothing is read in later turns
    chunks = b"1\r\nx\r\n" * 20_000
    with serving({"/n": length}, limit=10**6) as server, server.connect() as connection:
        connection.sendall(chunked("/n") + chunks)
        one = the_connection(server)
        until(lambda: server.call(lambda: one.paused), "it has sent enough")
        exchange = one._exchange
        assert exchange is not None
        assert 0 < server.call(lambda: exchange.size) <= STEPS_AT_ONCE - REQUEST_STEPS


def test_a_client_that_left_before_it_was_accepted_is_not_served() -> None:
    later, left = Later(), threading.Event()
    with serving({"/later": later, "/echo": echo}) as server:
        server.loop.call_soon_threadsafe(left.wait, WAIT_S)  # nothing is accepted meanwhile
        with server.connect() as gone:
            gone.sendall(post("/later", b"x"))
        left.set()
        assert server.ask(post("/echo", b"abc", LAST)).endswith(b"abc")
        assert not later.open
        until(lambda: not server.call(list, server.connections), "nobody is there")


def test_a_client_that_has_closed_its_half_before_it_was_accepted_is_served() -> None:
    closed = threading.Event()
    with serving({"/echo": echo}) as server, ExitStack() as stack:
        server.loop.call_soon_threadsafe(closed.wait, WAIT_S)
        client = stack.enter_context(server.connect())
        client.sendall(post("/echo", b"abc"))
        client.shutdown(socket.SHUT_WR)
        closed.set()
        assert rest_of(client).endswith(b"abc")


@pytest.mark.parametrize("resets", [True, False])
def test_a_client_that_is_gone_is_noticed_although_nothing_is_read(resets: bool) -> None:
    later = Later()
    with serving({"/later": later}) as server, server.connect() as connection:
        if resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(post("/later", b"1") + post("/later", b"2") * 10_000)
        until(lambda: later.open, "the door is asked")
        one = the_connection(server)
        until(lambda: one.paused, "nothing is read")
        connection.close()
        until(lambda: later.taken_back, "the call is taken back")


def test_a_connection_that_is_closed_already_is_not_checked() -> None:
    """The check that follows a client's end of file may come after the connection's end."""
    with serving({"/echo": echo}) as server, server.connect() as connection:
        one = the_connection(server)
        connection.close()
        until(lambda: len(server.connections) == 0, "it is gone")
        server.call(one._look_for_reset)


def test_a_client_that_sends_byte_after_byte_is_read_from_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "REST_S", 1000.0)
    data = post("/echo", b"abc")
    with serving({"/echo": echo}) as server, server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one = the_connection(server)
        for at in range(MOST_TINY_PARTS + 1):
            assert not one.paused
            connection.sendall(data[at : at + 1])
            until(lambda: server.call(lambda: one.unread) == at + 1, "it is read")  # noqa: B023  # asked now
        assert one.paused
        server.call(one.advance)
        assert one.paused


def test_a_request_that_comes_byte_by_byte_is_answered() -> None:
    with serving({"/echo": echo}) as server, server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post("/echo", b"abc", LAST):
            connection.sendall(bytes([byte]))
        assert rest_of(connection).endswith(b"\r\n\r\nabc")


def test_what_was_sent_ahead_goes_with_its_connection() -> None:
    """At once, not when the interpreter next searches all objects, which may be a minute later."""
    later = Later()
    with serving({"/later": later, "/echo": echo}, limit=10**6) as server:
        with server.connect() as connection:
            connection.sendall(post("/later", b"x"))
            until(lambda: later.open, "it is asked")
            one = the_connection(server)
            connection.sendall(post("/echo", b"y" * 1000) * 3)
            until(lambda: server.call(lambda: one.unread) > 3_000, "the rest waits for its turn")
        until(lambda: not server.call(list, server.connections), "the client is gone")
        assert server.call(lambda: one.unread) == 0


def test_a_client_that_sends_ahead_fills_its_own_buffers() -> None:
    later = Later()
    with serving({"/later": later}) as server, server.connect() as connection:
        connection.sendall(post("/later", b"1"))
        until(lambda: later.open, "the door is asked")
        connection.setblocking(False)
        one = the_connection(server)
        sent, flood = 0, post("/later", b"2") * 1000
        while server.call(lambda: not one.paused) or select.select([], [connection], [], 0)[1]:
            try:
                sent += connection.send(flood)
            except BlockingIOError:
                select.select([], [connection], [], 0.05)
            assert sent < 64 << 20
        assert AHEAD_BYTES < server.call(lambda: one.unread) <= AHEAD_BYTES + PORTION_BYTES
        assert len(later.open) == 1


def test_a_chunked_request_of_a_client_that_is_not_let_in_ends_the_connection() -> None:
    head = chunked("/echo").replace(b"Host: a", b"Host: a\r\nOrigin: http://elsewhere")
    with serving({"/echo": echo}) as server, server.connect() as connection:
        connection.sendall(head + b"3\r\nabc\r\n")
        assert read_answer(connection)[0] == 403
        assert is_closed(connection)


TENTH = b"%x\r\n%b\r\n" % (10**5, bytes(10**5))
"""A chunk of a tenth of a megabyte."""


@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_body_that_is_not_wanted_ends_the_connection_if_it_is_long(in_chunks: bool) -> None:
    size = PASSED_OVER_BYTES + 10**6
    chunks = chunked("/echo") + TENTH * (size // 10**5) + b"0\r\n\r\n"
    with serving({"/echo": echo}) as server, server.connect() as connection:
        connection.sendall(chunks if in_chunks else post("/echo", bytes(size)))
        assert read_answer(connection)[0] == 413
        assert is_closed(connection)


def test_a_body_that_grows_too_long_near_its_end_leaves_the_connection_as_it_is() -> None:
    with serving({"/echo": echo}, limit=3 * 10**6) as server, server.connect() as connection:
        connection.sendall(chunked("/echo") + TENTH * 31 + b"0\r\n\r\n")
        assert read_answer(connection)[0] == 413
        connection.sendall(post("/echo", b"abc"))
        assert read_answer(connection) == (200, b"abc")


# Memory for large bodies


def test_large_bodies_wait_for_room_and_small_ones_do_not() -> None:
    size = 2 * FREE_BYTES
    held, later = HeldBytes(3 * FREE_BYTES), Later()
    with (
        serving({"/later": later, "/n": length}, limit=10**7, held=held) as server,
        server.connect() as first,
        server.connect() as second,
        server.connect() as small,
    ):
        first.sendall(post("/later", bytes(size)))
        until(lambda: later.open, "the first is asked")
        second.sendall(post("/n", bytes(size), "Expect: 100-continue"))
        until(lambda: held.contended, "the second waits")
        small.sendall(post("/n", bytes(FREE_BYTES)))
        assert read_answer(small) == (200, b"%d" % FREE_BYTES)
        assert not select.select([second], [], [], 0)[0]
        server.call(later.open[0][1], 200, b"done")  # memory is held until it is answered
        assert read_answer(second) == (200, b"%d" % size)
        until(lambda: held.used == 0, "all of it is given back")


def test_two_bodies_that_are_too_large_together_do_not_wait_for_each_other() -> None:
    size = 3 * FREE_BYTES
    held = HeldBytes(4 * FREE_BYTES)
    data = post("/n", bytes(size))
    with serving({"/n": length}, limit=10**7, held=held) as server, ExitStack() as stack:
        callers = [stack.enter_context(server.connect()) for _ in range(8)]
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            for caller in callers:
                caller.sendall(part)
        for caller in callers:
            assert read_answer(caller) == (200, b"%d" % size)
        until(lambda: held.used == 0, "all of it is given back")


def test_bodies_of_unknown_length_reserve_what_they_may_have_and_give_the_rest_back() -> None:
    held, later = HeldBytes(10**6), Later()
    with (
        serving({"/later": later}, limit=10**7, held=held) as server,
        server.connect() as one,
        server.connect() as two,
        server.connect() as other,
    ):
        one.sendall(chunked("/later"))
        two.sendall(chunked("/later"))
        until(lambda: held.used == 10**6, "each may be half as long as all")
        other.sendall(chunked("/later") + b"1\r\nx\r\n0\r\n\r\n")
        until(lambda: held.contended, "the third waits")
        one.sendall(b"1\r\nx\r\n0\r\n\r\n")
        until(lambda: len(later.open) == 1, "the first is there")
        assert held.contended
        two.sendall(b"1\r\nx\r\n0\r\n\r\n")
        until(lambda: len(later.open) == 3, "all are there")
        until(lambda: held.used == 3, "the rest is given back")


def test_a_body_of_unknown_length_that_takes_more_is_refused() -> None:
    held, later = HeldBytes(10**5), Later()
    with serving({"/later": later}, limit=10**7, held=held) as server:
        with server.connect() as connection:
            connection.sendall(chunked("/later") + b"c351\r\n" + bytes(50_001) + b"\r\n0\r\n\r\n")
            status, body = read_answer(connection)
        assert status == 413
        assert b"longer than 50000 bytes" in body
        assert b"Content-Length" in body
        until(lambda: held.used == 0, "all of it is given back")


def test_a_slow_body_for_whose_room_others_wait_is_given_up() -> None:
    held, size = HeldBytes(10**7), 10**7
    timeouts = HttpTimeouts(body=10**6, contended=1000)
    with (
        serving({"/n": length}, limit=size, held=held, timeouts=timeouts) as server,
        server.connect() as slow,
        server.connect() as quick,
    ):
        slow.sendall(post("/n", bytes(size))[: 10**6])
        until(lambda: held.used == size, "it has all the room")
        until(lambda: len(server.connections) == 2, "both are there")
        connections = server.call(list, server.connections)
        one = next(one for one in connections if one._exchange is not None)
        now = server.call(lambda: server.loop.time())
        server.call(one.look, now)
        server.call(one.look, now + 2000)  # no other request waits
        body = bytes(size)
        quick.sendall(post("/n", body)[:-size])
        until(lambda: held.contended, "another waits")
        server.call(one.look, now + 3000)
        server.call(one.look, now + 5000)
        quick.sendall(body)
        assert read_answer(quick) == (200, b"%d" % size)
        assert rest_of(slow).startswith(b"HTTP/1.1 408 ")


# Clients that are gone, and clients that only seem to be


def test_a_client_that_has_closed_its_sending_half_gets_its_answers() -> None:
    later = Later()
    with serving({"/later": later}) as server, server.connect() as connection:
        connection.sendall(post("/later", b"1") + post("/later", b"2"))
        connection.shutdown(socket.SHUT_WR)
        for body in (b"1", b"2"):
            until(lambda: later.open, "the door is asked")
            one = the_connection(server)
            server.call(one.look, 1e9)  # it is still there
            server.call(later.open.pop()[1], 200, b"answer " + body)
            assert read_answer(connection) == (200, b"answer " + body)
        assert is_closed(connection)
        assert later.taken_back == []


@pytest.mark.parametrize("gone", ["closed", "reset", "both halves"])
def test_a_client_that_is_gone_takes_its_call_back(gone: str) -> None:
    later = Later()
    with serving({"/later": later}) as server, server.connect() as connection:
        connection.sendall(post("/later", b"1"))
        until(lambda: later.open, "the door is asked")
        if gone == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if gone == "both halves":
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        until(lambda: later.taken_back, "the call is taken back")
        until(lambda: len(server.connections) == 0, "it is closed")


@pytest.mark.parametrize("cut", [1, 30, -1])
def test_half_a_request_and_no_more_is_nothing(cut: int) -> None:
    with serving({"/echo": echo}) as server, server.connect() as connection:
        connection.sendall(post("/echo", b"abc")[:cut])
        connection.shutdown(socket.SHUT_WR)
        assert is_closed(connection)


def test_half_sent_heads_make_room_for_others() -> None:
    with serving({"/echo": echo}, most_connections=20) as server, ExitStack() as stack:
        slow = [stack.enter_context(server.connect()) for _ in range(20)]
        for connection in slow:
            connection.sendall(b"GET /echo HT")
        until(lambda: len(server.connections) == 20, "all are there")
        assert server.ask(post("/echo", b"abc", LAST)).endswith(b"abc")
        assert is_closed(slow[0])


def test_where_all_are_busy_a_new_client_is_told_so() -> None:
    later = Later()
    with serving({"/later": later}, most_connections=3) as server, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(server.connect()).sendall(post("/later", b"x"))
        until(lambda: len(later.open) == 3, "all are busy")
        with server.connect() as refused:
            status, body = read_answer(refused)
            assert (status, json.loads(body)["error"]["type"]) == (503, "Overloaded")
            assert is_closed(refused)


def test_an_answer_is_not_lost_on_a_client_that_sends_on() -> None:
    """Closing with unread bytes causes a reset, which discards what the client has not read."""
    with serving({"/echo": echo}) as server, server.connect() as connection:
        connection.sendall(b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(1 << 20))
        until(lambda: select.select([connection], [], [], 0)[0], "the answer is there")
        connection.sendall(bytes(1 << 20))
        assert read_answer(connection)[0] == 501


def test_a_connection_leaves_nothing_for_the_garbage_collector() -> None:
    with serving({"/echo": echo}) as server:
        with garbage() as left:
            for _ in range(3):
                with server.connect() as connection:
                    connection.sendall(post("/echo", b"abc"))
                    assert read_answer(connection) == (200, b"abc")
                until(lambda: not server.call(len, server.connections), "it is gone")
        assert left == []
