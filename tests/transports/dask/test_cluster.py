"""Calls in a real Dask cluster that grows, shrinks and is killed: each is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Operation, canonical_config
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import WorkerLost
from farm.transports.dask.cluster import Membership, one_line
from farm.transports.dask.transport import DaskTransport
from farm.wire.usage import Used
from tests.support.coroutines import until
from tests.support.dask_cluster import (
    LIMIT_S,
    MODELS,
    Cluster,
    dask_cluster,
    expect_squares,
    in_flight,
    joined,
    outcomes_of,
    slots,
    specs,
    square,
)

pytestmark = pytest.mark.slow


async def test_slots_are_the_threads_of_the_cluster(cluster: Cluster) -> None:
    first = cluster.add_worker(2)
    async with joined(cluster) as dispatcher:
        await until(lambda: slots(dispatcher) == 2, LIMIT_S)
        cluster.add_worker(1)
        await until(lambda: slots(dispatcher) == 3, LIMIT_S)
        calls = [square(float(i), sleep=0.05) for i in range(12)]
        assert len(expect_squares(await outcomes_of(dispatcher, calls))) == 2
        first.kill()
        await until(lambda: slots(dispatcher) == 1, LIMIT_S)
        cluster.workers[1].terminate()
        await until(lambda: slots(dispatcher) == 0, LIMIT_S)
        waiting = asyncio.create_task(outcomes_of(dispatcher, calls))
        await asyncio.sleep(0)
        assert in_flight(dispatcher) == 0
        cluster.add_worker()
        expect_squares(await asyncio.wait_for(waiting, LIMIT_S))
    assert cluster.tasks() == []


def rows(dispatcher: Dispatcher) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dispatcher.snapshot()["dask"]
    return sorted(found, key=lambda row: int(row["threads"]))


async def test_each_worker_of_the_cluster_is_a_row(cluster: Cluster) -> None:
    cluster.add_worker(1)
    larger = cluster.add_worker(2)
    async with joined(cluster) as dispatcher:
        heard: list[Used] = []
        dispatcher.on_used.append(lambda worker, used: heard.append(used))
        await until(lambda: len(rows(dispatcher)) == 2, LIMIT_S)
        assert [(row["threads"], row["slots"], row["state"]) for row in rows(dispatcher)] == [
            (1, 1, "open"),
            (2, 2, "open"),
        ]
        assert len({row["name"] for row in rows(dispatcher)}) == 2
        await until(lambda: all(row["memory_bytes"] for row in rows(dispatcher)), LIMIT_S)
        await until(lambda: heard and heard[-1].memory_bytes, LIMIT_S)
        await until(lambda: heard[-1].processor is not None, LIMIT_S)
        calls = [square(float(i), sleep=2.0) for i in range(3)]
        answers = asyncio.create_task(outcomes_of(dispatcher, calls))
        await until(lambda: [r["in_flight"] for r in rows(dispatcher)] == [1, 2], LIMIT_S)
        expect_squares(await answers)
        assert [row["done"] for row in rows(dispatcher)] == [1, 2]
        await until(lambda: [r["in_flight"] for r in rows(dispatcher)] == [0, 0], LIMIT_S)
        larger.kill()
        await until(lambda: [r["threads"] for r in rows(dispatcher)] == [1], LIMIT_S)


async def test_calls_hold_a_resource_of_the_workers_that_have_it(cluster: Cluster) -> None:
    cluster.add_worker(2)
    cluster.add_worker(4, resources="GPU=1")
    async with joined(cluster, needs={"GPU": 1.0}, slots=8) as dispatcher:
        await until(lambda: len(rows(dispatcher)) == 2, LIMIT_S)
        assert [(row["slots"], row["state"]) for row in rows(dispatcher)] == [
            (0, "lacks resources"),
            (1, "open"),
        ]
        calls = [replace(square(float(i), sleep=0.05), model="Lone") for i in range(8)]
        assert len(expect_squares(await outcomes_of(dispatcher, calls))) == 1
        assert [row["done"] for row in rows(dispatcher)] == [0, 8]


async def test_a_resource_that_no_worker_has_is_told_and_awaited(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add_worker(1)
    transport = DaskTransport(cluster.address, specs(cluster), needs={"GPU": 2.0})
    dispatcher = Dispatcher([transport])
    dispatcher.start()
    text = "none of 1 Dask workers has GPU=2: dask worker --resources ..."
    await until(lambda: text in caplog.messages, LIMIT_S)
    assert not transport.ready.done()
    cluster.add_worker(2, resources="GPU=4")
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wrap_future(transport.ready)
    await until(lambda: slots(dispatcher) == 2, LIMIT_S)
    await dispatcher.close(grace_s=0.0)


async def test_a_killed_worker_costs_nothing(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.add_worker(2)
    async with joined(cluster) as dispatcher:
        await until(lambda: slots(dispatcher) == 4, LIMIT_S)
        answers: dict[int, list[object]] = {i: [] for i in range(200)}
        for i in answers:
            call = square(float(i), sleep=0.02)
            dispatcher.start_call(call, NO_HINTS, answers[i].append)
        await until(lambda: sum(map(len, answers.values())) > 20, LIMIT_S)
        cluster.workers[0].kill()
        await until(lambda: sum(map(len, answers.values())) > 60, LIMIT_S)
        cluster.add_worker(2)
        await until(lambda: all(answers.values()), LIMIT_S)
        assert [len(outcomes) for outcomes in answers.values()] == [1] * 200
        expect_squares([outcomes[0] for outcomes in answers.values()])  # type: ignore[misc]
    assert cluster.tasks() == []


async def test_a_call_that_kills_its_workers_is_lost_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "square.py").write_text(MODELS)
    impatient = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with dask_cluster(tmp_path, impatient) as cluster:
        for _ in range(2):
            cluster.add_worker(nanny=True)
        async with joined(cluster) as dispatcher:
            expect_squares(await outcomes_of(dispatcher, [square(float(i)) for i in range(20)]))
            calls = [square(float(i), sleep=0.01) for i in range(40)]
            waiting = asyncio.create_task(outcomes_of(dispatcher, calls))
            with pytest.raises(WorkerLost, match="1 of Dask's workers died with it"):
                await asyncio.wait_for(dispatcher.submit(square(1.0, exit=3)), LIMIT_S)
            expect_squares(await asyncio.wait_for(waiting, LIMIT_S))
        assert cluster.tasks() == []


def runs(folder: Path) -> list[str]:
    file = folder / "runs"
    return file.read_text().split() if file.exists() else []


async def test_what_must_not_run_twice_does_not(cluster: Cluster, tmp_path: Path) -> None:
    for _ in range(2):
        cluster.add_worker()
    async with joined(cluster) as dispatcher:
        config = canonical_config({"folder": str(tmp_path)})
        call = Call("Once", Operation.EVALUATE, (np.array([1.0]),), config)
        running = asyncio.create_task(dispatcher.submit(call))
        await until(lambda: runs(tmp_path), LIMIT_S)
        (pid,) = runs(tmp_path)
        (worker,) = [w for w in cluster.workers if w.pid == int(pid)]
        worker.kill()
        with pytest.raises(WorkerLost, match="'Once' is not repeatable"):
            await asyncio.wait_for(running, LIMIT_S)
        assert runs(tmp_path) == [pid]
        (tmp_path / "go").touch()
        assert (await dispatcher.submit(call)).outputs[0].tolist() == [1.0]


def permits(cluster: Cluster) -> dict[str, int]:
    """Return the number of entries in each queue of Dask's scheduler."""
    with distributed.Client(cluster.address, set_as_default=False) as client:
        found: dict[str, int] = client.run_on_scheduler(
            lambda dask_scheduler: {
                name: queue.qsize()
                for name, queue in dask_scheduler.extensions["queues"].queues.items()
            }
        )
        return found


