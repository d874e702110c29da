"""Warm workers are preferred once a warm-up is known to cost something, and never for long."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Call, ModelInfo, Operation
from farm.scheduler.affinity import POINT_BYTES, WARM_UPS, point_key
from farm.scheduler.state import TaskId
from tests.scheduler.recorder import SHORT_S, Recorder, call, model, sent
from tests.scheduler.scenarios import (
    chains_with_configs,
    gradients_at_home,
    sweep_over_configs,
)
from tests.scheduler.simulator import seeds

COLD_S, WARM_S = 3.0, 1.0
FIRST, *OTHERS = seeds(3)
SEED = pytest.mark.parametrize(
    "seed", [FIRST, *[pytest.param(seed, marks=pytest.mark.slow) for seed in OTHERS]]
)


def config(name: str) -> Call:
    return call(config=f'{{"mesh":"{name}"}}')


@pytest.fixture
def taught(farm: Recorder) -> Recorder:
    """A farm that knows that a change of config costs 2 s beside runs of 1 s."""
    farm.join("teacher")
    for name in "xyz":
        farm.run("teacher", config(name), COLD_S)
        farm.run("teacher", config(name), WARM_S)
    assert farm.queue().kinds.warm_up_s == pytest.approx(COLD_S - WARM_S)
    farm.leave("teacher", drained=True)
    farm.expect()
    return farm


def test_a_warm_up_that_costs_little_is_not_heeded(farm: Recorder) -> None:
    farm.join("w")
    for name in "xyzxyz":
        farm.run("w", config(name), 1.15)
        farm.run("w", config(name), 1.0)
    assert farm.queue().kinds.warm_up_s == 0.0


def test_a_warm_up_is_learned_where_configs_alternate(farm: Recorder) -> None:
    """No run would be warm, so calls of one config are tried one after another for a while."""
    farm.join("w")
    tasks = {farm.submit(config("abcd"[i % 4])): "abcd"[i % 4] for i in range(40)}
    ran: list[str] = []
    while farm.scheduler.actions(farm.now):
        (task,) = farm.worker("w").held
        seconds = WARM_S if ran and ran[-1] == tasks[task] else COLD_S
        ran.append(tasks[task])
        farm.after(seconds).finish("w", task, seconds)
        if not farm.queue().size and not farm.worker("w").held:
            break
    farm.forget_actions()
    assert farm.queue().kinds.warm_up_s == pytest.approx(COLD_S - WARM_S)
    assert sum(a != b for a, b in pairwise(ran)) < 20


def test_a_free_worker_takes_a_call_of_the_config_it_ran_last(taught: Recorder) -> None:
    taught.join("w")
    running = taught.begin("w", config("a"))
    other, mine = taught.submit(config("b")), taught.submit(config("a"))
    assert taught.task(other).passed_at is None
    taught.after(1.0).answer("w", running, 1.0, sent("w", mine))
    assert taught.task(other).passed_at == taught.now
    taught.after(1.0).answer("w", mine, 1.0, sent("w", other))


def test_a_description_for_a_config_changes_nothing(farm: Recorder) -> None:
    """Clients that ask for one before each new config would make every first run look warm."""
    farm.join("w")
    for name in "xyz":
        asked = call(operation=Operation.DESCRIBE, config=config(name).config)
        task = farm.begin("w", asked)
        farm.finish("w", task)
        farm.forget_actions()
        farm.run("w", config(name), COLD_S)
        farm.run("w", config(name), WARM_S)
    assert farm.queue().kinds.warm_up_s == pytest.approx(COLD_S - WARM_S)


@pytest.fixture
def prefetching(farm: Recorder) -> Recorder:
    """A farm that prefetches a call, with a change of config that doubles a run of 1.5 ms."""
    farm.join("teacher")
    for name in "abz":
        farm.run("teacher", config(name), 2 * SHORT_S)
        farm.run("teacher", config(name), SHORT_S)
    assert farm.run_times().prefetch == 1
    farm.leave("teacher", drained=True)
    farm.expect()
    return farm


def test_a_busy_worker_prefetches_a_call_of_its_config(prefetching: Recorder) -> None:
    prefetching.join("w")
    prefetching.begin("w", config("a"))
    prefetching.submit(config("b"))
    prefetching.begin("w", config("a"))


def test_a_call_is_prefetched_where_its_config_runs(prefetching: Recorder) -> None:
    prefetching.join("v")
    prefetching.join("w")
    for name, worker in (("a", "v"), ("b", "w"), ("a", "v"), ("b", "w")):
        prefetching.expect(sent(worker, prefetching.submit(config(name))))
    prefetching.submit(config("a"))
    prefetching.expect()


def test_it_does_so_only_among_calls_of_the_client_whose_turn_it_is(taught: Recorder) -> None:
    taught.join("w")
    running = taught.begin("w", config("a"), client="one")
    mine = taught.submit(config("a"), client="one")
    theirs = taught.submit(config("b"), client="two")
    taught.after(1.0).answer("w", running, 1.0, sent("w", theirs))
    taught.scheduler.cancel(mine)


def test_no_call_is_passed_over_for_longer_than_two_warm_ups(taught: Recorder) -> None:
    taught.join("w")
    running = taught.begin("w", config("a"))
    other = taught.submit(config("b"))
    mine = [taught.submit(config("a")) for _ in range(20)]
    first_passed_at = taught.now + 1.0
    for following in mine:
        taught.after(1.0).finish("w", running, 1.0)
        taught.forget_actions()
        if other in taught.worker("w").held:
            break
        assert following in taught.worker("w").held
        running = following
    waited_s = taught.now - first_passed_at
    warm_up_s = taught.queue().kinds.warm_up_s
    assert WARM_UPS * warm_up_s <= waited_s <= WARM_UPS * warm_up_s + 1.0


def test_a_config_that_no_worker_has_goes_before_one_of_a_busy_worker(taught: Recorder) -> None:
    taught.join("v")
    taught.begin("v", config("a"))
    held, new = taught.submit(config("a")), taught.submit(config("b"))
    taught.join("w")
    taught.expect(sent("w", new))
    taught.scheduler.cancel(held)


def test_a_call_goes_to_the_idle_worker_that_is_warm_for_it(taught: Recorder) -> None:
    for worker, name in (("v", "a"), ("w", "b")):
        taught.join(worker)
        taught.run(worker, config(name), COLD_S)
    taught.begin("v", config("a"))
    taught.begin("w", config("b"))


def test_a_new_config_goes_to_the_worker_that_is_missed_least(taught: Recorder) -> None:
    """One that has run nothing, else one whose config another has, else the one idle longest."""
    for worker, name in (("u", "a"), ("v", "b")):
        taught.join(worker)
        taught.run(worker, config(name), COLD_S)
    taught.join("fresh")
    taught.run("fresh", config("c"), COLD_S)
    taught.run("u", config("d"), COLD_S)  # u has been idle longest
    assert set(taught.queue().model.by_config) == {config(name).config for name in "bcd"}


def test_what_a_worker_had_is_forgotten_with_it(taught: Recorder) -> None:
    taught.join("w")
    taught.run("w", config("a"), COLD_S)
    taught.leave("w")
    taught.expect()
    assert taught.queue().model.by_config == {}


@SEED
def test_a_sweep_over_configs_warms_each_worker_about_once(seed: int) -> None:
    assert sweep_over_configs(seed) <= 1.2


@SEED
def test_chains_that_pause_find_their_worker_warm(seed: int) -> None:
    assert chains_with_configs(seed, lasts_s=100.0) <= 1.05


def test_without_preference_both_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.scheduler.filling.matters", lambda head: False)
    assert sweep_over_configs(FIRST) > 1.8
    assert chains_with_configs(FIRST, lasts_s=100.0) > 1.3


# The same point


def keeping() -> ModelInfo:
    return model(keeps_point=True)


def point(value: float, operation: Operation = Operation.EVALUATE) -> Call:
    made = call(operation=operation)
    return Call(made.model, operation, (np.full(3, value),), made.config, made.derivative)


def evaluated(farm: Recorder, worker: str, value: float) -> None:
    farm.run(worker, point(value))


def test_a_gradient_goes_to_the_worker_that_evaluated_its_point(farm: Recorder) -> None:
    farm.join("v", keeping())
    evaluated(farm, "v", 1.0)
    farm.join("w", keeping())
    evaluated(farm, "w", 2.0)
    for value, worker in ((1.0, "v"), (2.0, "w")):
        farm.begin(worker, point(value, Operation.GRADIENT))


def test_a_value_with_its_gradient_marks_its_point(farm: Recorder) -> None:
    farm.join("v", keeping())
    task = farm.begin("v", point(1.0, Operation.VALUE_AND_GRADIENT))
    farm.after(1.0).answer("v", task, 1.0)
    farm.join("w", keeping())
    evaluated(farm, "w", 2.0)
    task = farm.begin("v", point(1.0, Operation.APPLY_HESSIAN))


def gradients_known(
    farm: Recorder, seconds: float, operation: Operation = Operation.GRADIENT
) -> None:
    farm.join("teacher", keeping())
    farm.run("teacher", point(0.0, operation), seconds)
    farm.leave("teacher", drained=True)
    farm.expect()


@pytest.fixture
def busy(farm: Recorder) -> tuple[Recorder, TaskId, TaskId]:
    """Worker v has evaluated point 1 and runs something else; w idles, a gradient waits."""
    gradients_known(farm, 10.0)
    farm.join("v", keeping())
    evaluated(farm, "v", 1.0)
    other = farm.begin("v", point(3.0, Operation.GRADIENT))
    farm.join("w", keeping())
    task = farm.submit(point(1.0, Operation.GRADIENT))
    farm.expect()
    return farm, other, task


def test_it_waits_a_tenth_of_a_run_for_that_worker(
    busy: tuple[Recorder, TaskId, TaskId],
) -> None:
    farm, other, task = busy
    assert farm.scheduler.wakeup() == pytest.approx(farm.now + 1.0)
    farm.after(0.9).answer("v", other, 10.0, sent("v", task))


def test_a_value_with_its_gradient_does_not_wait_for_a_worker(farm: Recorder) -> None:
    gradients_known(farm, 10.0, Operation.VALUE_AND_GRADIENT)
    farm.join("v", keeping())
    evaluated(farm, "v", 1.0)
    farm.expect(sent("v", farm.submit(point(3.0, Operation.APPLY_JACOBIAN))))
    farm.join("w", keeping())
    farm.begin("w", point(1.0, Operation.VALUE_AND_GRADIENT))


def test_and_no_longer(busy: tuple[Recorder, TaskId, TaskId]) -> None:
    farm, _, task = busy
    farm.after(0.9).expect()
    farm.after(0.11).expect(sent("w", task))


@pytest.mark.parametrize("chains", [6, *[pytest.param(n, marks=pytest.mark.slow) for n in (4, 8)]])
def test_gradients_run_where_their_point_was_evaluated(chains: int) -> None:
    assert gradients_at_home(FIRST, chains, lasts_s=100.0) >= 0.95


def test_many_derivatives_at_one_point_do_not_wait_one_by_one(farm: Recorder) -> None:
    """The columns of a Jacobian, for example, must not start a tenth of a run apart."""
    gradients_known(farm, 10.0)
    farm.join("v", keeping())
    evaluated(farm, "v", 1.0)
    for name in "abc":
        farm.join(name, keeping())
    tasks = [farm.submit(point(1.0, Operation.GRADIENT)) for _ in range(4)]
    farm.expect(sent("v", tasks[0]))
    farm.after(1.01).expect(*(sent(w, t) for w, t in zip("cba", tasks[1:], strict=True)))


def test_models_that_keep_nothing_have_no_such_preference(farm: Recorder) -> None:
    farm.join("v")
    evaluated(farm, "v", 1.0)
    farm.join("w")
    farm.begin("w", point(1.0, Operation.GRADIENT))
    assert farm.queue().model.by_point == {}


def test_the_key_of_a_point_reads_four_kilobytes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    crc32 = zlib.crc32

    def counted(data: bytes, start: int = 0) -> int:
        nonlocal read
        read += len(data)
        return crc32(data, start)

    monkeypatch.setattr(zlib, "crc32", counted)
    large = Call("m", Operation.EVALUATE, (np.ones(10**7), np.ones(10**6, "float32")))
    point_key(large)
    assert read <= POINT_BYTES + 100
    strings = Call("m", Operation.EVALUATE, (np.array([b"x" * 10**6] * 1000, object),))
    read = 0
    point_key(strings)
    assert read <= POINT_BYTES + 100


arrays = st.lists(
    st.lists(st.floats(-1, 1), min_size=1, max_size=5).map(np.array), min_size=1, max_size=3
)


@given(arrays, arrays)
def test_equal_points_have_one_key_and_others_another(
    one: list[np.ndarray], two: list[np.ndarray]
) -> None:
    def key(inputs: list[np.ndarray]) -> int:
        return point_key(Call("m", Operation.EVALUATE, tuple(np.array(x) for x in inputs)))

    same = len(one) == len(two) and all(
        x.tobytes() == y.tobytes() for x, y in zip(one, two, strict=True)
    )
    assert (key(one) == key(two)) == same
    assert key(one) == key([x.copy() for x in one])


def test_a_question_about_the_cost_warms_no_worker(taught: Recorder) -> None:
    """The call waits for no warm worker and passes none, as no worker has run that config."""
    taught.join("w")
    taught.run("w", config("a"), COLD_S)
    asked = replace(config("b"), operation=Operation.COST)
    taught.run("w", asked, 0.1)
    assert set(taught.queue().model.by_config) == {config("a").config}
