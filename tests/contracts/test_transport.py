"""The contract of every transport: one suite for all, with models in this process."""

from __future__ import annotations

import asyncio
import functools
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import uvloop
from distributed import LocalCluster

import farm
from farm.call import Call, Derivative, Hints, Operation, Result, WorkerInfo, canonical_config
from farm.declared import Tensors
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import InvalidInput, InvalidOutput, ModelFailed, Unavailable
from farm.model import Config, Inputs, Model
from farm.sequences import Sequence, SequenceStep
from farm.transports.connection import Connection
from farm.transports.dask.transport import DaskTransport
from farm.transports.peers import Listener, Peers
from farm.transports.stream.listener import UnixListener
from farm.transports.threads import LocalTransport
from farm.transports.zmq.listener import ZmqListener
from farm.worker.host.host import WorkerHost
from farm.worker.runner import Runner
from tests.support.coroutines import LIMIT_S, on_loop, until
from tests.support.dask_cluster import keep


class Power(Model):
    """x**3 with its gradient; `n` of the config is its size."""

    inputs = {"x": 1}
    outputs = {"y": 1}

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        return {"x": config.get("n", 1)}, {"y": config.get("n", 1)}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return inputs["x"] ** 3

    def gradient(self, out: int, in_: int, inputs: Inputs, sens: Any, config: Config) -> Any:
        return 3.0 * inputs["x"] ** 2 * sens


class Batched(Power):
    """The same model for many rows at once; reports their number. Each costs its x."""

    max_batch = 64
    largest = 0

    def cost(self, inputs: Inputs, config: Config) -> float:
        return float(inputs["x"][0])

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.largest = max(self.largest, len(inputs["x"]))
        return inputs["x"] ** 3


