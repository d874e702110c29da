"""All parts are connected to the dispatcher."""

from __future__ import annotations

from farm.dispatcher.dispatcher import Dispatcher
from farm.monitoring.monitor import Monitor
from farm.transports.threads import LocalTransport
from tests.support.coroutines import on_loop


@on_loop
async def test_its_parts_hear_of_workers() -> None:
    transport = LocalTransport({})
    dispatcher = Dispatcher([transport])
    Monitor(dispatcher)
    dispatcher.start()
    (row,) = dispatcher.snapshot()["workers"]
    assert row["restarts"] == 0
    await dispatcher.close(grace_s=0.0)
