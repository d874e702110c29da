"""The limit of connections: which one is closed for a new one, and which is turned away."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from contextlib import closing

import pytest

from farm.bodies.held import HeldBytes
from farm.http1.connections import (
    CLOSED,
    CLOSED_AT_ONCE,
    CONNECTIONS,
    HALF_CLOSED,
    LINGERING,
    LINGERS,
    LOOKS_A_TURN,
    ConnectionPhase,
    Connections,
    HttpTimeouts,
    Stage,
)
from farm.http1.request import Answer, Request
from farm.transitions import NoTransition
from tests.http1.test_connection import echo, length, stage, the_connection
from tests.support.bare_server import Server, post, rest_of, serving
from tests.support.coroutines import until as turned
from tests.support.front_door import read_answer, until


class Fake:
    """A connection that records the calls of its methods."""

    def __init__(
        self,
        connections: Connections,
        since: float = 0.0,
        *,
        idle: bool = True,
        let_in: bool = True,
    ) -> None:
        self.since = since
        self.let_in = let_in
        self.owes_nothing = idle
        self.done: list[str] = []
        self._connections = connections
        connections.add(self)

    def look(self, now: float) -> None:
        self.done.append("look")

    def turn_away(self, message: str) -> None:
        self.done.append("turned away")
        self._connections.discard(self)

    def end(self) -> None:
        self.done.append("end")

    def give_up(self) -> None:
        self.done.append("give up")

    def abort(self) -> None:
        self.done.append("abort")
        self._connections.discard(self)


def room(most: int, look_every_s: float = 3600.0) -> closing[Connections]:
    """At most so many connections, on the running loop."""
    return closing(Connections(asyncio.get_running_loop(), most, look_every_s))


async def test_the_one_that_is_idle_for_longest_makes_room() -> None:
    with room(3) as connections:
        busy = Fake(connections, 1.0, idle=False)
        young, old, new = (Fake(connections, since) for since in (3.0, 2.0, 4.0))
        assert [c.done for c in (busy, young, old, new)] == [[], [], ["abort"], []]
        assert len(connections) == 3


async def test_who_has_not_been_let_in_makes_room_first_whatever_it_does() -> None:
    with room(4) as connections:
        idle = Fake(connections, 1.0)
        strangers = [Fake(connections, 2.0 + i, idle=False, let_in=False) for i in range(3)]
        later = [Fake(connections, 5.0 + i, let_in=False) for i in range(3)]
        assert [one.done for one in strangers] == [["abort"]] * 3
        assert [one.done for one in (idle, *later)] == [[]] * 4
        friends = [Fake(connections, 10.0) for _ in range(4)]
        assert [one.done for one in later] == [["abort"]] * 3
        assert idle.done == ["abort"]
        assert [one.done for one in friends] == [[]] * 4


async def test_many_idle_ones_are_closed_at_once_so_that_few_new_ones_look_for_them() -> None:
    with room(160) as connections:
        idle = [Fake(connections, float(i)) for i in range(160)]
        Fake(connections, 1000.0)
        closed = [one for one in idle if one.done]
        assert closed == idle[: 1 + 160 // CLOSED_AT_ONCE]


async def test_where_all_are_busy_a_new_one_is_turned_away() -> None:
    with room(2) as connections:
        busy = [Fake(connections, idle=False) for _ in range(2)]
        new = [Fake(connections) for _ in range(3)]
        assert [one.done for one in busy] == [[], []]
        assert [one.done for one in new] == [["turned away"]] * 3


async def test_that_all_are_busy_is_found_out_once_in_a_round() -> None:
    asked = 0

    class Busy(Fake):
        @property
        def owes_nothing(self) -> bool:
            nonlocal asked
            asked += 1
            return False

        @owes_nothing.setter
        def owes_nothing(self, value: bool) -> None:
            pass

    with room(10) as connections:
        for _ in range(10):
            Busy(connections)
        for _ in range(100):
            Fake(connections)
        assert asked == 10


async def test_all_are_looked_after_and_ended() -> None:
    with room(3, 0.001) as connections:
        one = Fake(connections)
        await turned(lambda: one.done[:2] == ["look", "look"])
        stopping = asyncio.create_task(connections.stop(0.0))
        await turned(lambda: "give up" in one.done)
        one.abort()
        await stopping
        assert [done for done in one.done if done != "look"] == ["end", "give up", "abort"]
        assert list(connections) == []


async def test_many_are_looked_after_some_in_a_turn() -> None:
    with room(10_000) as connections:
        fakes = [Fake(connections) for _ in range(5 * LOOKS_A_TURN)]
        connections._look()
        looked: list[int] = []
        while not looked or looked[-1] < len(fakes):
            looked.append(sum(fake.done == ["look"] for fake in fakes))
            await asyncio.sleep(0)
        assert looked == [number * LOOKS_A_TURN for number in range(1, 6)]
        connections._look()
        fakes[0].abort()  # the last one to be checked
        for _ in range(6):
            await asyncio.sleep(0)
        assert fakes[0].done == ["look", "abort"], "it had gone"
        assert fakes[1].done == ["look", "look"]


def looked_after(server: Server) -> Callable[[float], None]:
    """Look after the one connection now; return how to do so as many seconds later."""
    one, now = the_connection(server), server.call(server.loop.time)
    server.call(one.look, now)
    return lambda later_s: server.call(one.look, now + later_s)


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
        until(lambda: stage(server) is awaited, f"the farm waits for {awaited.value}")
        look = looked_after(server)
        look(900)
        assert stage(server) is awaited
        look(1100)
        assert rest_of(connection).startswith(answered)


def test_a_trickle_does_not_buy_a_head_more_time() -> None:
    timeouts = HttpTimeouts(head=1000)
    with serving({"/echo": echo}, timeouts=timeouts) as server, server.connect() as connection:
        connection.sendall(b"GET /echo HTTP/1.1\r\nHost: a\r\n")
        until(lambda: stage(server) is Stage.HEAD, "the head has begun")
        look = looked_after(server)
        for later_s in (300, 600, 900):
            connection.sendall(b"A: b\r\n")
            look(later_s)
        look(1100)
        assert rest_of(connection).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_gets_on_is_waited_for() -> None:
    timeouts, size = HttpTimeouts(body=1000, progress=1000), 3000
    with (
        serving({"/n": length}, limit=size, timeouts=timeouts) as server,
        server.connect() as connection,
    ):
        connection.sendall(post("/n", b"x" * size)[:-size])
        one, look = the_connection(server), looked_after(server)
        for step in range(3):
            arrived = (Stage.BODY, step)
            until(lambda: server.call(one.standing)[:2] == arrived, "what was sent is there")  # noqa: B023  # asked now
            look(900 * step)
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
        until(lambda: stage(server) is Stage.STUCK, "it does not read")
        assert 0 < held.used < 20 << 20  # one answer and no more
        look = looked_after(server)
        look(900)
        assert len(server.connections) == 1
        look(1100)
        until(lambda: len(server.connections) == 0, "it is cut off")
        until(lambda: held.used == 0, "all of it is given back")


def test_a_connection_that_is_over_does_nothing_more() -> None:
    """Each phase ends; only the server closes one that lingers, and no event opens one again."""
    for move in CONNECTIONS:
        assert move.then >= move.phase
        if move.phase >= LINGERING:
            assert move.then is CLOSED
    ends = {move.phase for move in CONNECTIONS if move.event == "closes"}
    assert ends == set(ConnectionPhase)
    with pytest.raises(NoTransition, match="'answered while client sends' cannot happen in 'half"):
        LINGERS[HALF_CLOSED]
