"""How many functions the front door calls for one request: what a call costs on any machine.

A number falls in the commit that lowers it. Rates and processor time depend on the machine; these
do not. `benchmarks/lone_call.py --only farm --profile 400` shows the functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.lone_caller import Caller, CountingFarm, FunctionCalls, counting_farm, profiled

ALONE = {
    "farm": (366, 178),
    "kserve": (439, 224),
    "grpc": (480, 237),
    "graphpipe": (364, 179),
    "mip": (430, 207),
}
"""By protocol, of one caller who waits for each answer: all calls, and those of farm's own."""

MORE = 3
"""A number may rise by so many, as when a timer rings."""

ROUNDS, REQUESTS = 3, 160


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingFarm]:
    with counting_farm(tmp_path_factory.mktemp("counted")) as it:
        yield it


@pytest.mark.parametrize("protocol", ALONE)
def test_a_lone_call_costs_no_more_function_calls(farm: CountingFarm, protocol: str) -> None:
    with contextlib.closing(Caller(protocol, farm.addresses[protocol])) as caller:
        caller.call(REQUESTS)  # what is imported or learned at first
        counts = [
            FunctionCalls.of(profiled(farm.pid, caller, farm.profile, REQUESTS), REQUESTS)
            for _ in range(ROUNDS)
        ]
    every, own = ALONE[protocol]
    assert min(count.all for count in counts) <= every + MORE
    assert min(count.own for count in counts) <= own + MORE
