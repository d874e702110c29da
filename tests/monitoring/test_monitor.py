"""The monitor: its parts hear of everything and add their data to the snapshot."""

from __future__ import annotations

import asyncio
import math

import numpy as np

from farm.call import Call, Hints, Operation, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import LossCause, ModelFailed
from farm.functions import served_function
from farm.monitoring.monitor import watch
from farm.scheduler.state import WorkerId
from farm.transports.threads import LocalTransport
from tests.support.front_door import WAIT_S


def root(x: float) -> float:
    return math.sqrt(x)


def watched() -> tuple[Dispatcher, LocalTransport]:
    transport = LocalTransport({"root": served_function(root)})
    dispatcher = Dispatcher([transport])
    watch(dispatcher)
    return dispatcher, transport


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


async def test_workers_and_their_calls_are_in_the_snapshot() -> None:
    dispatcher, _ = watched()
    dispatcher.start()
    await dispatcher.wait_for_workers(1, timeout_s=WAIT_S)
    calls = [Call("root", Operation.EVALUATE, (np.array([x]),)) for x in (-1.0, 4.0, -2.0)]
    outcomes = await asyncio.gather(
        *(dispatcher.submit(call, Hints("me")) for call in calls), return_exceptions=True
    )
    assert [isinstance(outcome, ModelFailed) for outcome in outcomes] == [True, False, True]
    state = dispatcher.snapshot()
    (row,) = state["failures"]
    assert (row["kind"], row["count"], row["client"]) == ("ModelFailed", 2, "me")
    assert "math domain error" in row["text"]
    assert row["inputs"].endswith("= [-1.0]")
    (worker,) = state["workers"]
    assert (worker["restarts"], worker["failed"]) == (0, 2)
    counts = state["counts"]
    assert counts["joins"] == 1
    assert [row["ends"] for row in counts["queues"]] == [{"done": 1, "ModelFailed": 2}]
    await dispatcher.close(grace_s=0.0)


async def test_the_questions_of_all_parts_are_offered() -> None:
    dispatcher = Dispatcher([])
    monitor = watch(dispatcher)
    assert await dispatcher.questions.ask("progress", {}) == []
    assert (await dispatcher.questions.ask("why", {"call": "1"}))["phase"] is None
    assert (await dispatcher.questions.ask("history", {}))["times"] == []
    assert dispatcher.snapshot()["progress"] == []
    monitor.close()
    await dispatcher.close(grace_s=0.0)
