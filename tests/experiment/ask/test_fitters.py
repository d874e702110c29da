"""Work in processes: experiments run independently, and a lost process costs only time."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from farm.errors import InvalidInput, Unavailable
from farm.experiment.ask.execute import execute, needs_surrogate
from farm.experiment.ask.fitters import Fitters
from farm.experiment.config.reader import read_config
from farm.experiment.config.work import Data, Generate, Generated, Query, QueryKind, Work
from tests.support.coroutines import LIMIT_S, on_loop, until, wait_until

CONFIG = read_config(
    {
        "common": {"parnames": "[x, y]", "outcome_types": "[continuous]", "strategy_names": "[s]"},
        "x": {"par_type": "continuous", "lower_bound": 0, "upper_bound": 1},
        "y": {"par_type": "continuous", "lower_bound": -5, "upper_bound": 5},
        "s": {
            "generator": "RandomGenerator",
            "min_asks": 10,
        },  # needs no slow import
    }
)
NONE = Data(np.empty((0, 1, 2)), np.empty((0, 1)), 1)


def ask(count: int, asked: int = 0) -> Generate:
    return Generate(CONFIG, 0, count, asked, NONE, np.empty((0, 1, 2)), seed=7)


@asynccontextmanager
async def fitters(most: int = 4, idle_s: float = 600.0) -> AsyncIterator[Fitters]:
    """Return fitters that do all work in processes."""
    several = Fitters(most=most, idle_s=idle_s, in_processes=True, libraries=False)
    try:
        yield several
    finally:
        several.stop()


async def points(several: Fitters, number: int, work: Work) -> list[object]:
    result = await asyncio.wait_for(several.execute(number, work), LIMIT_S)
    assert isinstance(result, Generated)
    listed: list[object] = result.points.tolist()
    return listed


def expected(work: Work) -> list[object]:
    result = execute(work)
    assert isinstance(result, Generated)
    listed: list[object] = result.points.tolist()
    return listed


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@on_loop
async def test_a_process_gives_what_this_one_would_and_is_kept() -> None:
    async with fitters() as several:
        assert await points(several, 0, ask(3)) == expected(ask(3))
        pid = several.pids[0]
        assert await points(several, 0, ask(2, asked=3)) == expected(ask(2, asked=3))
        assert several.pids == {0: pid}
        several.stop()
        await until(lambda: not lives(pid))
        with pytest.raises(Unavailable, match="stops"):
            await several.execute(0, ask(1))


@on_loop
async def test_what_is_quick_needs_no_process() -> None:
    several = Fitters()
    assert await points(several, 0, ask(3)) == expected(ask(3))
    assert several.pids == {}
    several.stop()


def test_what_is_quick() -> None:
    assert not needs_surrogate(ask(1))
    model = {"generator": "OptimizeAcqfGenerator", "acqf": "qUpperConfidenceBound"}
    config = read_config(
        {
            "common": {
                "parnames": "[x]",
                "outcome_types": "[continuous]",
                "strategy_names": "[s]",
                "lb": "[0]",
                "ub": "[1]",
            },
            "s": {**model, "model": "GPRegressionModel", "min_asks": 10},
        }
    )
    work = Generate(config, 0, 1, 0, NONE, np.empty((0, 1, 1)))
    assert needs_surrogate(work)
    assert not needs_surrogate(Generate(config, 0, 1, 0, NONE, np.empty((0, 1, 1)), filler=True))


def test_a_sequence_that_ends_by_its_surrogate_is_not_quick_once_there_is_data() -> None:
    data = {**CONFIG.sections, "s": {"generator": "RandomGenerator", "min_post_range": 0.5}}
    measured = {**data, "s": {**data["s"], "model": "GPRegressionModel"}}
    told = Data(np.zeros((1, 1, 2)), np.ones((1, 1)), 1)
    for sections, known, quick in (
        (measured, told, False),
        (measured, NONE, True),
        (data, told, True),
    ):
        work = Generate(read_config(sections), 0, 1, 0, known, np.empty((0, 1, 2)))
        assert needs_surrogate(work) is not quick
    assert not needs_surrogate(Generate(read_config(measured), 0, 1, 0, told, NONE.x, filler=True))


@on_loop
async def test_a_mistake_is_an_error_and_no_more() -> None:
    async with fitters() as several:
        with pytest.raises(InvalidInput, match="has no model"):
            await several.execute(0, Query(CONFIG, 0, QueryKind.MAX, NONE))
        with pytest.raises(Unavailable, match="IndexError"):
            await several.execute(0, Generate(CONFIG, 9, 1, 0, NONE, np.empty((0, 1, 2))))
        pid = several.pids[0]
        assert await points(several, 0, ask(1)) == expected(ask(1))
        assert several.pids[0] == pid


@on_loop
async def test_a_slow_one_keeps_nobody_waiting() -> None:
    async with fitters(most=2) as several:
        await points(several, 0, ask(1))
        os.kill(several.pids[0], signal.SIGSTOP)
        slow = asyncio.create_task(several.execute(0, ask(1)))
        assert await points(several, 1, ask(2)) == expected(ask(2))
        assert await points(several, 2, ask(3)) == expected(ask(3))  # in 1's place
        assert not slow.done()
        assert sorted(several.pids) == [0, 2]
        os.kill(several.pids[0], signal.SIGCONT)
        await asyncio.wait_for(slow, LIMIT_S)


@on_loop
async def test_the_one_idle_for_longest_makes_room() -> None:
    async with fitters(most=2) as several:
        for number in (0, 1, 0, 2):
            await points(several, number, ask(1))
        assert list(several.pids) == [0, 2]


@on_loop
async def test_one_may_be_made_ready_where_there_is_room() -> None:
    async with fitters(most=1) as several:
        several.warm(0)
        await until(lambda: several.pids)
        (pid,) = several.pids.values()
        several.warm(0)
        several.warm(1)
        assert several.pids == {0: pid}
        assert await points(several, 1, ask(1)) == expected(ask(1))
        assert list(several.pids) == [1]
        several.stop()
        several.warm(2)
        assert several.pids == {}


@pytest.mark.slow
@on_loop
async def test_one_that_was_made_ready_works() -> None:
    async with fitters() as several:
        several.warm(0)
        await until(lambda: several.pids)
        before = several.pids
        assert await points(several, 0, ask(1)) == expected(ask(1))
        assert several.pids == before


@on_loop
async def test_one_that_is_not_used_ends() -> None:
    async with fitters(idle_s=0.05) as several:
        await points(several, 0, ask(1))
        await until(lambda: not several.pids)
        assert await points(several, 0, ask(1)) == expected(ask(1))


@on_loop
async def test_the_parent_lives_as_long_as_one_of_its_processes() -> None:
    async with fitters(idle_s=0.05) as several:
        await points(several, 0, ask(1))
        parent = several.parent_pid
        assert parent is not None
        await until(lambda: several.parent_pid is None)
        assert not several.pids
        assert not lives(parent)
    async with fitters(most=1) as several:
        await points(several, 0, ask(1))
        parent = several.parent_pid
        await points(several, 1, ask(1))  # in 0's place
        assert several.parent_pid == parent


@on_loop
async def test_another_parent_takes_the_place_of_one_that_is_killed() -> None:
    async with fitters() as several:
        await points(several, 0, ask(1))
        child, parent = several.pids[0], several.parent_pid
        assert parent is not None
        os.kill(parent, signal.SIGKILL)
        await until(lambda: not lives(parent))
        assert await points(several, 1, ask(2)) == expected(ask(2))
        assert several.parent_pid not in (None, parent)
        # Its child is replaced, too: nothing would report the end of it.
        assert await points(several, 0, ask(3)) == expected(ask(3))
        await until(lambda: not lives(child))


def memory(pid: int, kind: str) -> int:
    """Return a sum of a process's memory in KiB; kind: Rss, Private_Dirty, Pss, ..."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


