"""Many threads, clients and workers without losses: every call runs exactly once.

Queued calls are constantly recalled from workers and sent elsewhere, as run times differ by a
factor of a thousand; workers are asked which calls they hold; clients share connections. The model
logs each run in a file.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from farm.client import Client, connect
from tests.support.dispatcher_farm import Served, farm_of

MODELS = """
import os, time
import farm

RUNS = os.open("runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

class Noted(farm.Model):
    '''Notes that it ran with x, and takes as long as y says.'''
    inputs = {"x": 1, "y": 1}
    outputs = {"z": 1}

    def evaluate(self, inputs, config):
        os.write(RUNS, b"%d\\n" % int(inputs["x"][0]))
        time.sleep(inputs["y"][0])
        return -inputs["x"]

class Batched(farm.Model):
    inputs = {"x": 1, "y": 1}
    outputs = {"z": 1}
    max_batch = 8

    def evaluate(self, inputs, config):
        os.write(RUNS, b"".join(b"%d\\n" % int(x) for x in inputs["x"][:, 0]))
        time.sleep(inputs["y"].max())
        return -inputs["x"]
"""

THREADS = 16
LONG_S = 0.02


served = farm_of(MODELS, "Noted", "Batched", workers=3, scope="function")


def ask(client: Client, model: str, numbers: range) -> None:
    """Send calls one by one and some in one `map`; now and then a run is long."""
    points = [(np.array([float(i)]), np.array([LONG_S if i % 50 == 7 else 0.0])) for i in numbers]
    asked = client.model(model)
    half = len(points) // 2
    answers = [asked(point) for point in points[:half]]
    answers += asked.map(points[half:])
    assert [float(np.ravel(answer)[0]) for answer in answers] == [-float(i) for i in numbers]


def in_threads(jobs: list[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[job]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize(
    "calls", [60, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_every_call_runs_once(served: Served, calls: int) -> None:
    """Each thread makes `calls` calls; half use HTTP, and half of each have batches."""
    with connect(served.folder) as native, connect(served.connection.url) as http:
        jobs: list[Callable[[], None]] = []
        for thread in range(THREADS):
            client = (native, http)[thread % 2]
            model = ("Noted", "Batched")[thread // 2 % 2]
            numbers = range(thread * calls, (thread + 1) * calls)
            jobs.append(lambda c=client, m=model, n=numbers: ask(c, m, n))  # type: ignore[misc]
        in_threads(jobs)
        events = native.status()["events"]
    assert [event for event in events if event["event"] in ("lost", "missing")] == []
    runs = Counter(map(int, (served.folder.parent / "runs").read_text().split()))
    assert [number for number, count in runs.items() if count > 1] == []
    assert len(runs) == THREADS * calls
