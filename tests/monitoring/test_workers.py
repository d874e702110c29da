"""Facts about workers in the snapshot of a real dispatcher, whose transport a test plays."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ParamSpec

import numpy as np
import pytest

from farm import wording
from farm.call import NO_HINTS, Result, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import ModelFailed
from farm.monitoring import workers
from farm.monitoring.workers import (
    MANY_RESTARTS,
    SHORTEST_S,
    STEPS,
    WINDOW,
    ExpectedWorkers,
    RunTimeSketch,
    WorkerFacts,
    chance_of,
    troubles,
)
from farm.scheduler.actions import Outcome
from farm.scheduler.state import WorkerId
from farm.wire.usage import Used
from tests.dispatcher.ended_calls import answer
from tests.dispatcher.test_dispatcher import CUBE, W1, cube, up
from tests.support.coroutines import on_loop, until
from tests.support.virtual_time import run_virtually


class Farm:
    def __init__(self) -> None:
        self.dispatcher, self.transport = up()
        WorkerFacts(self.dispatcher)

    def join(self, **labels: str) -> None:
        self.dispatcher.worker_joined(WorkerInfo(W1, (CUBE,), labels=labels), self.transport)

    def use(self, used: Used, worker: WorkerId = W1) -> None:
        """Let a worker report what it uses."""
        for tell in self.dispatcher.on_used:
            tell(worker, used)

    def row(self) -> dict[str, Any]:
        (row,) = self.dispatcher.snapshot()["workers"]
        found: dict[str, Any] = row
        return found

    async def call(self, outcome: Outcome) -> None:
        """Run a call whose outcome the worker gives."""
        task = asyncio.create_task(self.dispatcher.submit(cube()))
        await self.transport.end(outcome)
        await asyncio.wait({task})
        assert task.exception() is None or isinstance(outcome, ModelFailed)


def result(run_time_s: float, *, worker: str = "") -> Result:
    return Result((np.zeros(1),), run_time_s, worker=worker)


async def test_a_new_worker_has_no_run_times() -> None:
    farm = Farm()
    farm.join(restarts="2")
    row = farm.row()
    assert row["run_times_s"] == {"p50": None, "p90": None, "p99": None, "count": 0}
    assert (row["restarts"], row["memory_bytes"], row["processor"]) == (2, None, None)
    assert row["age_s"] >= 0.0
    assert row["trouble"] == []


@pytest.mark.parametrize("label", ["", "-1", "many", "²", "1.5"])
async def test_a_label_that_is_no_number_counts_as_none(label: str) -> None:
    farm = Farm()
    farm.join(restarts=label)
    assert farm.row()["restarts"] == 0


async def test_the_run_times_of_its_answers_are_shown() -> None:
    farm = Farm()
    farm.join()
    for seconds in (1.0, 1.0):
        await farm.call(result(seconds))
    await farm.call(result(8.0, worker="node7/dask-3"))  # of a Dask cluster, which is one worker
    farm.dispatcher.ended.add(answer(8, 0, 9.0, ran=True, run_s=64.0, row_s=8.0, seat=W1))
    await farm.call(ModelFailed("it raised"))
    row = farm.row()
    times = row["run_times_s"]
    assert (row["done"], row["failed"], times["count"]) == (3, 1, 4)
    assert times["p50"] == pytest.approx(1.0, rel=0.05)
    assert times["p99"] == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
async def test_what_it_uses_is_shown_until_it_is_old(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    """An idle worker reports seldom, so that its use is old later."""
    farm = Farm()
    farm.join()
    farm.use(Used(1000, 0.5))
    farm.use(Used(1, 1.0), WorkerId("unknown"))
    if is_busy:
        farm.dispatcher.start_call(cube(), NO_HINTS, lambda outcome: None)
        await until(lambda: farm.transport.sent)
    shown = [farm.row()]
    for limit in ("STALE_S", "STALE_IDLE_S"):
        monkeypatch.setattr(workers, limit, 0.0)
        shown.append(farm.row())
    used, old = (1000, 0.5), (None, None)
    assert [(row["memory_bytes"], row["processor"]) for row in shown] == [
        *(used, old if is_busy else used, old)
    ]


async def test_a_worker_that_joins_again_keeps_its_facts_and_one_that_left_does_not() -> None:
    farm = Farm()
    farm.join()
    await farm.call(result(1.0))
    farm.join()
    assert farm.row()["run_times_s"]["count"] == 1
    await farm.call(result(1.0))
    farm.dispatcher.worker_left(W1, "killed")
    farm.join()
    assert farm.row()["run_times_s"]["count"] == 0


async def test_facts_of_many_workers_are_computed_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    farm = Farm()
    farm.join()
    for number in range(workers.FEW):
        info = WorkerInfo(f"node2/{number}-b", (CUBE,), labels={"restarts": "5"})
        farm.dispatcher.worker_joined(info, farm.transport)

    def used() -> list[int | None]:
        return [r["memory_bytes"] for r in farm.dispatcher.snapshot()["workers"][:1]]

    monkeypatch.setattr(workers, "REFRESH_S", 1000.0)
    assert used() == [None]
    farm.use(Used(1000, 0.5))
    assert used() == [None]
    rows = farm.dispatcher.snapshot()["workers"]
    assert rows[1]["trouble"] == ["was started again 5 times"]
    monkeypatch.setattr(workers, "REFRESH_S", 0.0)
    assert used() == [1000]


P = ParamSpec("P")

WITHIN = 2.0 ** (0.5 / STEPS) - 1.0
LEVELS = (0.5, 0.9, 0.99)

RowAndRuns = tuple[dict[str, Any], RunTimeSketch]


def sketch_of(seconds: list[float]) -> RunTimeSketch:
    sketch = RunTimeSketch()
    sketch.add(seconds)
    return sketch


@pytest.mark.parametrize("count", [1, 2, 10, 99, 100, 1000, 1900])
def test_they_are_near_the_exact_ones(count: int) -> None:
    chance = random.Random(count)
    seconds = [chance.lognormvariate(-2.0, 2.0) for _ in range(count)]
    exact = [sorted(seconds)[math.ceil(level * count) - 1] for level in LEVELS]
    assert sketch_of(seconds).quantiles(*LEVELS) == pytest.approx(exact, rel=WITHIN)


def test_old_runs_are_forgotten_but_counted() -> None:
    sketch = sketch_of([1.0] * (5 * WINDOW) + [100.0] * (2 * WINDOW))
    assert sketch.count == 7 * WINDOW
    assert sketch.quantiles(0.001) == pytest.approx([100.0], rel=WITHIN)


def test_any_time_fits_in_few_buckets() -> None:
    times = [-1.0, 0.0, 1e-300, SHORTEST_S, 1e-6, 1.0, 1e300]
    sketch = sketch_of(times)
    low, high = sketch.quantiles(0.01, 1.0)
    assert low == pytest.approx(SHORTEST_S, rel=WITHIN)
    assert high == pytest.approx(1e300, rel=WITHIN)


def row(
    *run_times_s: float,
    running_s: float | None = None,
    p95_s: float = 2.0,
    done: int = 100,
    failed: int = 0,
    restarts: int = 0,
    models: tuple[str, ...] = ("m",),
) -> RowAndRuns:
    sketch = sketch_of(list(run_times_s))
    levels = zip(("p50", "p90", "p99"), sketch.quantiles(*LEVELS), strict=True)
    told = {
        "models": list(models),
        "running_s": running_s,
        "running_p95_s": None if running_s is None else p95_s,
        "run_times_s": {**dict(levels), "count": sketch.count},
        "done": done,
        "failed": failed,
        "restarts": restarts,
    }
    return told, sketch


def found(*rows: RowAndRuns) -> list[list[str]]:
    return troubles([told for told, _ in rows], [sketch for _, sketch in rows])


def runs(seconds: float, longest: float | None = None) -> list[float]:
    return [seconds] * 9 + [2.0 * seconds if longest is None else longest]


HEALTHY = [row(*runs(1.0)), row(*runs(1.2, 2.0)), row(*runs(0.9, 2.0))]


OTHER_MODEL = row(*runs(50.0), models=("other",))
FAST = [row(*[1e-3] * 10)] * 3
FAIL_SELDOM, FAIL_OFTEN = [row(done=90, failed=2)] * 3, [row(done=50, failed=50)] * 3


@pytest.mark.parametrize(
    ("others", "worker", "trouble"),
    [
        (HEALTHY, row(done=0), []),
        (HEALTHY, row(*runs(1.0), running_s=18.0), []),
        # A new worker is compared as well: it has no run times of its own.
        (HEALTHY, row(done=0, running_s=30.0), ["its call runs 15 times as long as others did"]),
        (FAST, row(running_s=5.0, p95_s=1e-3), []),
        (FAST, row(running_s=11.0, p95_s=1e-3), ["its call runs 11000 times as long as"]),
        (FAST, row(running_s=11.0, p95_s=0.0), ["its call runs 110000000 times as long as"]),
        ([*HEALTHY, OTHER_MODEL], row(*runs(3.0)), ["its runs take 2.6 times as long as on other"]),
        (HEALTHY, row(*[3.0] * 4), []),
        (HEALTHY[:1], row(*runs(3.0)), []),  # which of two is the slow one?
        (FAIL_SELDOM, row(done=90, failed=4), []),
        (FAIL_SELDOM, row(done=5, failed=5), ["fails 50% of its calls, others 2%"]),
        # A model that fails for half of its inputs makes no worker sick.
        (FAIL_OFTEN, row(done=50, failed=50), []),
        (HEALTHY, row(restarts=MANY_RESTARTS), [f"was started again {MANY_RESTARTS} times"]),
    ],
    ids=[
        *("healthy", "long", "stuck", "short", "stuck, of short ones", "stuck, of none", "slow"),
        *("few runs", "two workers", "few failures", "failures", "a model that fails", "restarts"),
    ],
)
def test_troubles_of_a_worker_among_others(
    others: list[RowAndRuns], worker: RowAndRuns, trouble: list[str]
) -> None:
    *of_others, own = found(*others, worker)
    assert of_others == [[]] * len(others)
    assert [text[: len(start)] for text, start in zip(own, trouble, strict=True)] == trouble


def exact(few: int, of: int, few_of_all: int, of_all: int) -> float:
    ways = sum(
        math.comb(few_of_all, k) * math.comb(of_all - few_of_all, of - k)
        for k in range(few, min(of, few_of_all) + 1)
    )
    return ways / math.comb(of_all, of)


@pytest.mark.parametrize(
    "counts", [(0, 1, 0, 1), (5, 5, 5, 9), (3, 10, 12, 80), (40, 100, 900, 9000), (7, 9, 9, 11)]
)
def test_the_chance_of_a_difference_is_exact(counts: tuple[int, int, int, int]) -> None:
    assert chance_of(*counts) == pytest.approx(exact(*counts), rel=1e-8)


@dataclass
class Simulated:
    """A worker that answers a call each second."""

    fails: float = 0.05
    slower: float = 1.0
    done: int = 0
    failed: int = 0
    sketch: RunTimeSketch = field(default_factory=RunTimeSketch)

    def answer(self, chance: random.Random) -> None:
        if chance.random() < self.fails:
            self.failed += 1
        else:
            self.done += 1
            self.sketch.add([self.slower * chance.lognormvariate(0.0, 1.5)])

    def row(self) -> RowAndRuns:
        told, _ = row(done=self.done, failed=self.failed)
        p50, p90, p99 = self.sketch.quantiles(*LEVELS)
        told["run_times_s"] = {"p50": p50, "p90": p90, "p99": p99, "count": self.sketch.count}
        return told, self.sketch


def looks(simulated: list[Simulated], *seconds: int, seed: int) -> Iterator[list[list[str]]]:
    """Yield the troubles of the workers after so many seconds."""
    chance = random.Random(seed)
    for before, now in pairwise((0, *seconds)):
        for _ in range(before, now):
            for each in simulated:
                each.answer(chance)
        yield found(*(each.row() for each in simulated))


@pytest.mark.parametrize("seed", [1, *[pytest.param(n, marks=pytest.mark.slow) for n in (0, 2)]])
def test_of_many_identical_workers_none_is_called_sick_by_chance(seed: int) -> None:
    """Calls of which 5 % fail, of run times that differ by factors of ten, in two minutes."""
    for told in looks([Simulated() for _ in range(200)], *range(5, 121, 5), seed=seed):
        assert [each for each in told if each] == []


def test_a_sick_worker_among_many_is_soon_found() -> None:
    simulated = [Simulated() for _ in range(200)]
    simulated[17], simulated[99] = Simulated(fails=0.3), Simulated(slower=10.0)
    (last,) = looks(simulated, 90, seed=0)
    ill = {at: texts for at, texts in enumerate(last) if texts}
    assert sorted(ill) == [17, 99]
    assert ill[17][0].startswith("fails ")
    assert ill[99][0].startswith("its runs take ")


# Expected workers


def of(supervisor: str, number: int, seats: int) -> WorkerInfo:
    labels = {"supervisor": supervisor, "seats": str(seats)}
    return WorkerInfo(f"{supervisor}-{number}", (), labels=labels)


def on_virtual_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    return on_loop(test, run_virtually)


class Watched:
    """A dispatcher whose workers are expected within 50 ms by the clock of a virtual loop."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(wording, "JOIN_S", 0.05)
        clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
        patch.setattr(workers, "time", clock)
        self.dispatcher = Dispatcher([])
        self.workers = ExpectedWorkers(self.dispatcher)

    def missing(self) -> list[tuple[str, str]]:
        events = self.dispatcher.snapshot()["events"]
        return [(e["worker"], e["text"]) for e in events if e["event"] == "missing"]

    def join(self, *infos: WorkerInfo) -> None:
        for info in infos:
            self.workers.joined(info, None)


