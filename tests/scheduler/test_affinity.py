"""Warm workers are preferred once a warm-up is known to cost something, and never for long."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Call, Operation
from farm.scheduler.affinity import POINT_BYTES, WARM_UPS, point_key
from tests.support.scheduler_recorder import SHORT_S, Recorder, call, model, sent
from tests.support.scheduler_scenarios import (
    chains_with_configs,
    gradients_at_home,
    sweep_over_configs,
)
from tests.support.scheduler_simulator import FIRST, SEED

COLD_S, WARM_S = 3.0, 1.0


def config(name: str) -> Call:
    return call(config=f'{{"mesh":"{name}"}}')


def teach(farm: Recorder, names: str, cold_s: float, warm_s: float) -> Recorder:
    """Let a worker run calls of configs, each twice, and leave."""
    farm.join("teacher")
    for name in names:
        farm.run("teacher", config(name), cold_s)
        farm.run("teacher", config(name), warm_s)
    farm.leave("teacher", drained=True)
    farm.expect()
    return farm


@pytest.fixture
def taught(farm: Recorder) -> Recorder:
    """A farm that knows that a change of config costs 2 s beside runs of 1 s."""
    teach(farm, "xyz", COLD_S, WARM_S)
    assert farm.queue().kinds.warm_up_s == pytest.approx(COLD_S - WARM_S)
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
    tasks = {farm.submit(config(name)): name for name in "abcd" * 10}
    ran: list[str] = []
    while farm.act():
        if not (held := farm.worker("w").held):
            break
        (task,) = held
        seconds = WARM_S if ran and ran[-1] == tasks[task] else COLD_S
        ran.append(tasks[task])
        farm.after(seconds).finish("w", task, seconds)
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
        farm.run("w", replace(config(name), operation=Operation.DESCRIBE), 0.0)
        farm.run("w", config(name), COLD_S)
        farm.run("w", config(name), WARM_S)
    assert farm.queue().kinds.warm_up_s == pytest.approx(COLD_S - WARM_S)


@pytest.fixture
def prefetching(farm: Recorder) -> Recorder:
    """A farm that prefetches a call, with a change of config that doubles a run of 1.5 ms."""
    teach(farm, "abz", 2 * SHORT_S, SHORT_S)
    assert farm.run_times().prefetch == 1
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
        prefetching.begin(worker, config(name))
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


def test_a_call_goes_to_the_idle_worker_that_is_warm_for_it_or_missed_least(
    taught: Recorder,
) -> None:
    """One that has run nothing, else one whose config another has, else the one idle longest."""
    for worker, name in (("u", "a"), ("v", "b")):
        taught.join(worker)
        taught.run(worker, config(name), COLD_S)
    taught.run("u", config("a"), WARM_S)
    taught.run("v", config("b"), WARM_S)
    taught.join("fresh")
    taught.run("fresh", config("c"), COLD_S)
    taught.run("u", config("d"), COLD_S)  # u has been idle longest
    assert set(taught.queue().model.by_config) == {config(name).config for name in "bcd"}
    taught.leave("u")
    taught.expect()
    assert set(taught.queue().model.by_config) == {config(name).config for name in "bc"}


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


KEEPING = model(keeps_point=True)


def point(value: float, operation: Operation = Operation.EVALUATE) -> Call:
    return replace(call(operation=operation), inputs=(np.full(3, value),))


@pytest.mark.parametrize("first", [Operation.EVALUATE, Operation.VALUE_AND_GRADIENT])
def test_a_derivative_goes_to_the_worker_that_evaluated_its_point(
    farm: Recorder, first: Operation
) -> None:
    for worker, value in (("v", 1.0), ("w", 2.0)):
        farm.join(worker, KEEPING)
        farm.run(worker, point(value, first))
    farm.begin("v", point(1.0, Operation.GRADIENT))
    farm.begin("w", point(2.0, Operation.APPLY_HESSIAN))


def evaluated(farm: Recorder, operation: Operation = Operation.GRADIENT) -> None:
    """Worker v has evaluated point 1; a run of `operation` takes 10 s."""
    farm.join("teacher", KEEPING)
    farm.run("teacher", point(0.0, operation), 10.0)
    farm.leave("teacher", drained=True)
    farm.expect()
    farm.join("v", KEEPING)
    farm.run("v", point(1.0))


@pytest.mark.parametrize("ends", [True, False])
def test_it_waits_a_tenth_of_a_run_for_that_worker(farm: Recorder, ends: bool) -> None:
    evaluated(farm)
    other = farm.begin("v", point(3.0, Operation.GRADIENT))
    farm.join("w", KEEPING)
    task = farm.submit(point(1.0, Operation.GRADIENT))
    farm.expect()
    assert farm.scheduler.wakeup() == pytest.approx(farm.now + 1.0)
    farm.after(0.9).expect()
    if ends:
        farm.answer("v", other, 10.0, sent("v", task))
    else:
        farm.after(0.11).expect(sent("w", task))


@pytest.mark.parametrize("chains", [6, *[pytest.param(n, marks=pytest.mark.slow) for n in (4, 8)]])
def test_gradients_run_where_their_point_was_evaluated(chains: int) -> None:
    assert gradients_at_home(FIRST, chains, lasts_s=100.0) >= 0.95


def test_many_derivatives_at_one_point_do_not_wait_one_by_one(farm: Recorder) -> None:
    """The columns of a Jacobian, for example, must not start a tenth of a run apart."""
    evaluated(farm)
    for name in "abc":
        farm.join(name, KEEPING)
    tasks = farm.submit_many(4, point(1.0, Operation.GRADIENT))
    farm.expect(sent("v", tasks[0]))
    farm.after(1.01).expect(*(sent(w, t) for w, t in zip("cba", tasks[1:], strict=True)))


def test_models_that_keep_nothing_have_no_such_preference(farm: Recorder) -> None:
    farm.join("v")
    farm.run("v", point(1.0))
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
