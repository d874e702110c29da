"""Time limits of HTTP/1.1 clients for each step; the tests set the clock and do not wait."""

from __future__ import annotations

import select

import pytest

from farm.bodies.held import HeldBytes
from farm.http.request import Answer, Request
from farm.http.timeouts import HttpTimeouts, Stage
from tests.http.test_connection import echo, length, stage, the_connection
from tests.support.bare_server import post, rest_of, serving
from tests.support.front_door import read_answer, until


@pytest.mark.parametrize(
    ("sent", "awaited", "answered"),
    [
        (b"", Stage.IDLE, b""),
        (post("/echo", b"x"), Stage.IDLE, b""),
        (b"GET /echo HTTP/1.1\r\nA:", Stage.HEAD, b"HTTP/1.1 408 "),
        (post("/echo", b"x" * 100)[:-1], Stage.BODY, b"HTTP/1.1 408 "),
        (post("/absent" * 200, b"x" * 2000)[:-1], Stage.BODY, b""),
    ],
)
def test_each_step_has_its_time(sent: bytes, awaited: Stage, answered: bytes) -> None:
    timeouts = HttpTimeouts(idle=1000, head=1000, body=1000, linger=1000)
    with serving({"/echo": echo}, timeouts=timeouts) as server, server.connect() as connection:
        connection.sendall(sent)
        if not answered and sent:
            until(lambda: select.select([connection], [], [], 0)[0], "it is answered")
            connection.recv(10_000)
        until(lambda: len(server.connections) == 1, "it is there")
        until(lambda: stage(server) is awaited, f"the farm waits for {awaited.value}")
        one = the_connection(server)
        now = server.call(lambda: server.loop.time())
        server.call(one.look, now)
        server.call(one.look, now + 900)
        assert server.call(lambda: one.standing()[0]) is awaited
        server.call(one.look, now + 1100)
        assert rest_of(connection).startswith(answered)


def test_a_trickle_does_not_buy_a_head_more_time() -> None:
    timeouts = HttpTimeouts(head=1000)
    with serving({"/echo": echo}, timeouts=timeouts) as server, server.connect() as connection:
        connection.sendall(b"GET /echo HTTP/1.1\r\n")
        until(lambda: len(server.connections) == 1, "it is there")
        until(lambda: stage(server) is Stage.HEAD, "the head has begun")
        now = server.call(lambda: server.loop.time())
        one = the_connection(server)
        server.call(one.look, now)
        for later in (300, 600, 900):
            connection.sendall(b"A: b\r\n")
            server.call(one.look, now + later)
        server.call(one.look, now + 1100)
        assert rest_of(connection).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_gets_on_is_waited_for() -> None:
    timeouts, size = HttpTimeouts(body=1000, progress=1000), 3000
    with (
        serving({"/n": length}, limit=size, timeouts=timeouts) as server,
        server.connect() as connection,
    ):
        connection.sendall(post("/n", b"x" * size)[:-size])
        until(lambda: len(server.connections) == 1, "it is there")
        one = the_connection(server)
        now = server.call(lambda: server.loop.time())
        for step in range(3):
            arrived = (Stage.BODY, step)
            until(lambda: server.call(one.standing)[:2] == arrived, "what was sent is there")  # noqa: B023  # asked now
            server.call(one.look, now + 900 * step)
            connection.sendall(b"x" * 1000)
        assert read_answer(connection) == (200, b"3000")


def test_a_client_that_does_not_read_is_cut_off() -> None:
    held = HeldBytes(1 << 40)

    def large(request: Request, answer: Answer) -> None:
        answer(200, bytes(20 << 20))

    timeouts = HttpTimeouts(stuck=1000)
    with (
        serving({"/large": large}, timeouts=timeouts, held=held) as server,
        server.connect() as connection,
    ):
        connection.sendall(post("/large") * 5)
        until(lambda: len(server.connections) == 1, "it is there")
        until(lambda: stage(server) is Stage.STUCK, "it does not read")
        assert 0 < held.used < 20 << 20  # one answer and no more
        one = the_connection(server)
        now = server.call(lambda: server.loop.time())
        server.call(one.look, now)
        server.call(one.look, now + 900)
        assert len(server.connections) == 1
        server.call(one.look, now + 1100)
        until(lambda: len(server.connections) == 0, "it is cut off")
        assert held.used == 0
