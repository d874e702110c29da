"""Connections that live as long as the run: a killed front door, forks, and other processes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import farm
from farm.client import Client, RemoteModel
from farm.errors import DeadlineExceeded, FarmError, Unavailable, WorkerLost
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import LIMIT_S
from tests.support.restarted_farm import RestartedFarm, restarted_farm
from tests.support.scripted_lines import in_farm
from tests.support.time_limits import scaled

MODELS = """
import time
from pathlib import Path
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def square(x):
    time.sleep(0.004)
    return x**2

@farm.model(inputs={"x": 1}, outputs={"y": 1}, repeatable=False)
def once(x):
    with open(Path(__file__).with_name("runs"), "a") as runs:
        runs.write("run\\n")
    time.sleep(float(x[0]))
    return x

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def sleep(x):
    time.sleep(float(x[0]))
    return x
"""

POINTS = 600
FORKS_OF_THREADS = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


def arguments(folder: Path, over: str) -> list[str]:
    """Return those of a farm in this folder that clients reach over `over`."""
    (folder / "models.py").write_text(MODELS)
    (folder / "farm.toml").write_text('transport = "zmq"\n' if over == "zmq" else "")
    models = [f"models.py:{name}" for name in ("square", "once", "sleep")]
    return [*models, "--workers", "2", "--config", "farm.toml"]


ALL_ROADS = pytest.mark.parametrize("over", ["stream", "zmq", "http"], indirect=True)
SLOW = pytest.mark.slow


@pytest.fixture(
    params=["stream", pytest.param("zmq", marks=SLOW), pytest.param("http", marks=SLOW)]
)
def over(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def door(tmp_path: Path, over: str) -> Iterator[RestartedFarm]:
    with restarted_farm(tmp_path, *arguments(tmp_path, over)) as door:
        yield door


@pytest.fixture
def target(door: RestartedFarm, over: str) -> str | Path:
    return door.url if over == "http" else door.folder


@pytest.fixture
def client(target: str | Path) -> Iterator[Client]:
    with farm.connect(target, wait=LIMIT_S) as client:
        yield client


def squares(model: RemoteModel, numbers: range) -> list[float]:
    return [float(model([float(k)])[0]) for k in numbers]


@pytest.mark.slow
@ALL_ROADS
def test_map_and_single_calls_outlive_a_killed_front_door(
    door: RestartedFarm, client: Client
) -> None:
    square = client.model("square")
    with ThreadPoolExecutor(4) as threads:
        chains = [threads.submit(squares, square, range(100)) for _ in range(4)]
        outputs: dict[int, float] = {}
        for index, y in square.as_completed([float(k)] for k in range(POINTS)):
            assert index not in outputs
            outputs[index] = float(np.ravel(y)[0])
            if len(outputs) == 50:
                door.kill()
                door.start()
        assert outputs == {k: float(k**2) for k in range(POINTS)}
        for chain in chains:
            assert chain.result(LIMIT_S) == [float(k**2) for k in range(100)]


@pytest.mark.slow
@ALL_ROADS
def test_questions_are_asked_again(door: RestartedFarm, client: Client) -> None:
    square = client.model("square")
    door.kill()
    with ThreadPoolExecutor(4) as threads:
        names = threads.submit(client.line.names)
        described = threads.submit(client.describe, "once", {})
        status = threads.submit(client.status)
        model = threads.submit(client.model, "sleep")
        door.start()
        assert set(names.result(LIMIT_S)) <= {"once", "sleep", "square"}
        assert not described.result(LIMIT_S).repeatable
        assert "workers" in status.result(LIMIT_S)
        assert model.result(LIMIT_S)([0.0])[0] == 0.0
    assert squares(square, range(3)) == [0.0, 1.0, 4.0]


@pytest.mark.slow
def test_a_call_that_must_not_run_twice_fails_once_the_farm_is_back(
    door: RestartedFarm, client: Client, tmp_path: Path
) -> None:
    once = client.model("once")
    running: Future[np.ndarray] = once.submit([600.0])
    runs = tmp_path / "runs"
    wait_until(runs.exists)
    door.kill()
    door.start()
    assert isinstance(running.exception(LIMIT_S), WorkerLost | Unavailable)
    assert client.model("once")([0.0])[0] == 0.0
    assert runs.read_text() == "run\nrun\n"


def test_deadlines_hold_while_the_farm_is_away(door: RestartedFarm, target: str | Path) -> None:
    with farm.connect(target, deadline_s=scaled(1.0), wait=10 * LIMIT_S) as client:
        sleep = client.model("sleep")
        running = sleep.submit([600.0])
        door.kill()
        assert isinstance(running.exception(LIMIT_S), DeadlineExceeded)


def test_patience_ends(door: RestartedFarm, target: str | Path) -> None:
    with farm.connect(target, wait=scaled(1.0)) as client:
        sleep = client.model("sleep")
        running = sleep.submit([600.0])
        wait_until(lambda: in_farm(client) == 1)
        door.kill()
        assert isinstance(running.exception(LIMIT_S), Unavailable)
        with pytest.raises(Unavailable):
            client.status()


def test_a_farm_that_is_stopped_and_started_again_gets_the_calls(
    door: RestartedFarm, client: Client
) -> None:
    """Its front door answers that it is shutting down, and later that it has no worker yet."""
    sleep = client.model("sleep")
    calls = [sleep.submit([0.2]) for _ in range(20)]
    wait_until(lambda: in_farm(client) > 1)
    served = door.up()
    served.process.send_signal(signal.SIGINT)
    served.process.send_signal(signal.SIGINT)  # it does not wait for open calls
    served.process.communicate(timeout=LIMIT_S)
    door.start()
    assert [float(call.result(LIMIT_S)[0]) for call in calls] == [0.2] * 20


@pytest.mark.slow
@pytest.mark.parametrize("over", ["stream", "http"], indirect=True)
def test_a_client_may_connect_before_the_farm_is_up(tmp_path: Path, over: str) -> None:
    door = RestartedFarm(tmp_path, *arguments(tmp_path, over))

    def run() -> float:
        target = door.url if over == "http" else door.folder
        with farm.connect(target, wait=10 * LIMIT_S) as client:
            return float(client.model("square")([3.0])[0])

    try:
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(run)
            assert threading.active_count() > 1
            door.start()
            assert answer.result(LIMIT_S) == 9.0
    finally:
        door.close()


# Other processes

_inherited: RemoteModel


def chain(model: RemoteModel, numbers: range) -> list[float]:
    """Return the squares by single calls, and check `map` on the way."""
    expected = np.array([[float(k**2)] for k in numbers])
    assert np.array_equal(model.map(np.array([[float(k)] for k in numbers])), expected)
    return squares(model, numbers)


def forked(model: RemoteModel) -> multiprocessing.pool.Pool:
    """Return a pool of four processes that inherit the model; their arguments are not pickled."""
    context = multiprocessing.get_context("fork")
    return context.Pool(4, initializer=inherit, initargs=(model,))


def inherit(model: RemoteModel) -> None:
    global _inherited
    _inherited = model


def inherited_chain(numbers: range) -> list[float]:
    return chain(_inherited, numbers)


@pytest.mark.slow
@FORKS_OF_THREADS
@ALL_ROADS
def test_a_forked_process_has_a_connection_of_its_own(door: RestartedFarm, client: Client) -> None:
    square, sleep = client.model("square"), client.model("sleep")
    squares(square, range(3))
    open_in_parent = sleep.submit([0.3])
    inherited = sleep.as_completed([[0.3]])
    with forked(square) as pool:
        ranges = [range(10 * k, 10 * k + 10) for k in range(8)]
        expected = [[float(k**2) for k in numbers] for numbers in ranges]
        assert pool.map_async(inherited_chain, ranges, 1).get(LIMIT_S) == expected
    assert float(open_in_parent.result(LIMIT_S)[0]) == 0.3
    assert [float(np.ravel(y)[0]) for _, y in inherited] == [0.3]
    assert squares(square, range(3)) == [0.0, 1.0, 4.0]
    lost = [e for e in client.status()["events"] if e["event"] == "lost"]
    assert lost == []


@FORKS_OF_THREADS
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_forked_chains_outlive_a_killed_front_door(door: RestartedFarm, client: Client) -> None:
    square = client.model("square")
    squares(square, range(3))
    with forked(square) as pool:
        numbers = range(300)
        running = pool.map_async(inherited_chain, [numbers] * 4, 1)
        wait_until(lambda: client.status()["done"] > 100)
        door.kill()
        door.start()
        assert running.get(10 * LIMIT_S) == [[float(k**2) for k in numbers]] * 4
    assert squares(square, range(3)) == [0.0, 1.0, 4.0]


@pytest.mark.slow
def test_a_pickled_model_connects_in_a_new_process(client: Client) -> None:
    square = client.model("square")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        outputs = pool.map(square, [[float(k)] for k in range(8)])
    assert [float(y[0]) for y in outputs] == [float(k**2) for k in range(8)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("over", ["stream"], indirect=True)
def test_loky_and_dask_call_a_pickled_model(client: Client) -> None:
    import distributed
    import joblib  # type: ignore[import-untyped]  # it has no types
    from joblib.externals.loky import (  # type: ignore[import-untyped]  # the same
        get_reusable_executor,
    )

    square = client.model("square")
    expected = [float(k**2) for k in range(8)]
    points = [[float(k)] for k in range(8)]
    outputs = joblib.Parallel(n_jobs=2)(joblib.delayed(square)(point) for point in points)
    assert [float(y[0]) for y in outputs] == expected
    get_reusable_executor().shutdown(wait=True)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as dask,
    ):
        answers = dask.gather(dask.map(square, points))
    assert [float(y[0]) for y in answers] == expected


@pytest.mark.slow
def test_a_model_is_unpickled_while_the_farm_is_away(door: RestartedFarm, client: Client) -> None:
    pickled = pickle.dumps(client.model("square"))
    door.kill()
    with ThreadPoolExecutor(1) as threads:
        restored = threads.submit(pickle.loads, pickled)
        door.start()
        square: RemoteModel = restored.result(LIMIT_S)
    assert squares(square, range(3)) == [0.0, 1.0, 4.0]


def test_errors_stay_errors(client: Client) -> None:
    """Only what a restart explains is asked again."""
    with pytest.raises(FarmError, match="no such"):
        client.model("no such")
