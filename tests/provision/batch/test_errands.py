"""Background tasks: one for each key, and failures are logged."""

from __future__ import annotations

import asyncio

import pytest

from farm.provision.batch.errands import Errands


def test_a_second_task_with_the_same_key_waits_for_another_time() -> None:
    async def scene() -> None:
        errands, done, go = Errands(), [], asyncio.Event()

        async def work() -> None:
            await go.wait()
            done.append(1)

        assert errands.begin("look", work)
        assert not errands.begin("look", work)
        assert errands.begin("submit a", work)
        assert errands.is_running("submit ")
        assert not errands.is_running("ask")
        go.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(done) == 2
        assert not errands.is_running("")
        assert errands.begin("look", work)
        await errands.cancel()
        assert not errands.is_running("")

    asyncio.run(scene())


def test_a_failure_is_logged_and_frees_the_key(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        errands = Errands()

        async def work() -> None:
            raise ValueError("no good")

        errands.begin("look", work)
        await asyncio.sleep(0)
        assert errands.begin("look", work)
        await asyncio.sleep(0)

    asyncio.run(scene())
    assert "look failed" in caplog.text
    assert "no good" in caplog.text


def test_a_task_that_is_cancelled_before_it_begins_is_gone() -> None:
    async def scene() -> None:
        errands = Errands()

        async def work() -> None: ...

        errands.begin("look", work)
        await errands.cancel()
        assert not errands.is_running("look")

    asyncio.run(scene())


def test_a_task_that_is_dropped_frees_its_key() -> None:
    async def scene() -> None:
        errands = Errands()

        async def work() -> None:
            await asyncio.get_running_loop().create_future()

        errands.drop("look")
        errands.begin("look", work)
        errands.begin("ask", work)
        await asyncio.sleep(0)
        errands.drop("look")
        await asyncio.sleep(0)
        assert not errands.is_running("look")
        assert errands.is_running("ask")
        await errands.cancel()

    asyncio.run(scene())
