"""Streams, several answers to one call, over each transport that supports them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import Call, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import FarmError, InvalidInput, InvalidOutput, ModelFailed, UnsupportedFeature
from farm.model import Config, Inputs, Model
from farm.scheduler.actions import Outcome
from tests.contracts.test_transport import Start, dask, local, snapshot, stream, zmq
from tests.support.coroutines import LIMIT_S, until


class Steps(Model):
    """Counts to x while `open` is set; fails at `fail_at` and `bad_at` of the config."""

    inputs = {"x": 1}
    outputs = {"y": 1}

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.given = 0
        self.ended = 0

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return inputs["x"]

    def stream(self, inputs: Inputs, config: Config) -> Iterator[Any]:
        try:
            for i in range(int(inputs["x"][0])):
                if i == config.get("fail_at"):
                    raise ValueError(f"diverged at {i}")
                yield [0.0, 0.0] if i == config.get("bad_at") else float(i)
                self.given += 1
                assert self.open.wait(LIMIT_S)
        finally:
            self.ended += 1


def steps(x: float, config: str = "{}", rows: int | None = None) -> Call:
    array = np.array([x]) if rows is None else np.full((rows, 1), x)
    return Call("steps", Operation.STREAM, (array,), config, rows=rows)


class Stream:
    """A running call and its answers so far."""

    def __init__(self, dispatcher: Dispatcher, call: Call) -> None:
        self.values: list[float] = []
        self.end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.task_id = dispatcher.start_call(call, farm.Hints(), self._done)

    def _done(self, outcome: Outcome) -> None:
        if isinstance(outcome, Result) and outcome.more:
            assert not self.end.done()
            self.values.append(float(outcome.outputs[0].reshape(-1)[0]))
        else:
            self.end.set_result(outcome)

    async def error(self) -> FarmError:
        outcome = await asyncio.wait_for(self.end, LIMIT_S)
        assert isinstance(outcome, FarmError)
        return outcome


STARTS = pytest.mark.parametrize("start", [local, stream, zmq], ids=["local", "stream", "zmq"])


@STARTS
async def test_each_answer_comes_as_it_is_there_and_then_the_end(start: Start) -> None:
    model = Steps()
    model.open.clear()
    async with start({"steps": model}, 1) as dispatcher:
        stream = Stream(dispatcher, steps(3.0))
        await until(lambda: stream.values == [0.0])
        assert snapshot(dispatcher, "in_flight") == 1
        model.open.set()
        end = await stream.end
        assert isinstance(end, Result)
        assert (end.outputs, end.more) == ((), False)
        assert stream.values == [0.0, 1.0, 2.0]
        assert (snapshot(dispatcher, "done"), snapshot(dispatcher, "in_flight")) == (1, 0)
        empty = Stream(dispatcher, steps(0.0))
        assert isinstance(await empty.end, Result)
        assert empty.values == []


@STARTS
async def test_what_goes_wrong_ends_the_stream(start: Start) -> None:
    async with start({"steps": Steps()}, 1) as dispatcher:
        stream = Stream(dispatcher, steps(5.0, '{"fail_at":2}'))
        assert isinstance(await stream.error(), ModelFailed)
        assert stream.values == [0.0, 1.0]
        stream = Stream(dispatcher, steps(5.0, '{"bad_at":1}'))
        assert isinstance(await stream.error(), InvalidOutput)
        assert stream.values == [0.0]
        assert isinstance(await Stream(dispatcher, steps(1.0, rows=2)).error(), InvalidInput)
        one = Stream(dispatcher, steps(2.0, rows=1))
        assert isinstance(await one.end, Result)
        assert one.values == [0.0, 1.0]


@STARTS
async def test_a_stream_that_nobody_waits_for_ends(start: Start) -> None:
    model = Steps()
    async with start({"steps": model}, 1) as dispatcher:
        model.open.clear()
        stream = Stream(dispatcher, steps(1e9))
        await until(lambda: stream.values)
        dispatcher.cancel(stream.task_id)
        # The model is between two answers, or about to be; it must stop after the next one.
        model.open.set()
        await until(lambda: model.ended == 1)
        await until(lambda: snapshot(dispatcher, "in_flight") == 0)
        assert not stream.end.done()
        after = Stream(dispatcher, steps(2.0))
        assert isinstance(await after.end, Result)


@STARTS
async def test_many_streams_and_calls_side_by_side(start: Start) -> None:
    async with start({"steps": Steps()}, 2) as dispatcher:
        streams = [Stream(dispatcher, steps(float(i))) for i in range(50)]
        call = Call("steps", Operation.EVALUATE, (np.array([7.0]),))
        results = await asyncio.gather(*[dispatcher.submit(call) for _ in range(50)])
        for i, stream in enumerate(streams):
            assert isinstance(await stream.end, Result)
            assert stream.values == [float(n) for n in range(i)]
        assert {float(result.outputs[0][0]) for result in results} == {7.0}


async def test_a_dask_cluster_offers_none() -> None:
    async with dask({"steps": Steps()}, 1) as dispatcher:
        assert dispatcher.models()["steps"].operations == {Operation.EVALUATE}
        with pytest.raises(UnsupportedFeature, match="does not offer stream"):
            await dispatcher.submit(steps(1.0))