@pytest.mark.parametrize("cancelled", [True, False])
async def test_what_must_not_run_twice_is_recalled_if_nobody_has_begun_it(
    cluster: Cluster, tmp_path: Path, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two calls given to one thread, the one that waits there has its permit withdrawn.

    cancelled: its Dask task is, too. If that fails, the task begins and finds no permit.
    """
    cluster.add_worker()
    async with joined(cluster, slots=2) as dispatcher:
        config = canonical_config({"folder": str(tmp_path)})
        call = Call("Once", Operation.EVALUATE, (np.array([1.0]),), config)
        both = [asyncio.create_task(dispatcher.submit(call)) for _ in range(2)]
        await until(lambda: len(cluster.tasks()) == 2 and runs(tmp_path), LIMIT_S)
        if not cancelled:
            monkeypatch.setattr(Membership, "_not_begun", _withdrawn_only)
        dispatcher._transports[0].stop_workers()
        if cancelled:
            await until(lambda: in_flight(dispatcher) == 1, LIMIT_S)
        else:
            await until(lambda: sum(permits(cluster).values()) == 0, LIMIT_S)
        (tmp_path / "go").touch()
        done, waiting = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().outputs[0].tolist() for task in done] == [[1.0]]
        assert len(waiting) == 1
        await until(lambda: in_flight(dispatcher) == 0, LIMIT_S)
        assert not any(task.done() for task in waiting), "it goes back to its queue"
        waiting.pop().cancel()
    assert len(runs(tmp_path)) == 1
    assert permits(cluster) == {}


async def _withdrawn_only(member: Membership, flights: Sequence[Any]) -> list[Any]:
    """Take the permits, and then fail."""
    for flight in flights:
        await member._withdraw(flight)
    raise OSError("no route")


async def test_an_answer_that_dies_with_its_holder_is_not_found_by_running_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Dask would run the task again to get its result."""
    worker = cluster.add_worker(2)
    async with joined(cluster) as dispatcher:
        (tmp_path / "go").touch()
        config = canonical_config({"folder": str(tmp_path), "dies with answer": True})
        call = Call("Once", Operation.EVALUATE, (np.array([1.0]),), config)
        outcome = asyncio.create_task(dispatcher.submit(call))
        await until(lambda: worker.poll() is not None, LIMIT_S)
        cluster.add_worker(2)
        with pytest.raises(WorkerLost, match="'Once' is not repeatable"):
            await asyncio.wait_for(outcome, LIMIT_S)
    assert len(runs(tmp_path)) == 1
    assert permits(cluster) == {}


async def test_a_worker_that_lacks_the_models_gets_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_worker()
    async with joined(cluster) as dispatcher:
        cluster.add_worker(environment={"BROKEN": "1"})
        await until(lambda: slots(dispatcher) == 2, LIMIT_S)
        calls = [square(float(i), sleep=0.02) for i in range(20)]
        assert len(expect_squares(await outcomes_of(dispatcher, calls))) == 1
        assert slots(dispatcher) == 1
        (event,) = [e for e in dispatcher.snapshot()["events"] if e["event"] == "unfit"]
        assert "no licence here" in event["text"]
        # Dask keeps a task for its only allowed worker; farm frees it when that dies.
        hangs = tmp_path / "hangs"
        calls = [square(0.0, **{"hang once": str(hangs)})]
        waiting = asyncio.create_task(outcomes_of(dispatcher, calls))
        await until(hangs.exists, LIMIT_S)
        cluster.add_worker()
        await until(lambda: slots(dispatcher) == 2, LIMIT_S)
        cluster.workers[0].kill()
        expect_squares(await asyncio.wait_for(waiting, LIMIT_S))


async def test_an_adaptive_cluster_sees_calls_before_it_has_workers(cluster: Cluster) -> None:
    cluster.add_worker()
    async with joined(cluster, slots=3) as dispatcher:
        assert slots(dispatcher) == 3
        cluster.workers[0].kill()
        calls = [square(float(i)) for i in range(5)]
        waiting = asyncio.create_task(outcomes_of(dispatcher, calls))
        await until(lambda: len(cluster.tasks()) == 3, LIMIT_S)
        cluster.add_worker()
        expect_squares(await asyncio.wait_for(waiting, LIMIT_S))


def test_reasons_are_one_line() -> None:
    assert one_line(TimeoutError()) == "no answer in time"
    assert one_line(OSError("no\nroute")) == "no route"
    assert one_line(KeyError()) == "KeyError"


async def test_a_cluster_that_its_user_restarts(cluster: Cluster) -> None:
    cluster.add_worker(nanny=True)
    async with joined(cluster) as dispatcher:
        calls = [square(float(i), sleep=0.05) for i in range(20)]
        waiting = asyncio.create_task(outcomes_of(dispatcher, calls))
        await until(lambda: in_flight(dispatcher), LIMIT_S)
        await asyncio.to_thread(restart, cluster)
        expect_squares(await asyncio.wait_for(waiting, LIMIT_S))


def restart(cluster: Cluster) -> None:
    with distributed.Client(cluster.address, set_as_default=False) as client:
        client.restart()