class Gate(Power):
    """Blocks calls with an x that is not positive until the gate is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waiting = 0
        self.ran: list[float] = []

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.ran.append(inputs["x"][0])
        if inputs["x"][0] <= 0.0:
            self.waiting += 1
            assert self.open.wait(LIMIT_S)
        return inputs["x"] ** 3


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def fail(x: Any) -> Any:
    raise ValueError(f"diverged at {x[0]}")


@farm.model(inputs={"x": 1}, outputs={"y": 2})
def short(x: Any) -> Any:
    return x


class Start(Protocol):
    """Starts `workers` workers with `models`; returns the transport to them."""

    def __call__(self, models: Mapping[str, Model], workers: int) -> Any: ...


@asynccontextmanager
async def local(models: Mapping[str, Model], workers: int) -> AsyncIterator[Dispatcher]:
    dispatcher = Dispatcher([LocalTransport(models, workers=workers)])
    dispatcher.start()
    yield dispatcher
    await dispatcher.close(grace_s=LIMIT_S)


@asynccontextmanager
async def zmq(models: Mapping[str, Model], workers: int) -> AsyncIterator[Dispatcher]:
    listener = ZmqListener()
    async with dialed_in(listener, listener.for_workers, models, workers) as dispatcher:
        yield dispatcher


@asynccontextmanager
async def stream(models: Mapping[str, Model], workers: int) -> AsyncIterator[Dispatcher]:
    with tempfile.TemporaryDirectory() as folder:
        listener = UnixListener(Path(folder))
        connection = Connection("", local=str(listener.place.path), host=socket.gethostname())
        async with dialed_in(listener, connection, models, workers) as dispatcher:
            yield dispatcher


@asynccontextmanager
async def dialed_in(
    listener: Listener, connection: Connection, models: Mapping[str, Model], workers: int
) -> AsyncIterator[Dispatcher]:
    """Start workers in threads that connect to the transport."""
    dispatcher = Dispatcher([Peers(listener)])
    dispatcher.start()
    threads = []
    for i in range(workers):
        runner = Runner(models)
        info = WorkerInfo(f"{socket.gethostname()}/{i}", runner.models())
        host = WorkerHost(runner, connection, info)
        threads.append(threading.Thread(target=host.run))
        threads[-1].start()
    await dispatcher.wait_for_workers(workers, timeout_s=LIMIT_S)
    yield dispatcher
    await dispatcher.close(grace_s=LIMIT_S)
    for thread in threads:
        await asyncio.to_thread(thread.join, LIMIT_S)
        assert not thread.is_alive()


@asynccontextmanager
async def dask(models: Mapping[str, Model], workers: int) -> AsyncIterator[Dispatcher]:
    """Start a Dask cluster in this process, so that tests can share objects with models."""
    specs = ["objects-of-this-process"]
    keep(specs, models)
    cluster = await asyncio.to_thread(
        LocalCluster,
        n_workers=workers,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        dashboard_address=":0",
    )
    try:
        transport = DaskTransport(cluster.scheduler_address, specs)
        dispatcher = Dispatcher([transport])
        dispatcher.start()
        await asyncio.wait_for(asyncio.wrap_future(transport.ready), LIMIT_S)
        await until(lambda: dispatcher.snapshot()["workers"][0]["slots"] == workers)
        yield dispatcher
        await dispatcher.close(grace_s=LIMIT_S)
        scheduler = cluster.scheduler
        assert scheduler is not None
        assert not scheduler.tasks
    finally:
        await asyncio.to_thread(cluster.close)


ROADS = [
    pytest.param(
        start,
        fast_loop,
        id=f"{start.__name__}-{'uvloop' if fast_loop else 'asyncio'}",
        marks=pytest.mark.slow if start is dask and not fast_loop else (),
    )
    for start in (local, stream, zmq, dask)
    for fast_loop in (False, True)
]
"""Servers run on uvloop; a cluster of Dask takes long to start, and brings its own loop."""

Contract = Callable[[Start], Coroutine[Any, Any, None]]


def contract(test: Contract) -> Callable[[Start, bool], None]:
    """Decorator: run the test on every transport, and with both event loops."""

    @pytest.mark.parametrize(("start", "fast_loop"), ROADS)
    def run(start: Start, fast_loop: bool) -> None:
        if fast_loop:
            uvloop.run(asyncio.wait_for(test(start), 2 * LIMIT_S))
        else:
            on_loop(test)(start)

    functools.update_wrapper(run, test, assigned=("__name__", "__doc__", "__module__"))
    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would look at its arguments
    return run


BY_ITSELF = Hints(call_id="one")
"""Calls with an id are no rows of one task."""


def cube(x: float, model: str = "power", config: str = "{}") -> Call:
    return Call(model, Operation.EVALUATE, (np.array([x]),), config)


def snapshot(dispatcher: Dispatcher, what: str) -> int:
    return sum(row[what] for row in dispatcher.snapshot()["queues"])


@contract
async def test_answers(start: Start) -> None:
    async with start({"power": Power()}, 1) as dispatcher:
        result = await dispatcher.submit(cube(2.0))
        assert result.outputs[0].tolist() == [8.0]
        (worker,) = dispatcher.snapshot()["workers"]
        assert result.worker == worker["name"] or start is dask  # Dask reports its own worker
        assert result.worker.startswith(socket.gethostname() + "/")
        assert 0.0 <= result.run_time_s < LIMIT_S


@contract
async def test_derivatives_and_configs(start: Start) -> None:
    async with start({"power": Power()}, 1) as dispatcher:
        config = canonical_config({"n": 3})
        x, sens = np.arange(3.0), np.ones(3)
        gradient = Derivative(0, 0, sens=sens)
        call = Call("power", Operation.GRADIENT, (x,), config, gradient)
        assert (await dispatcher.submit(call)).outputs[0].tolist() == [0.0, 3.0, 12.0]
        info = await dispatcher.describe("power", config)
        assert info.inputs[0].shape == (3,)


@contract
async def test_costs_of_more_rows_than_a_batch_has(start: Start) -> None:
    async with start({"batched": Batched()}, 1) as dispatcher:
        x = np.arange(200.0)[:, None]
        result = await dispatcher.submit(Call("batched", Operation.COST, (x,), rows=len(x)))
        assert np.array_equal(result.outputs[0], x)


@contract
async def test_errors(start: Start) -> None:
    async with start({"fail": fail, "short": short, "power": Power()}, 1) as dispatcher:
        with pytest.raises(ModelFailed, match=r"ValueError: diverged at 7\.0") as caught:
            await dispatcher.submit(cube(7.0, "fail"))
        assert "Traceback" in caught.value.detail
        assert Path(__file__).name in caught.value.detail
        with pytest.raises(InvalidOutput, match=r"expected \(2,\)"):
            await dispatcher.submit(cube(7.0, "short"))
        with pytest.raises(InvalidInput):
            await dispatcher.submit(cube(7.0, config='{"n":2}'))
        assert (await dispatcher.submit(cube(2.0))).outputs[0][0] == 8.0


@pytest.mark.slow
@contract
async def test_many_calls_each_get_their_own_answer(start: Start) -> None:
    models = {"power": Power(), "batched": Batched(), "fail": fail}
    async with start(models, 2) as dispatcher:
        names = list(models)
        many = 300 if start is dask else 2000
        calls = [cube(float(i), names[i % 3]) for i in range(many)]
        outcomes = await asyncio.gather(
            *[dispatcher.submit(call) for call in calls], return_exceptions=True
        )
        for i, outcome in enumerate(outcomes):
            if i % 3 == 2:
                assert isinstance(outcome, ModelFailed)
                assert outcome.message.endswith(f"diverged at {float(i)}")
            else:
                assert isinstance(outcome, Result)
                assert outcome.outputs[0].tolist() == [float(i) ** 3]
        assert models["batched"].largest > 1  # type: ignore[attr-defined]  # of the model above
        assert snapshot(dispatcher, "done") + snapshot(dispatcher, "failed") == many


@pytest.mark.slow
@contract
async def test_large_arrays_both_ways(start: Start) -> None:
    config = canonical_config({"n": 1_000_000})
    async with start({"power": Power()}, 1) as dispatcher:
        arrays = [np.full(1_000_000, float(i)) for i in range(4)]
        calls = [Call("power", Operation.EVALUATE, (x,), config) for x in arrays]
        results = await asyncio.gather(*[dispatcher.submit(call) for call in calls])
        for i, result in enumerate(results):
            assert result.outputs[0].shape == (1_000_000,)
            assert (result.outputs[0] == float(i) ** 3).all()
            result.outputs[0][0] = -1.0  # the caller may write to it
        assert [x[0] for x in arrays] == [0.0, 1.0, 2.0, 3.0]


@contract
async def test_empty_arrays(start: Start) -> None:
    async with start({"power": Power()}, 1) as dispatcher:
        call = Call("power", Operation.EVALUATE, (np.zeros(0),), '{"n":0}')
        assert (await dispatcher.submit(call)).outputs[0].shape == (0,)


@contract
async def test_calls_are_taken_back_from_a_busy_worker(start: Start) -> None:
    gate = Gate()
    async with start({"power": gate}, 1) as dispatcher:
        for _ in range(20):  # so short that some are prefetched
            await dispatcher.submit(cube(1.0))
        blocked = asyncio.create_task(dispatcher.submit(cube(0.0), BY_ITSELF))
        behind = [asyncio.create_task(dispatcher.submit(cube(2.0), BY_ITSELF)) for _ in range(5)]
        await until(lambda: gate.waiting and snapshot(dispatcher, "in_flight") > 1)
        more = LocalTransport({"power": Power()})
        more.start(dispatcher)
        assert [(await task).outputs[0][0] for task in behind] == [8.0] * 5
        assert not blocked.done()
        gate.open.set()
        await blocked
        more.stop_workers()


@contract
async def test_describes_while_every_worker_is_busy(start: Start) -> None:
    gate = Gate()
    async with start({"power": gate}, 2) as dispatcher:
        blocked = [asyncio.create_task(dispatcher.submit(cube(0.0))) for _ in range(2)]
        await until(lambda: gate.waiting == 2)
        infos = [await dispatcher.describe("power", f'{{"n":{n}}}') for n in range(2, 12)]
        assert [info.inputs[0].shape for info in infos] == [(n,) for n in range(2, 12)]
        assert not any(task.done() for task in blocked)
        gate.open.set()
        await asyncio.gather(*blocked)


@contract
async def test_cancelled_calls_do_not_run(start: Start) -> None:
    gate = Gate()
    async with start({"power": gate}, 1) as dispatcher:
        running = asyncio.create_task(dispatcher.submit(cube(0.0)))
        await until(lambda: gate.waiting == 1)
        waiting = [asyncio.create_task(dispatcher.submit(cube(0.0))) for _ in range(20)]
        await until(lambda: snapshot(dispatcher, "queued") == 20)
        for task in (running, *waiting):
            task.cancel()
        await asyncio.gather(running, *waiting, return_exceptions=True)
        gate.open.set()
        assert (await dispatcher.submit(cube(2.0))).outputs[0][0] == 8.0
        assert gate.waiting == 1


@contract
async def test_the_wait_at_a_worker_is_queue_time(start: Start) -> None:
    gate = Gate()
    async with start({"power": gate}, 1) as dispatcher:
        for _ in range(20):  # runs are then known to be short, and calls are queued at the worker
            await dispatcher.submit(cube(1.0))
        first = asyncio.create_task(dispatcher.submit(cube(0.0)))
        await until(lambda: gate.waiting == 1)
        second = asyncio.create_task(dispatcher.submit(cube(2.0)))
        await until(lambda: snapshot(dispatcher, "in_flight") == 2)
        await dispatcher.describe("power", '{"n":2}')  # all earlier messages have arrived
        since = time.perf_counter()
        await asyncio.sleep(0.05)
        waited_s = time.perf_counter() - since
        gate.open.set()
        await first
        assert (await second).queue_time_s >= waited_s


@contract
async def test_close_lets_running_calls_finish(start: Start) -> None:
    gate = Gate()
    async with start({"power": gate}, 2) as dispatcher:
        tasks = [asyncio.create_task(dispatcher.submit(cube(0.0))) for _ in range(2)]
        await until(lambda: gate.waiting == 2)
        closing = asyncio.create_task(dispatcher.close(grace_s=LIMIT_S))
        await asyncio.sleep(0)
        gate.open.set()
        assert [(await task).outputs[0][0] for task in tasks] == [0.0, 0.0]
        await closing
        assert dispatcher.snapshot()["workers"] == []


@contract
async def test_stopped_workers_recall_what_has_not_begun(start: Start) -> None:
    gate = Gate()
    async with start({"power": gate}, 1) as dispatcher:
        for _ in range(20):
            await dispatcher.submit(cube(1.0))
        blocked = asyncio.create_task(dispatcher.submit(cube(0.0), BY_ITSELF))
        behind = [asyncio.create_task(dispatcher.submit(cube(2.0), BY_ITSELF)) for _ in range(5)]
        await until(lambda: gate.waiting and snapshot(dispatcher, "in_flight") > 1)
        (transport,) = dispatcher._transports
        transport.stop_workers()
        await until(lambda: dispatcher.snapshot()["workers"][0]["slots"] == 0)
        gate.open.set()
        assert (await blocked).outputs[0][0] == 0.0
        await until(lambda: not dispatcher.snapshot()["workers"])
        more = LocalTransport({"power": Power()})
        more.start(dispatcher)
        assert [(await task).outputs[0][0] for task in behind] == [8.0] * 5
        assert 2.0 not in gate.ran
        assert [e["event"] for e in dispatcher.snapshot()["events"]] == ["joined", "left", "joined"]
        more.stop_workers()


@pytest.mark.slow
@contract
async def test_alone_calls_one_after_another(start: Start) -> None:
    """After a lost wake-up, one of these calls would wait."""
    async with start({"power": Power()}, 1) as dispatcher:
        for i in range(50 if start is dask else 1000):
            result = await asyncio.wait_for(dispatcher.submit(cube(float(i))), LIMIT_S)
            assert result.outputs[0][0] == float(i) ** 3


class Kept(Model):
    """The sum of a sequence; refs: to the states that it was given."""

    inputs, outputs = {"x": 1}, {"y": 1}
    stateful = True
    sequence_idle_s = 0.1

    def __init__(self) -> None:
        self.refs: list[weakref.ref[Sequence]] = []

    def evaluate(  # type: ignore[override]  # a stateful model has a third argument
        self, inputs: Inputs, config: Config, sequence: Sequence
    ) -> Any:
        self.refs.append(weakref.ref(sequence))
        sequence["sum"] = sequence.get("sum", 0.0) + inputs["x"]
        return sequence["sum"]


@contract
async def test_states_of_sequences_stay_until_these_end(start: Start) -> None:
    model = Kept()
    if start is dask:
        with pytest.raises(Unavailable, match="model 'kept' is stateful, and Dask decides itself"):
            async with start({"kept": model}, 1):
                pass
        return

    def step(x: float, sequence: int, *, begins: bool = False, ends: bool = False) -> Call:
        where = SequenceStep(sequence, begins, ends)
        return replace(cube(x, "kept"), step=where)

    async with start({"kept": model}, 2) as dispatcher:
        submit = dispatcher.submit
        calls = step(1.0, 7, begins=True), step(2.0, 7), step(1.0, 8, begins=True)
        first, second, other = await asyncio.gather(*map(submit, calls))
        assert [r.outputs[0].item() for r in (first, second, other)] == [1.0, 3.0, 1.0]
        assert first.worker == second.worker
        await until(lambda: all(ref() is None for ref in model.refs))  # both were idle
        with pytest.raises(InvalidInput, match="must specify the START flag"):
            await submit(step(1.0, 7))
        await submit(step(1.0, 7, begins=True, ends=True))
        await submit(step(1.0, 8, begins=True))  # which the end of the farm ends
