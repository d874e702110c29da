"""Deferred work: a few steps per turn of the loop, in order, with other work in between."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from farm.http.turns import A_TURN, Turns


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_turn_takes_a_few_steps_and_lets_others_in(factory: type) -> None:
    async def count() -> list[int]:
        turns, done, seen = Turns(asyncio.get_running_loop()), list[int](), list[int]()
        for number in range(3 * A_TURN + 1):
            turns.later(lambda number=number: done.append(number))  # type: ignore[misc]  # bound early
        assert done == []  # not at once
        while len(done) <= 3 * A_TURN:
            await asyncio.sleep(0)
            seen.append(len(done))
        assert done == list(range(3 * A_TURN + 1))
        return seen

    with asyncio.Runner(loop_factory=factory) as runner:
        seen = runner.run(count())
    steps = [b - a for a, b in zip([0, *seen], seen, strict=False)]
    assert max(steps) == A_TURN
    assert sum(1 for step in steps if step) == 4


def test_a_step_may_ask_for_another_one() -> None:
    async def run() -> int:
        turns, count = Turns(asyncio.get_running_loop()), 0

        def step() -> None:
            nonlocal count
            count += 1
            if count < 10:
                turns.later(step)

        turns.later(step)
        for _ in range(20):
            await asyncio.sleep(0)
        return count

    assert asyncio.run(run()) == 10


def test_a_step_that_fails_stops_no_other() -> None:
    async def run() -> list[str]:
        loop, done = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _, context: done.append(str(context["exception"])))
        turns = Turns(loop)

        def fail() -> None:
            raise ValueError("no")

        turns.later(fail)
        turns.later(lambda: done.append("yes"))
        for _ in range(5):
            await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["no", "yes"]


def test_a_turn_may_be_shorter() -> None:
    async def run() -> list[int]:
        turns, done, seen = Turns(asyncio.get_running_loop(), 1), list[int](), list[int]()
        for number in range(3):
            turns.later(lambda number=number: done.append(number))  # type: ignore[misc]  # bound early
        while len(done) < 3:
            await asyncio.sleep(0)
            seen.append(len(done))
        return seen

    assert set(asyncio.run(run())) == {1, 2, 3}


def test_who_waits_has_a_turn_of_its_own() -> None:
    async def run() -> list[int]:
        loop, turn, had = asyncio.get_running_loop(), 0, list[int]()
        turns = Turns(loop, 1)

        def tick() -> None:
            nonlocal turn
            turn += 1
            if len(had) < 4:
                loop.call_soon(tick)

        async def waits() -> None:
            await turns.wait()
            had.append(turn)

        tick()
        tasks = [asyncio.create_task(waits()) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[1].cancel()  # its turn is skipped
        await asyncio.gather(*tasks, return_exceptions=True)
        return had

    had = asyncio.run(run())
    assert len(had) == len(set(had)) == 4
