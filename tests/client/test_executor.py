"""The standard executor over remote models and over functions that call them."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import farm
from farm.client import Client, Executor, RemoteModel
from farm.errors import ModelFailed
from tests.support.coroutines import LIMIT_S, wait_until


@pytest.fixture
def pool() -> Iterator[Executor]:
    with Executor(8) as pool:
        yield pool


def test_a_remote_model_is_a_function(pool: Executor, moody: RemoteModel) -> None:
    assert isinstance(pool, concurrent.futures.Executor)
    future = pool.submit(moody, 3.0)
    assert future.result(LIMIT_S)[0] == 3.0
    assert [y[0] for y in pool.map(moody, [1.0, 2.0])] == [1.0, 2.0]
    assert isinstance(pool.submit(moody, -1.0).exception(LIMIT_S), ModelFailed)


def test_its_config_goes_along(pool: Executor, client: Client) -> None:
    affine = client.model("affine")
    future = pool.submit(affine, np.zeros(4), config={"add": 1.0})
    assert future.result(LIMIT_S).tolist() == [1.0, 1.0]


def test_functions_run_beside_each_other(pool: Executor, moody: RemoteModel) -> None:
    def work(x: float) -> float:
        return 2.0 * float(moody(x)[0])

    assert list(pool.map(work, [3.0, 2.0, 1.0])) == [6.0, 4.0, 2.0]
    assert list(pool.map(pow, [2, 3], [3, 2])) == [8, 9]
    meeting = threading.Barrier(8)
    assert sorted(pool.map(lambda _: meeting.wait(LIMIT_S), range(8))) == list(range(8))


def test_errors_are_raised_at_their_place(pool: Executor) -> None:
    def invert(x: float) -> float:
        return 1.0 / x

    results = pool.map(invert, [1.0, 0.0])
    assert next(results) == 1.0
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_the_end_waits_for_what_runs(moody: RemoteModel) -> None:
    done = []

    def work(k: int) -> None:
        time.sleep(0.05)
        done.append(k)

    with Executor(2) as pool:
        for k in range(4):
            pool.submit(work, k)
        future = pool.submit(moody, 100.2)
    assert sorted(done) == [0, 1, 2, 3]
    assert future.done()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(moody, 1.0)


def test_an_exception_does_not_wait(client: Client, moody: RemoteModel) -> None:
    running = threading.Event()
    never = threading.Event()

    def block() -> None:
        running.set()
        never.wait(LIMIT_S)

    def leave_early() -> None:
        with Executor(1) as pool:
            futures.append(pool.submit(block))
            futures.append(pool.submit(moody, 101.0))
            futures.append(pool.submit(print, "never"))
            assert running.wait(LIMIT_S)
            raise KeyboardInterrupt

    futures: list[concurrent.futures.Future[object]] = []
    with pytest.raises(KeyboardInterrupt):
        leave_early()
    assert not futures[0].done()
    never.set()
    assert [f.cancelled() for f in futures] == [False, True, True]


@pytest.mark.parametrize("kind", ["client", "chain"])
def test_each_thread_has_a_name(client: Client, moody: RemoteModel, kind: str) -> None:
    run = uuid.uuid4()
    meeting = threading.Barrier(3)

    def sample(seed: int) -> None:
        meeting.wait(LIMIT_S)  # so that three threads run
        for _ in range(seed):
            moody(1.0)

    def work() -> None:
        moody(1.0)

    with Executor(3, **{kind: f"{run} {{i}}"}) as pool:
        list(pool.map(sample, [2, 3, 4]))
        list(pool.map(moody, [1.0] * 5))  # uses no thread
    with Executor(3, **{kind: f"{run} all"}) as pool:
        list(pool.map(moody, [1.0] * 5))
        pool.submit(moody, 1.0).result(LIMIT_S)
        pool.submit(work).result(LIMIT_S)
        with farm.chain("not that of the pool's threads"):
            pool.submit(work).result(LIMIT_S)
    done: dict[str, int] = {}
    for row in client.status()["chains"]:
        if str(run) in str(row[kind]):
            done[row[kind]] = done.get(row[kind], 0) + row["done"]
    assert done.pop(f"{run} all") == 8
    assert sorted(done) == [f"{run} {i}" for i in range(3)]
    assert sorted(done.values()) == [2, 3, 4]


def test_threads_end_with_it() -> None:
    with Executor(3) as pool:
        list(pool.map(abs, range(10)))
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "farm executor"])


FORKER = """
import concurrent.futures, os, signal, sys, threading
from pathlib import Path
import farm
from farm.client import RemoteModel
from farm.errors import Cancelled

go = threading.Event()
submitting = threading.Event()

class Slow(RemoteModel):
    def __init__(self):
        pass

    def submit(self, x):
        submitting.set()
        go.wait()
        return model.submit(x)

model = farm.connect(sys.argv[1]).model()
with farm.Executor(2) as pool:
    of_model, of_thread = pool.submit(model, [50.0]), pool.submit(go.wait)
    waiting = pool.submit(go.wait), pool.submit(go.wait)
    threading.Thread(target=pool.submit, args=(Slow(), [3.0]), daemon=True).start()
    submitting.wait()  # the executor is locked now
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        assert pool.submit(model, [4.0]).result(30)[0] == 16.0
        assert pool.submit(pow, 2, 5).result(30) == 32
        assert [y[0] for y in pool.map(lambda x: model([x]), [1.0, 2.0])] == [1.0, 4.0]
        for future in (of_model, of_thread, *waiting):
            error = future.exception(30)
            assert isinstance(error, Cancelled), error
        pool.shutdown()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not any(future.done() for future in (of_model, of_thread, *waiting))
    Path(sys.argv[2]).touch()
    go.set()
assert of_model.result(0)[0] == 2500.0
assert [future.result(0) for future in (of_thread, *waiting)] == [True] * 3
"""


@pytest.mark.slow
def test_a_forked_process_has_an_executor_without_its_parents_calls(
    run_forker: Callable[..., None], tmp_path: Path
) -> None:
    run_forker(FORKER, tmp_path / "go")


def test_an_executor_has_a_thread() -> None:
    with pytest.raises(ValueError, match="threads is 0; expected 1 or more"):
        Executor(0)
