"""The monitor: its parts hear of everything and add their data to the snapshot."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np

import farm
from farm.call import Call, Hints, Operation, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import LossCause, ModelFailed
from farm.functions import served_function
from farm.model import Config, Inputs
from farm.monitoring.monitor import watch
from farm.scheduler.state import WorkerId
from farm.transports.threads import LocalTransport
from tests.support.coroutines import on_loop
from tests.support.front_door import front_door, until


def root(x: float) -> float:
    return math.sqrt(x)


def watched() -> tuple[Dispatcher, LocalTransport]:
    transport = LocalTransport({"root": served_function(root)})
    dispatcher = Dispatcher([transport])
    watch(dispatcher)
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


@on_loop
async def test_failed_calls_are_in_the_snapshot() -> None:
    dispatcher, _ = watched()
    dispatcher.start()
    await dispatcher.wait_for_workers(1, timeout_s=30.0)
    calls = [Call("root", Operation.EVALUATE, (np.array([x]),)) for x in (-1.0, 4.0, -2.0)]
    outcomes = await asyncio.gather(
        *(dispatcher.submit(call, Hints("me")) for call in calls), return_exceptions=True
    )
    assert [isinstance(outcome, ModelFailed) for outcome in outcomes] == [True, False, True]
    (row,) = dispatcher.snapshot()["failures"]
    assert (row["kind"], row["count"], row["client"]) == ("ModelFailed", 2, "me")
    assert "math domain error" in row["text"]
    assert row["inputs"].endswith("= [-1.0]")
    await dispatcher.close(grace_s=0.0)


class Twice(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return 2 * inputs["x"]


def test_a_farm_counts_what_its_workers_do() -> None:
    with front_door({"twice": Twice()}, workers=2) as door:
        question = {"name": "twice", "input": [[1]], "config": {}}
        assert door.ask("POST", "/Evaluate", question).status == 200
        until(lambda: door.snapshot()["counts"]["queues"], "the call is counted")
        counts = door.snapshot()["counts"]
    assert counts["joins"] == 2
    assert [row["ends"] for row in counts["queues"]] == [{"done": 1}]


@on_loop
async def test_the_questions_of_all_parts_are_offered() -> None:
    dispatcher, _ = watched()
    assert await dispatcher.questions.ask("progress", {}) == []
    assert (await dispatcher.questions.ask("why", {"call": "1"}))["phase"] is None
    assert dispatcher.snapshot()["progress"] == []


@on_loop
async def test_its_parts_hear_of_workers() -> None:
    transport = LocalTransport({})
    dispatcher = Dispatcher([transport])
    watch(dispatcher)
    dispatcher.start()
    (row,) = dispatcher.snapshot()["workers"]
    assert row["restarts"] == 0


@on_loop
async def test_history_is_kept_until_the_monitor_is_closed() -> None:
    dispatcher = Dispatcher([])
    monitor = watch(dispatcher)
    assert (await dispatcher.questions.ask("history", {}))["times"] == []
    monitor.close()
    await dispatcher.close(grace_s=0.0)
    await dispatcher.close(grace_s=0.0)
