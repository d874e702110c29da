"""A model that must not run twice, and processes that die within milliseconds after its run.

The model logs each run in a file before anything else can fail. A thread of its process then ends
the process up to 4 ms after the run: while the answer is written, sent or read, or while the next
call arrives. A call is answered, or fails as lost; no call is logged twice, and an answered call is
logged once.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import WorkerLost
from farm.provision.local.group import Launch
from farm.provision.local.starter import WorkerSettings
from farm.provision.local.supervisor import Workers
from farm.transports.dask.transport import DaskTransport
from tests.support.coroutines import loop_in_thread
from tests.support.dask_cluster import dask_cluster
from tests.support.running_farm import LIMIT_S, Farm, workers_at

MODELS = '''
import os
import signal
import threading
import time

import farm


def die(after_s, kills, word):
    time.sleep(after_s)
    os.write(kills, word)
    os.kill(os.getpid(), signal.SIGKILL)


class Once(farm.Model):
    """Notes each run, and has its process killed after the run if the config says so."""

    inputs = {"x": 1}
    outputs = {"y": 1}
    repeatable = False

    def evaluate(self, inputs, config):
        comm = getattr(self, "comm", None)
        rank = comm.rank if comm is not None else 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        runs = os.open(config["folder"] + f"/runs-{rank}", flags)
        os.write(runs, b"%d\\n" % int(inputs["x"][0]))
        os.close(runs)
        if comm is not None:
            comm.barrier()
        if config.get("rank", 0) == rank and "die_after_s" in config:
            kills = os.open(config["folder"] + "/kills", flags)
            word = b"%d\\n" % os.getpid()
            killer = threading.Thread(target=die, args=(config["die_after_s"], kills, word))
            killer.daemon = True
            killer.start()
        return inputs["x"]
'''

LATEST_S = 0.004
"""Longest time in seconds after its run before a process dies."""

Submit = Callable[[Call], Future[Result]]


class Scene:
    """A folder with the model and the notes of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "once.py"
        self.models.write_text(MODELS)

    def call(self, number: int, **config: float) -> Call:
        text = json.dumps({"folder": str(self.folder), **config})
        return Call("Once", Operation.EVALUATE, (np.array([float(number)]),), text)

    def runs(self) -> dict[str, Counter[int]]:
        """Return how often each call ran, by the file of the process or rank."""
        files = self.folder.glob("runs-*")
        return {file.name: Counter(map(int, file.read_text().split())) for file in files}

    def kills(self) -> int:
        """Return the number of killed processes."""
        file = self.folder / "kills"
        return len(set(file.read_text().split())) if file.exists() else 0


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def survive(scene: Scene, submit: Submit, kills: int, *, at_once: int, ranks: int = 1) -> None:
    """Kill processes just after a run; no call runs twice, and each loss is reported."""
    chance = random.Random(4711)
    outcomes: dict[int, Future[Result]] = {}
    while scene.kills() < kills:
        assert len(outcomes) < 6 * kills + 20, "calls run, but processes are not killed"
        some = range(len(outcomes), len(outcomes) + at_once)
        for number in some:
            config = {"die_after_s": chance.uniform(0, LATEST_S), "rank": chance.randrange(ranks)}
            outcomes[number] = submit(scene.call(number, **config))
        for number in some:
            outcomes[number].exception(6 * LIMIT_S)
    last = len(outcomes)
    while True:  # wait for one successful call: retries have been sent by then
        outcomes[last] = submit(scene.call(last))
        if outcomes[last].exception(6 * LIMIT_S) is None:
            break
        last += 1
    answered = [number for number, future in outcomes.items() if future.exception() is None]
    for file, counts in scene.runs().items():
        assert [number for number, count in counts.items() if count > 1] == [], file
        assert [number for number in answered if counts[number] != 1] == [], file
    for number, future in outcomes.items():
        error = future.exception()
        if error is None:
            assert future.result().outputs[0].tolist() == [float(number)]
        else:
            assert isinstance(error, WorkerLost), error
            assert "may have run this call" in error.message
            assert "is not repeatable" in error.message


