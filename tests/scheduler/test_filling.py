"""The assignment of waiting tasks to workers, and its order."""

from __future__ import annotations

from farm.call import Operation
from farm.scheduler.filling import fill
from tests.scheduler.recorder import Recorder, call, replied, sent

DESCRIBE = call(operation=Operation.DESCRIBE)


def test_worker_gets_only_models_it_has(farm: Recorder) -> None:
    farm.join("a", "alpha")
    farm.join("b", "beta")
    first, second, third = farm.submit("beta"), farm.submit("beta"), farm.submit("alpha")
    farm.expect(sent("b", first), sent("a", third))
    farm.finish("a", third)
    farm.expect(replied(third, 1.0, "a"))
    farm.finish("b", first)
    farm.expect(replied(first, 1.0, "b"), sent("b", second))


def test_every_operation_waits_in_a_queue_of_its_own(farm: Recorder) -> None:
    farm.join("w")
    running = farm.submit()
    farm.expect(sent("w", running))
    tasks = [
        farm.submit(call(operation=operation))
        for operation in (Operation.GRADIENT, Operation.APPLY_JACOBIAN, Operation.APPLY_HESSIAN)
    ]
    for task in tasks:
        farm.finish("w", running)
        farm.expect(replied(running, 1.0, "w"), sent("w", task))
        running = task


def test_description_needs_no_free_worker(farm: Recorder) -> None:
    farm.join("w")
    tasks = farm.submit_many(2)
    farm.expect(sent("w", tasks[0]))
    described = farm.submit(DESCRIBE)
    farm.expect(sent("w", described))
    farm.finish("w", described, 0.001)
    farm.expect(replied(described, 0.001, "w"))  # and frees no slot
    farm.finish("w", tasks[0])
    farm.expect(replied(tasks[0], 1.0, "w"), sent("w", tasks[1]))


def test_description_goes_to_an_idle_worker_if_there_is_one(farm: Recorder) -> None:
    farm.join("idle")
    farm.join("busy")
    task = farm.submit()
    farm.expect(sent("busy", task))
    described = farm.submit(DESCRIBE)
    farm.expect(sent("idle", described))


def test_models_take_turns_at_a_worker_that_has_several(farm: Recorder) -> None:
    farm.join("w", "a", "b", slots=1)
    tasks = [farm.submit(name) for name in ("a", "a", "b", "b")]
    served = []
    for _ in tasks:
        farm.forget_actions()
        task = next(iter(farm.worker("w").held.values()))
        served.append(task.call.model)
        farm.finish("w", task.id)
    farm.forget_actions()
    assert served == ["a", "b", "a", "b"]


def test_only_the_pools_that_are_given_are_filled() -> None:
    farm = Recorder()
    farm.join("w", "a", slots=2)
    farm.join("other", "b")
    tasks = [farm.submit(name) for name in ("a", "a", "b")]
    sends = list(fill({farm.pool("a"): None}, farm.now))
    assert [(send.worker, [task.id for task in send.tasks]) for send in sends] == [("w", tasks[:2])]
    assert farm.queue("b").size == 1
