"""Work of many peers, in slices per iteration of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from farm.transports.agenda import SPARE_STEPS, STEPS_A_TURN, STEPS_IN_A_ROW, Agenda, Steps


class Done:
    """The work done, in order; `most` is the most in one iteration of the loop."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.most = 0
        self.inside = 0
        self._seen = 0

    def work(self, name: str, count: int, cost: int = 1) -> Steps:
        for number in range(count):
            self.steps.append((name, number))
            yield cost

    def act_on(self, tell: Callable[[], None]) -> None:
        self.inside += 1
        tell()

    async def turns(self, agenda: Agenda, most: int = 1000) -> None:
        """Run the loop until nothing is pending."""
        for _ in range(most):
            self.most = max(self.most, len(self.steps) - self._seen)
            self._seen = len(self.steps)
            if not agenda:
                return
            await asyncio.sleep(0)
        raise AssertionError("it never ends")


def at_work() -> tuple[Done, Agenda]:
    done: Any = Done()
    return done, Agenda(done)


async def test_what_is_short_is_done_at_once() -> None:
    done, agenda = at_work()
    for name in "abc":
        agenda.add(name, done.work(name, 3))
    assert len(done.steps) == 9
    assert not agenda


async def test_a_turn_of_the_loop_does_so_much_and_the_rest_follows() -> None:
    done, agenda = at_work()
    agenda.add("a", done.work("a", 10 * STEPS_A_TURN))
    assert len(done.steps) == STEPS_A_TURN
    await done.turns(agenda)
    assert done.most == STEPS_A_TURN
    assert done.steps == [("a", number) for number in range(10 * STEPS_A_TURN)]
    assert done.inside >= 9


async def test_many_short_messages_of_one_turn_count_together() -> None:
    done, agenda = at_work()
    for number in range(2 * STEPS_A_TURN):
        agenda.add(f"peer {number}", done.work("x", 3))
    assert len(done.steps) <= STEPS_A_TURN + 3
    await done.turns(agenda)
    assert done.most <= STEPS_A_TURN + 3
    assert len(done.steps) == 6 * STEPS_A_TURN


async def test_a_new_turn_has_its_own_time() -> None:
    done, agenda = at_work()
    for _ in range(5):
        agenda.add("a", done.work("a", STEPS_A_TURN - 1))
        assert not agenda
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_peers_take_turns_and_each_keeps_its_order() -> None:
    done, agenda = at_work()
    agenda.add("long", done.work("long", 10 * STEPS_A_TURN))
    agenda.add("long", done.work("long, later", 1))
    agenda.add("short", done.work("short", 1))
    await asyncio.sleep(0)
    assert ("short", 0) in done.steps[: STEPS_A_TURN + 2 * STEPS_IN_A_ROW]
    assert ("long, later", 0) not in done.steps
    await done.turns(agenda)
    assert done.steps[-1] == ("long, later", 0)


async def test_dear_steps_are_fewer() -> None:
    done, agenda = at_work()
    agenda.add("a", done.work("a", 100, cost=STEPS_A_TURN // 4))
    await done.turns(agenda)
    assert done.most == 4


async def test_what_waits_for_a_peer_can_be_finished_or_dropped() -> None:
    done, agenda = at_work()
    for name in "ab":
        agenda.add(name, done.work(name, 2 * STEPS_A_TURN))
        agenda.add(name, done.work(f"{name}, later", 1))
    agenda.finish("a")
    assert done.steps[-1] == ("a, later", 0)
    agenda.drop("b")
    assert not agenda
    await done.turns(agenda)
    assert ("b, later", 0) not in done.steps
    agenda.finish("nobody")
    agenda.drop("nobody")


async def test_work_may_drop_what_waits_behind_it() -> None:
    done, agenda = at_work()

    def leave() -> Steps:
        yield STEPS_A_TURN
        agenda.drop("a")
        yield 1

    agenda.add("a", leave())
    agenda.add("a", done.work("a", 1))
    await done.turns(agenda)
    assert done.steps == []


async def test_lone_messages_are_done_at_once_with_few_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, agenda = at_work()
    loop = asyncio.get_running_loop()
    called: list[object] = []
    call_soon = loop.call_soon

    def counted(callback: Any, *arguments: Any, **options: Any) -> asyncio.Handle:
        if getattr(callback, "__self__", None) is agenda:
            called.append(callback)
        return call_soon(callback, *arguments, **options)

    monkeypatch.setattr(loop, "call_soon", counted)
    for number in range(4 * STEPS_A_TURN):
        agenda.add("a", done.work("a", 1))
        assert len(done.steps) == number + 1
        await asyncio.sleep(0)
    assert not agenda
    assert len(called) == 4 * STEPS_A_TURN // SPARE_STEPS
