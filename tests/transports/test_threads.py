"""The tests specific to threads; those of all transports are in tests/contracts."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np

import farm
from farm.call import Call, Operation
from farm.dispatcher.dispatcher import Dispatcher
from farm.scheduler.state import TaskId, WorkerId
from farm.transports.threads import LocalTransport
from tests.support.coroutines import LIMIT_S, until


def call(x: float = 2.0) -> Call:
    return Call("gate", Operation.EVALUATE, (np.array([x]),))


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "-thread" in thread.name}


@farm.model(inputs={"x": 1}, outputs={"y": 1}, name="gate")
def cube(x: Any) -> Any:
    return x**3


async def test_each_worker_is_a_thread_that_ends_with_the_transport() -> None:
    before = threads()
    dispatcher = Dispatcher([LocalTransport({"gate": cube}, workers=3)])
    dispatcher.start()
    names = {row["name"] for row in dispatcher.snapshot()["workers"]}
    assert threads() - before == names
    await dispatcher.close()
    await until(lambda: not threads() - before)
    assert dispatcher.snapshot()["workers"] == []


async def test_two_transports_of_one_program_get_along() -> None:
    transports = [LocalTransport({"gate": cube}) for _ in range(2)]
    dispatcher = Dispatcher(transports)
    dispatcher.start()
    assert len(dispatcher.snapshot()["workers"]) == 2
    results = await asyncio.gather(*[dispatcher.submit(call(i)) for i in range(20)])
    assert [r.outputs[0][0] for r in results] == [i**3 for i in range(20)]
    await dispatcher.close()


def test_thread_that_outlives_its_loop_is_no_trouble() -> None:
    """As when a notebook cell is interrupted: the model ends after the loop is closed."""
    opened, waits = threading.Event(), threading.Event()

    @farm.model(inputs={"x": 1}, outputs={"y": 1}, name="gate")
    def gate(x: Any) -> Any:
        waits.set()
        opened.wait(LIMIT_S)
        return x

    async def leave() -> None:
        dispatcher = Dispatcher([LocalTransport({"gate": gate})])
        dispatcher.start()
        waiting = asyncio.create_task(dispatcher.submit(call()))
        await until(waits.is_set)
        await dispatcher.close(grace_s=0.0)
        await asyncio.gather(waiting, return_exceptions=True)

    before = set(threading.enumerate())
    asyncio.run(leave())
    (thread,) = set(threading.enumerate()) - before
    opened.set()
    thread.join(LIMIT_S)
    assert not thread.is_alive()  # and no traceback, which pytest would turn into a failure


async def test_a_call_that_is_not_needed_is_taken_back_unless_it_has_begun() -> None:
    opened, ran = threading.Event(), []

    @farm.model(inputs={"x": 1}, outputs={"y": 1}, name="gate")
    def gate(x: Any) -> Any:
        ran.append(float(x[0]))
        opened.wait(LIMIT_S)
        return x

    transport = LocalTransport({"gate": gate})
    dispatcher = Dispatcher([transport])
    dispatcher.start()
    (row,) = dispatcher.snapshot()["workers"]
    worker = WorkerId(row["name"])
    running = asyncio.create_task(dispatcher.submit(call(1.0)))
    await until(lambda: ran == [1.0])
    transport.send(worker, [(TaskId(1), call(2.0)), (TaskId(2), call(3.0))])
    transport.end_stream(worker, TaskId(1))
    opened.set()
    await running
    await until(lambda: ran == [1.0, 3.0])
    await dispatcher.close()
