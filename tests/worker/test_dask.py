"""A Dask worker: loads models once, and runs tasks that were not recalled."""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

from farm.call import Call, Operation, Origin
from farm.errors import Unavailable
from farm.model import Config, Inputs, Model
from farm.worker import dask as dask_worker
from farm.worker.dask import Models, NotPermitted, Ran, Recalled, Unfit
from tests.support.dask_cluster import (
    LIMIT_S,
    MODELS,
    Cluster,
    dask_cluster,
    expect_squares,
    joined,
    keep,
    outcomes_of,
    square,
)


async def test_models_that_cannot_be_loaded(cluster: Cluster) -> None:
    cluster.add_worker(environment={"BROKEN": "1"})
    with pytest.raises(Unavailable, match=r"cannot load the models: .* OSError: no licence") as why:
        async with joined(cluster):
            pass
    assert "same files and packages" in why.value.message
    assert "Traceback" in why.value.detail


@pytest.mark.slow
async def test_a_file_that_changed_is_not_run_as_it_was(cluster: Cluster) -> None:
    cluster.add_worker()
    async with joined(cluster) as dispatcher:
        expect_squares(await outcomes_of(dispatcher, [square(0.0)]))
        dispatcher.snapshot()
    (cluster.folder / "square.py").write_text(MODELS.replace("** 2", "** 3"))
    with pytest.raises(Unavailable, match=r"square\.py has changed .* client\.restart\(\)"):
        async with joined(cluster):
            pass


@pytest.mark.slow
async def test_models_are_loaded_once_a_process(cluster: Cluster) -> None:
    (cluster.folder / "square.py").write_text(MODELS + "\nprint('loaded', flush=True)\n")
    cluster.add_worker(4)
    for _ in range(2):
        async with joined(cluster) as dispatcher:
            expect_squares(await outcomes_of(dispatcher, [square(float(i)) for i in range(20)]))
    assert (cluster.folder / "worker.log").read_text().count("loaded\n") == 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "square.py").write_text(MODELS)
    with dask_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def models() -> Iterator[Models]:
    life = secrets.token_hex(4)
    keep(["kept"], {"Twice": Twice()})
    yield Models(("kept",), life)
    dask_worker.forget(Models(("kept",), life))


class Twice(Model):
    inputs = {"x": 1}
    outputs = {"y": 1}
    name = "Twice"

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return 2.0 * inputs["x"]


def in_this_process(workers: int = 1, threads: int = 1) -> distributed.Client:
    """Return the client of a cluster in this process."""
    return distributed.Client(
        processes=False,
        n_workers=workers,
        threads_per_worker=threads,
        dashboard_address=":0",
        set_as_default=False,
    )


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    with in_this_process() as client:
        yield client


CALL = Call("Twice", Operation.EVALUATE, (np.ones(1),))

run = functools.partial(dask_worker.run, permit=False, once=False)
run_once = functools.partial(dask_worker.run, permit=True, once=True)


def test_what_was_asked_back_does_not_begin(models: Models, client: distributed.Client) -> None:
    ran: Any = client.submit(run, models, 1, [CALL]).result()
    assert ran.outcomes[0].outputs[0].tolist() == [2.0]
    assert dask_worker.recall(models.life, [1, 2]) == [1]
    said: Any = client.submit(run, models, 2, [CALL]).result()
    assert isinstance(said, Recalled)
    elsewhere = Models(models.specs, "another")
    said = client.submit(run, elsewhere, 2, [CALL]).result()
    assert isinstance(said, Ran)


def test_what_runs_once_runs_once_and_not_without_a_permit(
    models: Models, client: distributed.Client
) -> None:
    permit = distributed.Queue(models.permit(7), client)
    permit.put(1)
    for expected in (Ran, NotPermitted):
        future = client.submit(run_once, models, 7, [CALL], pure=False)
        assert isinstance(future.result(), expected)
    permit.close()
    future = client.submit(run_once, models, 8, [CALL], pure=False)
    assert isinstance(future.result(), NotPermitted), "its queue is gone, or never was"


def test_a_permit_goes_to_one_of_many_that_ask_at_once(models: Models) -> None:
    with in_this_process(workers=2, threads=8) as client:
        for number in range(5):
            permit = distributed.Queue(models.permit(number), client)
            permit.put(1)
            futures = [
                client.submit(run_once, models, number, [CALL], pure=False) for _ in range(16)
            ]
            said: list[Any] = client.gather(futures)
            assert [type(each) for each in said].count(Ran) == 1
            permit.close()


def test_a_thread_idles_between_its_runs(models: Models) -> None:
    with in_this_process() as client:
        rans: list[Any] = [client.submit(run, models, n, [CALL]).result() for n in (1, 2)]
    first, second = (ran.outcomes[0] for ran in rans)
    assert first.idle_s < 0, "it was new"
    assert 0 < second.idle_s < LIMIT_S


def test_the_log_of_the_dask_worker_names_calls_that_fail(
    models: Models, client: distributed.Client
) -> None:
    wrong = replace(CALL, inputs=(np.ones(2),))
    calls = [CALL, wrong, replace(wrong, origin=Origin("a-1", "anna"))]
    client.submit(run, models, 1, calls).result()
    (lines,) = client.get_worker_logs().values()
    said = [text for _, text in lines if " failed: " in text]
    assert len(said) == 1
    assert "call a-1: evaluate of model 'Twice' failed: input " in said[0]


def test_models_are_kept_until_the_last_farm_that_uses_them_has_left(
    models: Models, client: distributed.Client
) -> None:
    other = Models(models.specs, "other")
    numbers = itertools.count()

    def told(by: Models) -> object:
        return client.submit(run, by, next(numbers), [CALL]).result()

    assert isinstance(told(models), Ran)
    assert isinstance(told(other), Ran)
    dask_worker.forget(other)
    assert isinstance(told(models), Ran)
    dask_worker.forget(models)
    assert isinstance(told(models), Unfit)


def test_fates_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_worker, "KEPT", 3)
    monkeypatch.setattr(dask_worker, "_has_begun", {})
    for number in range(10):
        assert dask_worker.recall("life", [number]) == []
    assert list(dask_worker._has_begun) == [("life", 7), ("life", 8), ("life", 9)]


@pytest.mark.parametrize(("version", "on_dask"), [("file:ab", ""), ("3", "3"), ("", "")])
def test_only_a_version_of_the_users_own_counts(version: str, on_dask: str) -> None:
    class Square(Model):
        inputs = {"x": 1}
        outputs = {"y": 1}

        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            return inputs["x"]

    square = Square()
    square.version = version
    specs = (f"versions-{secrets.token_hex(4)}",)
    keep(specs, {"square": square})
    described = dask_worker.describe_models(Models(specs, "life"))
    assert not isinstance(described, Unfit)
    assert [info.version for info in described.infos] == [on_dask]
