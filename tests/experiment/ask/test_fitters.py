"""Work in processes: experiments run independently, and a lost process costs only time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from farm.errors import InvalidInput, Unavailable
from farm.experiment.ask.execute import execute, needs_surrogate
from farm.experiment.ask.fitters import Fitter, Fitters
from farm.experiment.config.reader import read_config
from farm.experiment.work import Data, Generate, Generated, Query, QueryKind, Work
from farm.machine import fork_parent
from farm.machine.job_process import JobProcess, ProcessDied
from tests.experiment.models import configs
from tests.support.coroutines import LIMIT_S, until
from tests.support.ended import has_ended

ROOT = Path(__file__).parents[3]

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


def listed(result: object) -> list[object]:
    assert isinstance(result, Generated)
    points: list[object] = result.points.tolist()
    return points


async def points(several: Fitters, number: int, work: Work) -> list[object]:
    return listed(await asyncio.wait_for(several.execute(number, work), LIMIT_S))


def expected(work: Work) -> list[object]:
    return listed(execute(work))


async def test_a_process_gives_what_this_one_would_and_is_kept() -> None:
    async with fitters() as several:
        assert await points(several, 0, ask(3)) == expected(ask(3))
        pid = several.pids[0]
        assert await points(several, 0, ask(2, asked=3)) == expected(ask(2, asked=3))
        assert several.pids == {0: pid}
        several.stop()
        await until(lambda: has_ended(pid))
        with pytest.raises(Unavailable, match="stops"):
            await several.execute(0, ask(1))


async def test_what_is_quick_needs_no_process() -> None:
    several = Fitters()
    assert await points(several, 0, ask(3)) == expected(ask(3))
    assert several.pids == {}
    several.stop()


SURROGATE = {"model": "GPRegressionModel"}
OPTIMIZED = SURROGATE | {"generator": "OptimizeAcqfGenerator", "acqf": "qUpperConfidenceBound"}
ONE = Data(np.zeros((1, 1, 2)), np.ones((1, 1)), 1)


@pytest.mark.parametrize(
    ("strategy", "data", "filler", "needs"),
    [
        ({}, NONE, False, False),
        ({"min_post_range": 0.5}, ONE, False, False),
        ({"min_post_range": 0.5} | SURROGATE, NONE, False, False),
        ({"min_post_range": 0.5} | SURROGATE, ONE, False, True),
        ({"min_post_range": 0.5} | SURROGATE, ONE, True, False),
        (OPTIMIZED, NONE, False, True),
        (OPTIMIZED, NONE, True, False),
    ],
)
def test_which_work_needs_a_surrogate(
    strategy: dict[str, Any], data: Data, filler: bool, needs: bool
) -> None:
    section = {"generator": "RandomGenerator", "min_asks": 10} | strategy
    config = read_config({**CONFIG.sections, "s": section})
    work = Generate(config, 0, 1, 0, data, NONE.x, filler=filler)
    assert needs_surrogate(work) is needs


async def test_a_mistake_is_an_error_and_no_more() -> None:
    async with fitters() as several:
        with pytest.raises(InvalidInput, match="has no model"):
            await several.execute(0, Query(CONFIG, 0, QueryKind.MAX, NONE))
        with pytest.raises(Unavailable, match="IndexError"):
            await several.execute(0, Generate(CONFIG, 9, 1, 0, NONE, np.empty((0, 1, 2))))
        pid = several.pids[0]
        assert await points(several, 0, ask(1)) == expected(ask(1))
        assert several.pids[0] == pid


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


async def test_the_one_idle_for_longest_makes_room() -> None:
    async with fitters(most=2) as several:
        for number in (0, 1, 0, 2):
            await points(several, number, ask(1))
        assert list(several.pids) == [0, 2]


async def test_the_libraries_are_loaded_before_the_first_work_where_there_is_room() -> None:
    async with fitters(most=1) as several:
        several.warm(0)
        parent = several.parent_pid
        assert parent is not None
        several.warm(0)
        several.warm(1)
        assert await points(several, 1, ask(1)) == expected(ask(1))
        assert list(several.pids) == [1]
        assert several.parent_pid == parent
        several.stop()
        several.warm(2)
        assert (dict(several.pids), several.parent_pid is None) == ({}, True)


async def test_a_process_ends_when_it_is_not_used_and_the_parent_with_the_last() -> None:
    async with fitters(idle_s=0.05) as several:
        working = asyncio.create_task(points(several, 0, ask(1)))
        await until(lambda: several.parent_pid is not None)
        parent = several.parent_pid
        assert parent is not None
        await working
        await until(lambda: several.parent_pid is None)
        assert not several.pids
        await until(partial(has_ended, parent))
        assert await points(several, 0, ask(1)) == expected(ask(1))
    async with fitters(most=1) as several:
        await points(several, 0, ask(1))
        parent = several.parent_pid
        await points(several, 1, ask(1))  # in 0's place
        assert several.parent_pid == parent


async def test_another_parent_takes_the_place_of_one_that_is_killed() -> None:
    async with fitters() as several:
        await points(several, 0, ask(1))
        child, parent = several.pids[0], several.parent_pid
        assert parent is not None
        os.kill(parent, signal.SIGKILL)
        await until(lambda: has_ended(parent))
        assert await points(several, 1, ask(2)) == expected(ask(2))
        assert several.parent_pid not in (None, parent)
        assert await points(several, 0, ask(3)) == expected(ask(3))
        assert several.pids[0] == child, "it outlives its parent"


def end_unseen(pid: int) -> None:
    """Kill a child, and return when it has ended, before the event loop sees it."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def test_work_does_not_wait_for_a_parent_that_was_replaced_while_it_loaded() -> None:
    async with fitters() as several:
        several.warm(0)
        parent = several.parent_pid
        assert parent is not None
        os.kill(parent, signal.SIGSTOP)
        work = asyncio.create_task(several.execute(1, ask(2)))
        await asyncio.sleep(0.01)
        end_unseen(parent)
        several.warm(2)
        assert several.parent_pid not in (None, parent)
        assert listed(await asyncio.wait_for(work, LIMIT_S)) == expected(ask(2))