@pytest.mark.slow
@on_loop
async def test_processes_share_the_memory_of_the_libraries() -> None:
    several = Fitters()
    config = read_config(
        {
            "common": {
                "parnames": "[x]", "outcome_types": "[continuous]", "strategy_names": "[s]",
                "lb": "[0]", "ub": "[1]",
            },
            "s": {
                "generator": "OptimizeAcqfGenerator", "model": "GPRegressionModel",
                "acqf": "qLogNoisyExpectedImprovement", "min_asks": 10,
            },
        }
    )  # fmt: skip
    x = np.linspace(0, 1, 8).reshape(-1, 1, 1)
    work = Generate(config, 0, 1, 0, Data(x, np.sin(9 * x[:, 0]), 8), x[:0], seed=1)
    try:
        first, second = [await several.execute(number, work) for number in (0, 1)]
        assert isinstance(first, Generated)
        assert isinstance(second, Generated)
        assert np.array_equal(first.points, second.points)
        parent = several.parent_pid
        assert parent is not None
        # Its one thread is what makes forking it safe.
        assert len(os.listdir(f"/proc/{parent}/task")) == 1
        for pid in several.pids.values():
            own = memory(pid, "Private_Dirty") + memory(pid, "Private_Clean")
            assert own < memory(parent, "Rss") / 4
    finally:
        several.stop()


