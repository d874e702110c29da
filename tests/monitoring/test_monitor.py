"""The monitor: its parts hear of everything and add their data to the snapshot."""

from __future__ import annotations

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import LossCause
from farm.monitoring.monitor import Monitor
from farm.scheduler.state import WorkerId
from farm.transports.threads import LocalTransport
from tests.support.coroutines import on_loop


def watched() -> tuple[Dispatcher, LocalTransport]:
    transport = LocalTransport({})
    dispatcher = Dispatcher([transport])
    Monitor(dispatcher)
    return dispatcher, transport


@on_loop
async def test_lost_workers_are_in_the_snapshot_however_many_join_afterwards() -> None:
    dispatcher, transport = watched()
    dispatcher.worker_joined(WorkerInfo("node1/1-a", (), host="node1"), transport)
    dispatcher.worker_left(WorkerId("node1/1-a"), "exit code 3", cause=LossCause.CRASH)
    for number in range(300):
        dispatcher.worker_joined(WorkerInfo(f"node2/{number}-a", ()), transport)
    state = dispatcher.snapshot()
    (row,) = state["losses"]
    assert (row["text"], row["count"], row["host"]) == ("exit code 3", 1, "node1")
    assert {event["event"] for event in state["events"]} == {"joined"}
