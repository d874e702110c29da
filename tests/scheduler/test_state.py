"""Which of a worker's tasks run and which wait."""

from __future__ import annotations

from farm.call import Operation
from farm.scheduler.state import needs_no_slot
from tests.support.scheduler_recorder import Recorder, call, model


def test_first_lots_fill_the_slots(farm: Recorder) -> None:
    batchable = model(max_batch=2)
    farm.join("w", batchable)
    farm.run_times().add(1e-9)
    tasks = farm.submit_many(5)
    described = farm.submit(call(operation=Operation.DESCRIBE))
    farm.forget_actions()
    worker = farm.worker("w")

    def ids(slots: int) -> list[list[int]]:
        return [[task.id for task in part] for part in worker.held_in_turn(slots)]

    assert ids(0) == [[described], tasks]
    assert ids(1) == [[described, *tasks[:2]], tasks[2:]]
    assert ids(2) == [[described, *tasks[:4]], tasks[4:]]
    assert ids(3) == [[described, *tasks], []]


def test_only_descriptions_need_no_slot() -> None:
    assert [op for op in Operation if needs_no_slot(op)] == [Operation.DESCRIBE]