@on_loop
async def test_work_of_a_killed_process_is_done_again_once() -> None:
    async with fitters() as several:
        await points(several, 0, ask(1))
        first = several.pids[0]
        os.kill(first, signal.SIGSTOP)
        work = asyncio.create_task(points(several, 0, ask(3)))
        await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        assert await work == expected(ask(3))
        assert several.pids[0] != first


class Calls:
    """Work whose process calls a function while it reads it."""

    def __init__(self, function: Callable[..., object], *values: object) -> None:
        self._call = function, values

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._call


def calls(function: Callable[..., object], *values: object) -> Work:
    return cast(Work, Calls(function, *values))


@on_loop
async def test_killed_twice_is_an_error_and_the_next_ask_is_well() -> None:
    async with fitters() as several:
        with pytest.raises(Unavailable, match="died 2 times: killed"):
            await several.execute(0, calls(signal.raise_signal, signal.SIGKILL))
        assert await points(several, 0, ask(3)) == expected(ask(3))


@on_loop
async def test_one_killed_while_idle_is_not_missed() -> None:
    async with fitters() as several:
        await points(several, 0, ask(1))
        pid = several.pids[0]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not lives(pid))
        assert await points(several, 0, ask(1)) == expected(ask(1))


@on_loop
async def test_cancelled_work_ends_with_its_process() -> None:
    async with fitters(most=1) as several:
        await points(several, 0, ask(1))
        pid = several.pids[0]
        os.kill(pid, signal.SIGSTOP)
        work = asyncio.create_task(several.execute(0, ask(3)))
        waiting = asyncio.create_task(several.execute(1, ask(3)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        work.cancel()
        done, _ = await asyncio.wait({work, waiting}, timeout=LIMIT_S)
        assert all(one.cancelled() for one in done)
        assert not lives(pid)
        assert await points(several, 1, ask(1)) == expected(ask(1))


@pytest.mark.parametrize("stops", [False, True])
@on_loop
async def test_work_ends_before_its_process_has_started(stops: bool) -> None:
    async with fitters() as several:
        await points(several, 0, ask(1))
        parent = several.parent_pid
        assert parent is not None
        os.kill(parent, signal.SIGSTOP)  # as one that is still importing, for longer
        work = asyncio.create_task(several.execute(1, ask(3)))
        await asyncio.sleep(0)
        if stops:
            several.stop()
        else:
            work.cancel()
        await asyncio.wait({work}, timeout=LIMIT_S)
        assert work.done()
        if stops:
            assert isinstance(work.exception(), Unavailable)
            await until(lambda: not lives(parent))
            return
        assert work.cancelled()
        os.kill(parent, signal.SIGCONT)
        assert await points(several, 1, ask(3)) == expected(ask(3))
        assert several.parent_pid == parent


def open_in(pid: int) -> set[str]:
    """Return what a process has open besides its standard streams."""
    folder = Path(f"/proc/{pid}/fd")
    return {os.readlink(folder / name) for name in os.listdir(folder) if int(name) > 2}


@on_loop
async def test_a_process_holds_no_descriptor_of_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as front_door:
        front_door.set_inheritable(True)
        name = os.readlink(f"/proc/self/fd/{front_door.fileno()}")
        async with fitters() as several:
            for number in (0, 1, 2):
                await points(several, number, ask(1))
            parent = several.parent_pid
            assert parent is not None
            sets = [open_in(pid) for pid in (parent, *several.pids.values())]
    # Its socket and its lifeline.
    assert [len(each) for each in sets[1:]] == [2, 2, 2]
    assert len(set.union(*sets)) == sum(len(each) for each in sets)
    assert name not in set.union(*sets)


@on_loop
async def test_stop_ends_work_that_runs() -> None:
    async with fitters() as several:
        await points(several, 0, ask(1))
        pid = several.pids[0]
        os.kill(pid, signal.SIGSTOP)
        work = asyncio.create_task(several.execute(0, ask(3)))
        await asyncio.sleep(0.01)
        several.stop()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(work, LIMIT_S)
        await until(lambda: not lives(pid))


SERVER = """
from farm.experiment.ask.fitters import Fitter, Parent

parent = Parent(libraries=False)
fitter = Fitter(parent)
while fitter.pid is None:
    pass
print(fitter.pid, parent.pid, flush=True)
input()
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_processes_end_with_a_server_that_is_killed(stopped: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        pids = [int(pid) for pid in server.stdout.readline().split()]
        if stopped:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        server.kill()
    wait_until(lambda: not any(lives(pid) for pid in pids))
