"""The limit of connections: which one is closed for a new one, and which is turned away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from farm.http.connections import CLOSED_AT_ONCE, LOOK_EVERY_S, LOOKS_A_TURN, Connections


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


def with_loop(test: Callable[[asyncio.AbstractEventLoop], Any]) -> None:
    async def run() -> None:
        work = test(asyncio.get_running_loop())
        if work is not None:
            await work

    asyncio.run(run())


def test_the_one_that_is_idle_for_longest_makes_room() -> None:
    def check(loop: asyncio.AbstractEventLoop) -> None:
        connections = Connections(loop, 3)
        busy, young, old = (
            Fake(connections, 1.0, idle=False),
            Fake(connections, 3.0),
            Fake(connections, 2.0),
        )
        new = Fake(connections, 4.0)
        assert [c.done for c in (busy, young, old, new)] == [[], [], ["abort"], []]
        assert len(connections) == 3
        connections.close()

    with_loop(check)


def test_who_has_not_been_let_in_makes_room_first_whatever_it_does() -> None:
    def check(loop: asyncio.AbstractEventLoop) -> None:
        connections = Connections(loop, 4)
        idle = Fake(connections, 1.0)
        strangers = [Fake(connections, 2.0 + i, idle=False, let_in=False) for i in range(3)]
        later = [Fake(connections, 5.0 + i, let_in=False) for i in range(3)]
        assert [one.done for one in strangers] == [["abort"]] * 3
        assert [one.done for one in (idle, *later)] == [[]] * 4
        friends = [Fake(connections, 10.0) for _ in range(4)]
        assert [one.done for one in later] == [["abort"]] * 3
        assert idle.done == ["abort"]
        assert [one.done for one in friends] == [[]] * 4
        connections.close()

    with_loop(check)


def test_many_idle_ones_are_closed_at_once_so_that_few_new_ones_look_for_them() -> None:
    def check(loop: asyncio.AbstractEventLoop) -> None:
        connections = Connections(loop, 160)
        idle = [Fake(connections, float(i)) for i in range(160)]
        Fake(connections, 1000.0)
        closed = [one for one in idle if one.done]
        assert closed == idle[: 1 + 160 // CLOSED_AT_ONCE]
        connections.close()

    with_loop(check)


def test_where_all_are_busy_a_new_one_is_turned_away() -> None:
    def check(loop: asyncio.AbstractEventLoop) -> None:
        connections = Connections(loop, 2)
        busy = [Fake(connections, idle=False) for _ in range(2)]
        new = [Fake(connections) for _ in range(3)]
        assert [one.done for one in busy] == [[], []]
        assert [one.done for one in new] == [["turned away"]] * 3
        connections.close()

    with_loop(check)


def test_that_all_are_busy_is_found_out_once_in_a_round() -> None:
    def check(loop: asyncio.AbstractEventLoop) -> None:
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

        connections = Connections(loop, 10)
        for _ in range(10):
            Busy(connections)
        for _ in range(100):
            Fake(connections)
        assert asked == 10
        connections.close()

    with_loop(check)


def test_all_are_looked_after_and_ended() -> None:
    async def check(loop: asyncio.AbstractEventLoop) -> None:
        connections = Connections(loop, 3)
        one = Fake(connections)
        await asyncio.sleep(1.5 * LOOK_EVERY_S)
        assert one.done == ["look"]
        connections.end()
        await connections.wait_gone(0.0)
        connections.give_up()
        loop.call_soon(one.abort)
        await connections.wait_gone(60.0)
        connections.close()
        assert one.done == ["look", "end", "give up", "abort"]
        assert list(connections) == []

    with_loop(check)


def test_many_are_looked_after_some_in_a_turn() -> None:
    async def check(loop: asyncio.AbstractEventLoop) -> None:
        connections = Connections(loop, 10_000)
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
        connections.close()

    with_loop(check)
