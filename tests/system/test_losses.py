"""Failures that a farm survives: processes that are killed, frozen, crash, hang, eat memory."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import Result
from farm.errors import InvalidOutput, ModelFailed, TimeLimitExceeded, WorkerLost
from farm.provision.local.starter import WorkerSettings
from farm.provision.local.supervisor import Workers
from tests.support.running_farm import LIMIT_S, Farm, wait_until, workers_at
from tests.support.time_limits import scaled

pytestmark = pytest.mark.usefixtures("wire")

MODELS = '''
import ctypes, os, pathlib, signal, time
import numpy as np
import farm

ONE = dict(inputs={"x": 1}, outputs={"y": 1})

@farm.model(**ONE)
def cube(x):
    return x**3

@farm.model(**ONE)
def slow_cube(x):
    time.sleep(0.001)
    return x**3

@farm.model(**ONE)
def sleep(x):
    time.sleep(x[0])
    return x

@farm.model(**ONE)
def hold(x):
    """Holds the interpreter for x seconds, as C code does that does not let go of it."""
    ctypes.PyDLL(None).usleep(int(x[0] * 1e6))
    return x

@farm.model(**ONE)
def crash(x):
    ctypes.string_at(0)

@farm.model(**ONE)
def eat(x):
    """Takes memory until it is killed, as the kernel does it when there is none left."""
    taken = []
    while sum(len(block) for block in taken) < 2e8:
        taken.append(bytearray(10_000_000))
    os.kill(os.getpid(), signal.SIGKILL)

@farm.model(**ONE)
def odd(x):
    """Answers in the odd way that x says."""
    if x[0] == 4:
        raise RuntimeError("no convergence")
    return [np.zeros(3), ["text"], 1j, np.nan][int(x[0])]

@farm.model(**ONE)
def row(x):
    """Notes what it is asked; -1 ends the process, -2 hangs, -3 ends the process the first time."""
    here = pathlib.Path(__file__).parent
    with open(here / "rows.txt", "a") as seen:
        seen.write(f"{x[0]:g}\\n")
    if x[0] == -1 or (x[0] == -3 and not (here / "once").exists()):
        (here / "once").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if x[0] == -2:
        time.sleep(600)
    return 2 * x
'''

NAMES = ("cube", "slow_cube", "sleep", "hold", "crash", "eat", "odd", "row")

Start = Callable[..., Workers]


@pytest.fixture
def heartbeat_s() -> float:
    """Set the silence after which a host is considered dead."""
    return 5.0


@pytest.fixture
def farm(tmp_path: Path, heartbeat_s: float) -> Iterator[Farm]:
    running = Farm(tmp_path, heartbeat_s=heartbeat_s)
    yield running
    running.close()


@pytest.fixture
def start(farm: Farm, tmp_path: Path) -> Iterator[Start]:
    """Start worker processes under a supervisor, and wait until they serve."""
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    specs = [f"{path}:{name}" for name in NAMES]
    with contextlib.ExitStack() as stack:

        def start(count: int, **settings: Any) -> Workers:
            again = {"first_s": 0.01, "longest_s": 0.05, **settings}
            wanted = WorkerSettings(specs, count, farm.connect, tmp_path / "logs", **again)
            return stack.enter_context(workers_at(farm, wanted))

        yield start


def value(future: Future[Result], limit_s: float = 3 * LIMIT_S) -> float:
    return float(future.result(limit_s).outputs[0][0])


def kill_at_random(
    farm: Farm, workers: Workers, until: threading.Event, chance: random.Random
) -> int:
    """Kill workers at random times and return how many.

    At least one call ends between two kills: otherwise, on a busy machine, workers might never live
    long enough to finish a call.
    """
    killed, done = 0, -1
    while not until.wait(chance.uniform(0.1, 0.6)):
        if (now := farm.snapshot()["done"]) == done:
            continue
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(chance.choice(workers.pids()), signal.SIGKILL)
            killed, done = killed + 1, now
    return killed


def survive_kills(farm: Farm, workers: Workers, *, rounds: int, calls: int) -> None:
    """Kill workers; every call of each round is answered once and correctly."""
    chance = random.Random(4711)
    killed = 0
    for done in range(rounds):
        over = threading.Event()
        kills: list[int] = []
        killer = threading.Thread(
            target=lambda o=over, k=kills: k.append(kill_at_random(farm, workers, o, chance))
        )
        killer.start()
        try:
            futures = [farm.submit("slow_cube", i) for i in range(calls)]
            assert [value(future) for future in futures] == [float(i) ** 3 for i in range(calls)]
        finally:
            over.set()
            killer.join()
        killed += kills[0]
        state = farm.snapshot()
        assert (state["done"], state["failed"]) == ((done + 1) * calls, 0)
        assert all(row["queued"] == row["in_flight"] == 0 for row in state["queues"])
    assert killed >= rounds


def test_workers_killed_at_random(farm: Farm, start: Start) -> None:
    survive_kills(farm, start(3), rounds=1, calls=1000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [20, pytest.param(100, marks=pytest.mark.nightly)])
def test_workers_killed_at_random_for_long(farm: Farm, start: Start, rounds: int) -> None:
    survive_kills(farm, start(3), rounds=rounds, calls=2000)


@pytest.mark.slow
def test_a_thousand_queued_calls_and_two_workers(farm: Farm, start: Start) -> None:
    start(2)
    futures = [farm.submit("slow_cube", i) for i in range(1000)]
    results = [future.result(3 * LIMIT_S) for future in futures]
    assert [r.outputs[0][0] for r in results] == [float(i) ** 3 for i in range(1000)]
    shares = [sum(r.worker == name for r in results) for name in farm.wait_for_workers(2)]
    assert sum(shares) == 1000
    assert min(shares) > 100  # both worked, though a busy machine may favour one


@pytest.mark.slow
@pytest.mark.parametrize("heartbeat_s", [1.0])
@pytest.mark.parametrize("wire", ["zmq"], indirect=True)
def test_a_frozen_worker_that_is_not_heard_is_given_up_and_comes_back(
    farm: Farm, start: Start
) -> None:
    workers = start(2, frozen_after_s=10 * LIMIT_S)
    frozen = random.Random(1).choice(workers.pids())
    futures = [farm.submit("slow_cube", i) for i in range(500)]
    os.kill(frozen, signal.SIGSTOP)
    try:
        farm.wait_for_workers(1)
    finally:
        os.kill(frozen, signal.SIGCONT)  # long before its supervisor would replace it
    assert [value(future) for future in futures] == [float(i) ** 3 for i in range(500)]
    both_answer_once(farm)
    assert frozen in workers.pids()


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["stream"], indirect=True)
def test_a_worker_that_stays_frozen_is_replaced(farm: Farm, start: Start) -> None:
    workers = start(2)
    frozen = random.Random(1).choice(workers.pids())
    futures = [farm.submit("slow_cube", i) for i in range(500)]
    os.kill(frozen, signal.SIGSTOP)
    assert [value(future) for future in futures] == [float(i) ** 3 for i in range(500)]
    wait_until(lambda: frozen not in workers.pids(), "another process in its place")
    both_answer_once(farm)


def both_answer_once(farm: Farm) -> None:
    """After 500 warm-up calls, two workers answer 500 calls, each of them once."""
    farm.wait_for_workers(2)
    futures = [farm.submit("slow_cube", i) for i in range(500)]
    results = [future.result(3 * LIMIT_S) for future in futures]
    assert len({result.worker for result in results}) == 2
    assert farm.snapshot()["done"] == 1000


@pytest.mark.slow
def test_segmentation_fault_is_named_and_costs_no_other_call(farm: Farm, start: Start) -> None:
    start(2)
    crash = farm.submit("crash", 1)
    futures = [farm.submit("slow_cube", i) for i in range(500)]
    with pytest.raises(WorkerLost, match=r"lost 4 times.*SIGSEGV.*SIGSEGV"):
        value(crash)
    assert [value(future) for future in futures] == [float(i) ** 3 for i in range(500)]
    farm.wait_for_workers(2)


@pytest.mark.slow
def test_model_that_holds_the_interpreter_is_not_taken_for_dead(farm: Farm, start: Start) -> None:
    start(1)
    assert farm.call("hold", 6.0) == 6.0  # longer than the timeout of a dead host
    assert farm.losses() == []


def test_hanging_call_is_ended_by_the_time_limit(farm: Farm, start: Start) -> None:
    limit_s = scaled(0.5)  # a call that is quick must not exceed it on a busy machine
    start(1, time_limit_s=limit_s)
    with pytest.raises(TimeLimitExceeded, match=rf"time limit of {limit_s:g} s"):
        value(farm.submit("sleep", 1000))
    assert farm.call("cube", 3) == 27.0


@pytest.mark.slow
def test_memory_eater_is_given_up(farm: Farm, start: Start) -> None:
    start(1)
    with pytest.raises(WorkerLost, match=r"lost 4 times.*SIGKILL|out of memory"):
        value(farm.submit("eat", 1))
    assert farm.call("cube", 3) == 27.0


def test_odd_answers(farm: Farm, start: Start) -> None:
    start(1)
    for i, complaint in enumerate([r"shape \(3,\), expected \(1,\)", "is text", "complex128"]):
        with pytest.raises(InvalidOutput, match=complaint):
            farm.call("odd", i)
    assert np.isnan(farm.call("odd", 3))
    with pytest.raises(ModelFailed, match="RuntimeError: no convergence"):
        farm.call("odd", 4)
    assert farm.losses() == []


# One call of many rows


def asked(folder: Path) -> list[float]:
    """Return the inputs of the model `row` in the order of its log."""
    return [float(line) for line in (folder / "rows.txt").read_text().split()]


ROWS = [float(row) for row in range(1, 2001)]


def with_one(value: float) -> list[float]:
    """Return rows with a special one in the middle; runs of rows are long by then."""
    return [*ROWS[:1500], value, *ROWS[1501:]]


@pytest.mark.slow
def test_a_row_that_ends_its_worker_is_named_and_only_it_is_tried_again(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    start(2)
    with pytest.raises(WorkerLost, match=r"^row 1500: the call was lost 4 times, with ") as caught:
        farm.submit_rows("row", with_one(-1.0)).result(3 * LIMIT_S)
    reasons, _, story = caught.value.message.partition("; what happened: ")
    assert reasons.count("signal SIGKILL") == 4
    assert story.count("lost ") == 4
    assert asked(tmp_path).count(-1.0) == 4


def test_a_row_that_ends_its_worker_once_costs_no_result(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    start(2)
    result = farm.submit_rows("row", with_one(-3.0)).result(3 * LIMIT_S)
    assert result.outputs[0][:, 0].tolist() == [2 * x for x in with_one(-3.0)]
    seen = asked(tmp_path)
    assert seen.count(-3.0) == 2
    assert len(seen) < len(ROWS) + 600, "what was not in the run that was lost ran once"


def test_the_time_limit_is_one_of_each_row(farm: Farm, start: Start, tmp_path: Path) -> None:
    limit_s = scaled(1.0)
    start(2, time_limit_s=limit_s)
    with pytest.raises(TimeLimitExceeded, match=rf"^row 1500: .* time limit of {limit_s:g} s"):
        farm.submit_rows("row", with_one(-2.0)).result(3 * LIMIT_S)
    rows = farm.submit_rows("sleep", [0.3 * limit_s] * 8)
    assert rows.result(3 * LIMIT_S).outputs[0].shape == (8, 1)


@pytest.mark.slow
def test_a_drained_worker_hands_back_the_rows_it_has_not_begun(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    workers = start(2)
    waiting = farm.submit_rows("row", ROWS * 10)
    wait_until(lambda: (tmp_path / "rows.txt").exists() and len(asked(tmp_path)) > 200, "it runs")
    os.kill(workers.pids()[0], signal.SIGTERM)
    result = waiting.result(3 * LIMIT_S)
    assert result.outputs[0][:, 0].tolist() == [2 * x for x in ROWS * 10]
    assert sorted(asked(tmp_path)) == sorted(ROWS * 10), "no row ran twice"
    assert len(farm.wait_for_workers(1)) == 1
    assert farm.losses() == []
