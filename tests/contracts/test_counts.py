"""How many functions front door and worker call for one request: what it costs on any machine.

A number falls in the commit that lowers it. Rates and processor time depend on the machine; these
do not. `benchmarks/lone_call.py --only farm --profile 400` shows the functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import farm
from tests.support.lone_caller import (
    Caller,
    Callers,
    CountingFarm,
    FunctionCalls,
    Mapper,
    NativeCaller,
    counting_farm,
    profiled,
)

ALONE = {
    "farm": (241, 122),
    "kserve": (317, 166),
    "grpc": (231, 123),
    "graphpipe": (247, 126),
    "mip": (336, 166),
}
"""By protocol, of one caller who waits for each answer: all calls, and those of farm's own."""

NATIVE, NATIVE_CLIENT = (236, 116), (83, 35)
"""The same of `model(x)` of farm's own client: of the front door, and of the calling thread."""

WORKER, WORKER_ROW = (94, 36), (17, 5)
"""The same of the worker: for one caller of UM-Bridge, and for a row among many of `map`."""

CALLERS = 64
AMONG_MANY = {
    "farm": (95, 45),
    "kserve": (172, 89),
    "grpc": (84, 46),
    "graphpipe": (101, 49),
    "mip": (263, 124),
}
"""The same of each of so many callers, who call at the same time."""

MORE, MORE_AMONG_MANY = 3, 20
"""A number may rise by so many, as when a timer rings. How many calls run as one task depends on
how long the model took in the runs before."""

MORE_A_ROW = 2
"""Those of a row may rise by so many. How many rows a run has depends on the machine."""

ROUNDS = 12
"""So many at most: a busy machine changes what happens in some of them."""
REQUESTS, ROWS = 160, 5000


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingFarm]:
    with counting_farm(tmp_path_factory.mktemp("counted")) as it:
        yield it


@pytest.mark.parametrize("protocol", ALONE)
def test_a_lone_call_costs_no_more_function_calls(counting: CountingFarm, protocol: str) -> None:
    with contextlib.closing(Caller(protocol, counting.addresses[protocol])) as caller:
        caller.call(REQUESTS)  # what is imported or learned at first
        check(lambda: of_front_door(counting, caller), ALONE[protocol])


@pytest.mark.parametrize("protocol", AMONG_MANY)
def test_a_call_among_many_costs_no_more(counting: CountingFarm, protocol: str) -> None:
    many = 10 * CALLERS
    with contextlib.closing(Callers(protocol, counting, CALLERS)) as callers:
        callers.call(many)
        count = partial(of_front_door, counting, callers, many)
        check(count, AMONG_MANY[protocol], MORE_AMONG_MANY)


def test_a_lone_call_of_the_native_client_costs_no_more(counting: CountingFarm) -> None:
    with farm.connect(counting.run) as client:
        caller = NativeCaller(client)
        caller.call(REQUESTS)
        check(lambda: FunctionCalls.of(caller.profiled(REQUESTS), REQUESTS), NATIVE_CLIENT)
        check(lambda: of_front_door(counting, caller), NATIVE)


def test_a_lone_call_costs_the_worker_no_more(counting: CountingFarm) -> None:
    with contextlib.closing(Caller("farm", counting.addresses["farm"])) as caller:
        caller.call(REQUESTS)
        check(lambda: of_worker(counting, caller, REQUESTS), WORKER)


def test_a_row_costs_the_worker_no_more(counting: CountingFarm) -> None:
    with farm.connect(counting.run) as client:
        mapper = Mapper(client)
        mapper.call(ROWS)
        check(lambda: of_worker(counting, mapper, ROWS), WORKER_ROW, MORE_A_ROW)


def of_front_door(
    counting: CountingFarm, caller: Caller | Callers | NativeCaller, requests: int = REQUESTS
) -> FunctionCalls:
    found = profiled(counting.pid, caller, counting.profile, requests)
    return FunctionCalls.of(found, requests)


def of_worker(counting: CountingFarm, caller: Caller | Mapper, requests: int) -> FunctionCalls:
    found = profiled(counting.worker, caller, counting.worker_profile, requests)
    return FunctionCalls.of(found, requests)


def check(count: Callable[[], FunctionCalls], most: tuple[int, int], more: int = MORE) -> None:
    """Count until a round is within the bounds, `ROUNDS` times at most."""
    rounds = []
    for _ in range(ROUNDS):
        rounds.append(count())
        if rounds[-1].all <= most[0] + more and rounds[-1].own <= most[1] + more:
            return
    pytest.fail(f"{rounds}: at most {most} expected, and {more} more")