@contextmanager
def workers(scene: Scene, farm: Farm, count: int, launch: Launch | None = None) -> Iterator[Submit]:
    """Run model processes, or groups of ranks, which restart as soon as they die."""
    settings = WorkerSettings(
        [f"{scene.models}:Once"],
        count,
        farm.connect,
        scene.folder / "logs",
        launch,
        first_s=0.01,
        longest_s=0.01,
    )
    with workers_at(farm, settings):
        yield lambda call: asyncio.run_coroutine_threadsafe(
            farm.dispatcher.submit(call), farm._loop
        )


@pytest.fixture
def farm(tmp_path: Path, wire: str) -> Iterator[Farm]:
    running = Farm(tmp_path, wire=wire)
    yield running
    running.close()


FEW_AND_MANY = [4, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
BY_NIGHT = pytest.param(200, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])
"""Where a process takes long to start, so that 200 kills take minutes."""


@pytest.mark.slow
@pytest.mark.parametrize("kills", FEW_AND_MANY)
def test_process_that_dies_just_after_a_run(scene: Scene, farm: Farm, kills: int) -> None:
    with workers(scene, farm, 2) as submit:
        survive(scene, submit, kills, at_once=8)


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["stream"], indirect=True)
@pytest.mark.parametrize("kills", [4, 50, BY_NIGHT])
def test_rank_of_a_group_that_dies_just_after_a_run(scene: Scene, farm: Farm, kills: int) -> None:
    """Either rank 0, which answers, dies, or the other one while rank 0 lives."""
    with workers(scene, farm, 1, Launch(2)) as submit:
        survive(scene, submit, kills, at_once=2, ranks=2)


@pytest.mark.slow
def test_worker_that_ends_in_order_loses_no_call(scene: Scene, farm: Farm) -> None:
    """A call that is sent while the worker leaves has not started, and runs elsewhere."""
    with workers(scene, farm, 1) as submit:
        outcomes: list[Future[Result]] = []
        for _ in range(3):
            others = Workers(WorkerSettings([str(scene.models)], 1, farm.connect, scene.folder))
            others.start()
            others.ready.result(3 * LIMIT_S)
            farm.wait_for_workers(2)
            others.drain()
            while not others.ended.done():
                outcomes += [submit(scene.call(len(outcomes) + i)) for i in range(20)]
                outcomes[-1].result(LIMIT_S)
        values = [future.result(LIMIT_S).outputs[0][0] for future in outcomes]
    assert values == [float(number) for number in range(len(values))]
    ran = scene.runs()["runs-0"]
    assert ran == Counter(range(len(values)))


@contextmanager
def over_dask(address: str, spec: str) -> Iterator[Submit]:
    """Run a farm whose only worker is a Dask cluster."""
    transport = DaskTransport(address, [spec])
    dispatcher = Dispatcher([transport])
    with loop_in_thread(asyncio.new_event_loop) as loop:
        try:
            loop.call_soon_threadsafe(dispatcher.start)
            transport.ready.result(3 * LIMIT_S)
            yield lambda call: asyncio.run_coroutine_threadsafe(dispatcher.submit(call), loop)
        finally:
            closing = dispatcher.close(grace_s=0.0)
            asyncio.run_coroutine_threadsafe(closing, loop).result(LIMIT_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [50, BY_NIGHT])
def test_dask_worker_that_dies_just_after_a_run(scene: Scene, kills: int) -> None:
    """Dask would run the call again by itself, even if only the result is lost."""
    with dask_cluster(scene.folder) as cluster:
        for _ in range(2):
            cluster.add_worker(nanny=True)
        with over_dask(cluster.address, f"{scene.models}:Once") as submit:
            survive(scene, submit, kills, at_once=4)
