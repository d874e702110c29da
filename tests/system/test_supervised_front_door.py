"""`farm serve --supervise`: a front door that crashes costs a pause, and its end leaves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import urllib3

import farm
from farm.errors import FarmError, Unavailable, WorkerLost
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import LIMIT_S, farm_command
from tests.support.supervised_farm import SupervisedFarm, supervised

MODELS = """
import time
from pathlib import Path
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def square(x):
    time.sleep(0.01)
    return x**2

@farm.model(inputs={"x": 1}, outputs={"y": 1}, repeatable=False)
def once(x):
    with open(Path(__file__).with_name("runs"), "a") as runs:
        print(x[0], file=runs)
    time.sleep(float(x[0]))
    return x

@farm.model(inputs={"x": 1}, outputs={"y": 1}, repeatable=False)
def counted(x):
    with open(Path(__file__).with_name("counts"), "a") as counts:
        print(int(x[0]), file=counts)
    time.sleep(0.001)
    return x**2
"""


@pytest.fixture
def farm_of_two(tmp_path: Path) -> Iterator[SupervisedFarm]:
    (tmp_path / "models.py").write_text(MODELS)
    models = ["models.py:square", "models.py:once"]
    others = ["--grpc-port", "0", "--mip", "square=127.0.0.1:0", "--aepsych", "127.0.0.1:0"]
    with supervised(tmp_path, *models, "-n", "2", "--unix", "http.sock", *others) as each:
        yield each


def evaluate(url: str, x: float) -> list[list[float]]:
    """Call as a stock client of UM-Bridge does: a new connection, and no second try."""
    body = {"name": "square", "input": [[x]], "config": {}}
    answer = urllib3.request("POST", f"{url}/Evaluate", json=body, timeout=LIMIT_S, retries=False)
    found: list[list[float]] = answer.json()["output"]
    return found


@pytest.mark.slow
def test_a_killed_front_door_costs_a_pause(farm_of_two: SupervisedFarm, tmp_path: Path) -> None:
    before = farm_of_two.up()
    with farm.connect(farm_of_two.folder, wait=LIMIT_S) as client:
        square, once = client.model("square"), client.model("once")
        running: Future[np.ndarray] = once.submit([600.0])
        wait_until((tmp_path / "runs").exists)
        outputs: dict[int, float] = {}
        first = second = 0
        for index, y in square.as_completed([float(k)] for k in range(400)):
            assert index not in outputs
            outputs[index] = float(np.ravel(y)[0])
            if len(outputs) == 50:
                first = farm_of_two.kill_front_door()
                assert evaluate(before.url, 3.0) == [[9.0]]  # it waits for the next one
            if len(outputs) == 200:
                second = farm_of_two.kill_front_door()
        assert outputs == {k: float(k**2) for k in range(400)}
        assert isinstance(running.exception(LIMIT_S), WorkerLost | Unavailable)
        assert (tmp_path / "runs").read_text() == "600.0\n"
    after = farm_of_two.up(after=second)
    assert len({before.pid, first, second, after.pid}) == 3
    assert (after.url, after.grpc, after.addresses) == (before.url, before.grpc, before.addresses)
    assert (after.token, after.local) == (before.token, before.local)
    restarts = farm_of_two.restarts()
    assert restarts["count"] == 2
    assert restarts["reason"] == "was killed by signal 9 (SIGKILL)"
    assert farm_of_two.stop() == 0
    assert not (farm_of_two.folder / "farm.json").exists()
    assert not (tmp_path / "http.sock").exists()


def check_lost(outputs: dict[int, Any], runs: list[int], most_not_run: int) -> list[int]:
    """Return the points that failed: they may have run, none ran twice, and all others ran."""
    assert [x for x, count in Counter(runs).items() if count > 1] == []
    lost = [x for x, y in outputs.items() if isinstance(y, FarmError)]
    assert {type(outputs[x]) for x in lost} <= {WorkerLost}
    assert [x for x, y in outputs.items() if x not in lost and float(np.ravel(y)[0]) != x**2] == []
    assert set(outputs) - set(lost) <= set(runs)
    assert len(set(lost) - set(runs)) <= most_not_run  # a worker was about to begin them
    return lost


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", ["auto", "zmq", "others"])
def test_only_calls_that_may_have_begun_are_lost(tmp_path: Path, transport: str) -> None:
    """Of a model that must not run twice: two workers can have begun two calls.

    Workers of other machines survive the front door, and finish what they have begun.
    """
    (tmp_path / "models.py").write_text(MODELS)
    there = transport.replace("others", "zmq")
    (tmp_path / "farm.toml").write_text(f'transport = "{there}"\n')
    kills, points = 3, 6000
    words = ["-n", "0"] if transport == "others" else ["models.py:counted", "-n", "2"]
    with ExitStack() as stack:
        each = stack.enter_context(supervised(tmp_path, *words, "--config", "farm.toml"))
        each.up()
        if transport == "others":
            join = ["worker", "models.py:counted", "-n", "2", "--to", "run"]
            stack.enter_context(farm_command(*join, cwd=tmp_path))
        with farm.connect(each.folder, wait=LIMIT_S) as client:
            outputs: dict[int, Any] = {}
            counted, killed = client.model("counted"), 0
            for index, y in counted.as_completed(
                ([float(k)] for k in range(points)), return_errors=True
            ):
                assert index not in outputs
                outputs[index] = y
                if killed < kills and len(outputs) == 1000 * (killed + 1):
                    each.kill_front_door()
                    killed += 1
                if len(outputs) % 1000 == 500:  # a call by itself
                    assert float(counted([float(points + len(outputs))])[0]) > 0
        runs = [int(x) for x in (tmp_path / "counts").read_text().split()]
    assert len(outputs) == points
    lost = check_lost(outputs, runs, most_not_run=2 * kills)
    # Beside the two calls that ran, answers that were on their way through the front door.
    print(
        f"{len(lost)} of {points} calls lost in {kills} crashes, {len(set(lost) - set(runs))} unrun"
    )
    assert len(lost) <= 10 * kills


@pytest.mark.slow
def test_workers_of_other_machines_are_adopted(tmp_path: Path) -> None:
    """Over ZeroMQ keys and ports stay as they are, and a call that runs is not run again."""
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "farm.toml").write_text('transport = "zmq"\n')
    options = ["-n", "0", "--host", "0.0.0.0", "--config", "farm.toml"]
    words = ["worker", "models.py:square", "--to", "run"]
    with supervised(tmp_path, *options) as each:
        before = each.up()
        with farm_command(*words, cwd=tmp_path):
            with farm.connect(each.folder, wait=LIMIT_S) as client:
                square = client.model("square")
                assert float(square([2.0])[0]) == 4.0
                (row,) = client.status()["workers"]
                killed = each.kill_front_door()
                assert float(square([3.0])[0]) == 9.0
                after = each.up(after=killed)
                assert (after.endpoint, after.server_key) == (before.endpoint, before.server_key)
                assert [r["name"] for r in client.status()["workers"]] == [row["name"]]
            assert each.stop() == 0
            assert not (each.folder / "farm.key").exists()


@pytest.mark.slow
def test_a_suspended_front_door_is_not_replaced(farm_of_two: SupervisedFarm) -> None:
    pid = farm_of_two.up().pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(evaluate, farm_of_two.up().url, 2.0)
        farm_of_two.keeper.terminate()
        os.kill(pid, signal.SIGCONT)
        assert farm_of_two.ended() == 0
        answer.exception(LIMIT_S)
    assert "started again" not in farm_of_two.errors.read_text()


@pytest.mark.parametrize("when", ["serves", pytest.param("starts", marks=pytest.mark.slow)])
def test_a_killed_keeper_ends_all_in_order(
    farm_of_two: SupervisedFarm, tmp_path: Path, when: str
) -> None:
    if when == "serves":
        farm_of_two.up()
    else:
        farm_of_two.front_door()
    farm_of_two.keeper.kill()
    assert farm_of_two.ended() == -signal.SIGKILL
    assert not (farm_of_two.folder / "farm.json").exists()


def test_when_both_are_killed_nothing_is_left(farm_of_two: SupervisedFarm) -> None:
    pid = farm_of_two.up().pid
    farm_of_two.keeper.kill()
    os.kill(pid, signal.SIGKILL)
    farm_of_two.ended()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_during_a_restart_ends_it(farm_of_two: SupervisedFarm, number: int) -> None:
    farm_of_two.up()
    farm_of_two.kill_front_door()
    farm_of_two.keeper.send_signal(number)
    assert farm_of_two.ended() in (0, 130, 128 + signal.SIGKILL)
    assert not (farm_of_two.folder / "farm.json").exists()


@pytest.mark.slow
def test_ctrl_c_reaches_both_and_hurries_nothing(
    farm_of_two: SupervisedFarm, tmp_path: Path
) -> None:
    farm_of_two.up()
    with farm.connect(farm_of_two.folder) as client:
        call = client.model("once").submit([1.5])
        wait_until((tmp_path / "runs").exists)
        os.killpg(farm_of_two.keeper.pid, signal.SIGINT)
        assert float(call.result(LIMIT_S)[0]) == 1.5
    assert farm_of_two.ended() == 0


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("1/0\n")
    with supervised(tmp_path, "models.py") as each:
        assert each.ended() == 2
        assert "started again" not in each.errors.read_text()


@pytest.mark.slow
def test_a_place_that_is_taken_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    with supervised(tmp_path, "models.py:square") as first:
        first.up()
        with supervised(tmp_path, "models.py:square") as second:
            assert second.ended() == 2
            assert "runs in run already" in second.errors.read_text()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_front_door_that_never_lasts_is_given_up(farm_of_two: SupervisedFarm) -> None:
    url = farm_of_two.up().url
    end = time.monotonic() + 4 * LIMIT_S
    while farm_of_two.keeper.poll() is None and time.monotonic() < end:
        for child in psutil.Process(farm_of_two.keeper.pid).children():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        time.sleep(0.05)
    assert farm_of_two.ended() == 128 + signal.SIGKILL
    errors = farm_of_two.errors.read_text()
    assert "the front door crashed 5 times" in errors
    assert "killed by signal 9" in errors.splitlines()[-1]
    with pytest.raises(urllib3.exceptions.NewConnectionError):
        evaluate(url, 2.0)