@on_virtual_loop
async def test_workers_that_do_not_join_in_time_are_missed_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(monkeypatch)
    watched.join(*(of("n1/7", number, 8) for number in range(4)))
    watched.join(of("n2/7", 0, 1), WorkerInfo("n3/1-a", ()))  # all of them; one without labels
    watched.workers.expect("n3/7", 2)  # the farm's own, of which none joins
    await asyncio.sleep(0.04)
    assert (watched.workers.shown(), watched.missing()) == ({}, [])
    await asyncio.sleep(0.02)
    text = "8 workers expected, 4 have joined after 0.05 s"
    assert sorted(watched.missing()) == [
        ("n1", text),
        ("n3", "2 workers expected, 0 have joined after 0.05 s"),
    ]
    assert f"n1: {text}" in caplog.text
    assert watched.dispatcher.snapshot()["expected"] == {"workers": 11, "joined": 5}
    watched.join(*(of("n1/7", number, 8) for number in range(4, 8)))
    watched.join(*(of("n3/7", number, 2) for number in range(2)))
    assert watched.workers.shown() == {}
    assert len(watched.missing()) == 2


@on_virtual_loop
async def test_workers_that_all_left_are_not_shown_when_they_were_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    gone = of("n2/7", 0, 9)
    watched.join(gone)
    watched.workers.left(gone, Departure("its connection was lost"))
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: wording.JOIN_S))
    assert watched.workers.shown() == {}


@on_virtual_loop
async def test_workers_that_left_are_expected_no_more_unless_they_were_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    infos = [of("n1/7", number, 3) for number in range(3)]
    gone = [of("n2/7", number, 9) for number in range(3)]
    watched.join(*infos[:2], *gone)
    watched.workers.left(infos[0], Departure("drained", drained=True))
    for info in gone:
        watched.workers.left(info, Departure("its connection was lost"))
    await asyncio.sleep(0.06)
    assert watched.missing() == [("n1", "2 workers expected, 1 has joined after 0.05 s")]
    watched.workers.left(infos[1], Departure("signal SIGKILL"))
    assert watched.workers.shown() == {}  # its supervisor may be gone, too
