"""How many functions front door and worker call for one request: what it costs on any machine.

A number falls in the commit that lowers it. Rates and processor time depend on the machine; these
do not. `benchmarks/lone_call.py --only farm --profile 400` shows the functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
    "mip": (341, 167),
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

ROUNDS, REQUESTS, ROWS = 3, 160, 5000


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingFarm]:
    with counting_farm(tmp_path_factory.mktemp("counted")) as it:
        yield it


@pytest.mark.parametrize("protocol", ALONE)
def test_a_lone_call_costs_no_more_function_calls(counting: CountingFarm, protocol: str) -> None:
    with contextlib.closing(Caller(protocol, counting.addresses[protocol])) as caller:
        caller.call(REQUESTS)  # what is imported or learned at first
        counts = [
            FunctionCalls.of(profiled(counting.pid, caller, counting.profile, REQUESTS), REQUESTS)
            for _ in range(ROUNDS)
        ]
    check(counts, ALONE[protocol])


@pytest.mark.parametrize("protocol", AMONG_MANY)
def test_a_call_among_many_costs_no_more(counting: CountingFarm, protocol: str) -> None:
    requests = 10 * CALLERS
    with contextlib.closing(Callers(protocol, counting, CALLERS)) as callers:
        callers.call(requests)
        counts = [
            FunctionCalls.of(profiled(counting.pid, callers, counting.profile, requests), requests)
            for _ in range(ROUNDS)
        ]
    check(counts, AMONG_MANY[protocol], MORE_AMONG_MANY)


def test_a_lone_call_of_the_native_client_costs_no_more(counting: CountingFarm) -> None:
    with farm.connect(counting.run) as client:
        caller = NativeCaller(client)
        caller.call(REQUESTS)
        here = [FunctionCalls.of(caller.profiled(REQUESTS), REQUESTS) for _ in range(ROUNDS)]
        there = [
            FunctionCalls.of(profiled(counting.pid, caller, counting.profile, REQUESTS), REQUESTS)
            for _ in range(ROUNDS)
        ]
    check(here, NATIVE_CLIENT)
    check(there, NATIVE)


def test_a_lone_call_costs_the_worker_no_more(counting: CountingFarm) -> None:
    with contextlib.closing(Caller("farm", counting.addresses["farm"])) as caller:
        caller.call(REQUESTS)
        counts = [
            FunctionCalls.of(
                profiled(counting.worker, caller, counting.worker_profile, REQUESTS), REQUESTS
            )
            for _ in range(ROUNDS)
        ]
    check(counts, WORKER)


def test_a_row_costs_the_worker_no_more(counting: CountingFarm) -> None:
    with farm.connect(counting.run) as client:
        mapper = Mapper(client)
        mapper.call(ROWS)
        counts = [
            FunctionCalls.of(profiled(counting.worker, mapper, counting.worker_profile, ROWS), ROWS)
            for _ in range(ROUNDS)
        ]
    check(counts, WORKER_ROW, MORE_A_ROW)


def check(counts: list[FunctionCalls], most: tuple[int, int], more: int = MORE) -> None:
    """Check the least of some rounds."""
    assert min(count.all for count in counts) <= most[0] + more
    assert min(count.own for count in counts) <= most[1] + more
