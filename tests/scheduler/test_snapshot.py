"""The state as JSON data."""

from __future__ import annotations

import json

from farm.call import Operation
from farm.errors import ModelFailed
from tests.scheduler.recorder import Recorder, call, replied, sent


def test_snapshot_tells_of_workers_and_of_the_queues_in_use(farm: Recorder) -> None:
    farm.join("a", "m", "n", slots=2, ends_at=100.0)
    farm.join("b", "n")
    tasks = farm.submit_many(4)
    farm.expect(sent("a", *tasks[:2]))
    farm.after(2.0).finish("a", tasks[0], 2.0)
    farm.finish("a", tasks[1], ModelFailed("it raised"))
    farm.expect(
        replied(tasks[0], 2.0, "a"), replied(tasks[1], ModelFailed, "a"), sent("a", *tasks[2:])
    )
    waiting = farm.submit()
    farm.after(3.0).expect()
    state = farm.scheduler.snapshot(farm.now)
    assert json.loads(json.dumps(state)) == state
    assert state["workers"] == [
        {
            "name": "a",
            "models": ["m", "n"],
            "slots": 2,
            "in_flight": 2,
            "busy_s": 3.0,
            "done": 2,
            "ends_in_s": 95.0,
        },
        {
            "name": "b",
            "models": ["n"],
            "slots": 1,
            "in_flight": 0,
            "busy_s": None,
            "done": 0,
            "ends_in_s": None,
        },
    ]
    (queue,) = state["queues"]
    assert queue["round_trip_s"] > 0
    del queue["round_trip_s"]
    assert queue == {
        "model": "m",
        "operation": "evaluate",
        "queued": 1,
        "in_flight": 2,
        "done": 1,
        "failed": 1,
        "run_time_mean_s": 2.0,
        "run_time_p50_s": 2.0,
        "run_time_p95_s": 2.0,
        "prefetch": 0,
    }
    assert waiting in farm.scheduler._tasks


def test_every_queue_that_was_used_has_its_row(farm: Recorder) -> None:
    farm.join("w", slots=9)
    tasks = [farm.submit(call(operation=operation)) for operation in Operation]
    farm.expect(sent("w", *tasks))
    for task in tasks[:2]:
        farm.finish("w", task)
    farm.finish("w", tasks[2], ModelFailed("it raised"))
    farm.leave("w", drained=True)
    farm.expect(
        replied(tasks[0], 1.0, "w"),
        replied(tasks[1], 1.0, "w"),
        replied(tasks[2], ModelFailed, "w"),
    )
    rows = farm.scheduler.snapshot(farm.now)["queues"]
    assert [row["operation"] for row in rows] == [operation.value for operation in Operation]
    assert [row["queued"] for row in rows] == [0, 0, 0, 1, 1, 1]