async def test_one_time_limit_to_load_holds_for_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_parent, "LOAD_S", 0.2)
    async with fitters() as several:
        several.warm(0)
        assert several.parent_pid is not None
        os.kill(several.parent_pid, signal.SIGSTOP)
        await asyncio.sleep(0.2)
        assert await points(several, 0, ask(2)) == expected(ask(2))
        assert not is_forked(several.pids[0])


async def test_without_a_parent_each_is_a_fresh_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    async with fitters() as several:
        assert await points(several, 0, ask(1)) == expected(ask(1))
        assert not is_forked(several.pids[0])
        assert is_forked(several.parent_pid)


async def test_a_library_that_cannot_be_loaded_is_an_error_of_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "botorch.py").write_text("raise OSError('libtorch.so: wrong ELF class')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    model = {"generator": "RandomGenerator", "min_asks": 3, "model": "GPRegressionModel"}
    config = read_config({**CONFIG.sections, "s": model})
    several = Fitters(in_processes=True)
    try:
        with pytest.raises(Unavailable, match=r"OSError: libtorch\.so: wrong ELF class"):
            await several.execute(0, Query(config, 0, QueryKind.MAX, NONE))
    finally:
        several.stop()


def is_forked(pid: int | None) -> bool:
    """Whether a process has the command line of one that forks."""
    return "--forks" in Path(f"/proc/{pid}/cmdline").read_text()


def memory(pid: int, kind: str) -> int:
    """Return a sum of a process's memory in KiB; kind: Rss, Private_Dirty, Pss, ..."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


@pytest.mark.slow
async def test_processes_share_the_memory_of_the_libraries() -> None:
    several, model = Fitters(), configs.config(configs.REGRESSION)
    x = configs.spread(model, 8)
    work = configs.ask(model, configs.data(x, configs.branin(x)))
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


async def test_killed_twice_is_an_error_and_the_next_ask_is_well() -> None:
    async with fitters() as several:
        with pytest.raises(Unavailable, match="died 2 times: killed"):
            await several.execute(0, calls(signal.raise_signal, signal.SIGKILL))
        assert await points(several, 0, ask(3)) == expected(ask(3))


async def test_one_killed_while_idle_is_not_missed() -> None:
    async with fitters() as several:
        await points(several, 0, ask(1))
        pid = several.pids[0]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: has_ended(pid))
        assert await points(several, 0, ask(1)) == expected(ask(1))


async def test_cancelled_work_ends_with_its_process_if_it_has_one() -> None:
    async with fitters(most=1) as several:
        await points(several, 0, ask(1))
        pid, parent = several.pids[0], several.parent_pid
        os.kill(pid, signal.SIGSTOP)
        work = asyncio.create_task(several.execute(0, ask(3)))
        waiting = asyncio.create_task(several.execute(1, ask(3)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        work.cancel()
        done, _ = await asyncio.wait({work, waiting}, timeout=LIMIT_S)
        assert all(one.cancelled() for one in done)
        assert has_ended(pid)
        none = several.parent_pid
        loading = asyncio.create_task(several.execute(1, ask(1)))
        await asyncio.sleep(0)
        assert none is None
        assert several.parent_pid not in (None, parent)
        loading.cancel()
        await asyncio.wait({loading}, timeout=LIMIT_S)
        assert loading.cancelled()
        assert await points(several, 1, ask(1)) == expected(ask(1))


@pytest.mark.parametrize("it", ["runs", "is being forked", "has a parent that loads"])
async def test_stop_ends_work_whose_process(it: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_parent, "FORK_S", 3600.0)
    async with fitters() as several:
        if it == "has a parent that loads":
            several.warm(0)
        else:
            await points(several, 0, ask(1))
        pid = several.pids[0] if it == "runs" else several.parent_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        work = asyncio.create_task(several.execute(0 if it == "runs" else 1, ask(3)))
        await asyncio.sleep(0.01)
        several.stop()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(work, LIMIT_S)
        await until(lambda: has_ended(pid))


def test_a_process_that_is_ended_while_it_starts_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    fitter = Fitter()

    class Started(JobProcess):
        def __init__(self, module: str) -> None:
            super().__init__(module)
            fitter.kill()

    monkeypatch.setattr("farm.experiment.ask.fitters.JobProcess", Started)
    with pytest.raises(ProcessDied):
        fitter.execute(ask(1), None)
    fitter.close()
