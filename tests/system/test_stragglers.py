"""A call that is slow because of its worker: a copy on another real process answers it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.provision.local.starter import WorkerSettings
from farm.provision.local.supervisor import Workers
from tests.support.coroutines import wait_until
from tests.support.running_farm import LIMIT_S, Farm, workers_at

pytestmark = pytest.mark.usefixtures("wire")

MODELS = """
import pathlib, time
import farm

HERE = pathlib.Path(__file__).parent

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def double(x):
    if x[0] == 7:
        try:
            (HERE / "first").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            time.sleep(600)  # the first worker is slow, the second is not
    return 2 * x
"""


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    running = Farm(tmp_path)
    yield running
    running.close()


@pytest.fixture
def workers(farm: Farm, tmp_path: Path) -> Iterator[Workers]:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    settings = WorkerSettings([f"{path}:double"], 3, farm.connect, tmp_path / "logs")
    with workers_at(farm, settings) as workers:
        yield workers


def test_a_copy_answers_and_the_slow_worker_holds_up_no_drain(farm: Farm, workers: Workers) -> None:
    for x in range(20, 41):
        assert farm.call("double", x) == 2 * x
    result = farm.submit("double", 7).result(LIMIT_S)
    assert result.outputs[0][0] == 14
    assert result.copied
    assert not farm.submit("double", 8).result(LIMIT_S).copied
    state = farm.snapshot()
    (queue,) = state["queues"]
    assert (queue["copies"], queue["done"], queue["in_flight"]) == (1, 23, 0)
    wait_until(lambda: len(workers.pids()) == 3)  # a worker whose run is in vain is replaced
    workers.drain()
    workers.ended.result(LIMIT_S)
    assert farm.losses() == [], "it left by itself"
