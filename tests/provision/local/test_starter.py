"""Which processes are forked, from which parent, and what happens when it is killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.provision.conftest import Start, kill_one
from tests.support.running_farm import LIMIT_S, Farm, wait_until
from tests.support.warm_parents import begins_with, parents_among

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere none is forked")

MODELS = """
import os, time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def double(x):
    return 2 * x

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def colour(x):
    return float(os.environ.get("COLOUR", "0"))

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def slow(x):
    with open(__file__ + ".runs", "a") as file:
        file.write(f"{x[0]:g}\\n")
    time.sleep(0.01)
    return x
"""


@pytest.fixture
def start(begin: Start, tmp_path: Path) -> Start:
    model = tmp_path / "m.py"
    model.write_text(MODELS)
    return partial(begin, [f"{model}:{name}" for name in ("double", "colour", "slow")])


def parents() -> list[psutil.Process]:
    return parents_among(psutil.Process().children())


def test_several_are_forked_from_one_parent_and_so_are_those_that_replace_them(
    farm: Farm, start: Start
) -> None:
    workers = start(3)
    (parent,) = parents()
    kill_one(farm, workers)
    assert farm.call("double", 4) == 8
    assert parents() == [parent]
    assert {psutil.Process(pid).ppid() for pid in workers.pids()} == {os.getpid()}
    assert {psutil.Process(pid).name() for pid in workers.pids()} == {psutil.Process().name()}
    workers.stop(0.0)
    assert parents() == []


@pytest.mark.parametrize("how", ["setting", pytest.param("variable", marks=pytest.mark.slow)])
def test_none_is_forked_if_that_is_turned_off(
    farm: Farm, start: Start, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_FORK", "0" if how == "variable" else "1")
    start(2, fork=how == "variable")
    assert parents() == []
    assert farm.call("double", 4) == 8


def test_a_parent_that_is_killed_is_replaced_when_it_is_needed(
    farm: Farm, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    workers = start(2)
    before = workers.pids()
    (parent,) = parents()
    parent.kill()
    wait_until(lambda: parents() == [], "its end is seen")
    assert farm.call("double", 4) == 8
    assert workers.pids() == before
    kill_one(farm, workers)
    assert len(parents()) == 1
    assert farm.losses() == ["signal SIGKILL"]
    (line,) = [r.getMessage() for r in caplog.records if "forked" in r.getMessage()]
    assert line == (
        "the process that worker processes are forked from has ended, another one is started when "
        "it is needed: it has ended: signal SIGKILL"
    )


def test_a_lone_one_has_a_parent_once_it_is_replaced_and_another_for_another_environment(
    farm: Farm, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = start(1)
    assert parents() == []
    kill_one(farm, workers)
    (parent,) = parents()
    monkeypatch.setenv("COLOUR", "7")
    kill_one(farm, workers)
    assert farm.call("colour", 0) == 7
    (other,) = parents()
    assert other != parent


@pytest.mark.slow
def test_where_a_fork_is_unsafe_each_is_started_as_a_fresh_interpreter(
    farm: Farm,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    code = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    for name, value in begins_with(tmp_path, code).items():
        monkeypatch.setenv(name, value)
    workers = start(2)
    kill_one(farm, workers)
    assert parents() == []
    (line,) = [r.getMessage() for r in caplog.records if "forked" in r.getMessage()]
    assert line.startswith(
        "worker processes are not forked but each started as a fresh interpreter: the process to "
        "fork them from cannot: it has the threads MainThread, Thread-1"
    )


def test_draining_does_not_wait_for_a_parent_that_loads(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import signal\nopen(__file__ + '.begun', 'w').close()\nsignal.pause()\n"
    for name, value in begins_with(tmp_path, code).items():
        monkeypatch.setenv(name, value)
    workers = start(2, ready=False)
    wait_until((tmp_path / "sitecustomize.py.begun").exists, "the parent loads")
    assert workers.pids() == []
    workers.drain()
    workers.ended.result(LIMIT_S)
    assert parents() == []


@pytest.mark.slow
def test_every_call_is_answered_once_while_parents_and_workers_are_killed(
    farm: Farm, start: Start
) -> None:
    workers = start(3)
    draw = random.Random(17)
    for turn in range(4):
        calls = [farm.submit("slow", 100 * turn + i) for i in range(100)]
        pids = workers.pids()
        victims = [parent.pid for parent in parents()] + draw.sample(pids, min(len(pids), 2))
        draw.shuffle(victims)
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        answers = [call.result(LIMIT_S).outputs[0][0] for call in calls]
        assert answers == [100 * turn + i for i in range(100)]
        farm.wait_for_workers(3)
