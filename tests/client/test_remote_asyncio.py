"""Remote models on an event loop, over both lines to a farm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from farm.client import Client
from farm.errors import FarmError, InvalidInput, ModelFailed
from tests.client.test_remote import busy, end_what_runs
from tests.support.coroutines import until
from tests.support.scripted_lines import in_farm

X = np.random.default_rng(2).standard_normal((600, 2, 2))


async def test_one_point(client: Client) -> None:
    model = client.model("affine")
    outputs = await asyncio.gather(*[model.aevaluate(x, {"add": 1.0}) for x in X[:20]])
    assert np.array_equal(outputs, X[:20].sum(axis=2) + 1.0)
    gradient = await model.aevaluate(X[0], operation="gradient", out="y", wrt="x", sens=[1, 2])
    assert gradient.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    with pytest.raises(InvalidInput, match="input 'x' has shape"):
        await model.aevaluate([1.0])
    with pytest.raises(ModelFailed, match="minus one"):
        await client.model("moody").aevaluate(-1.0)


async def test_many_points(client: Client) -> None:
    model = client.model("affine")
    outputs = [y async for y in model.amap(X)]
    assert np.array_equal(outputs, X.sum(axis=2))
    vec = X[::-1]
    products = [v async for v in model.amap(iter(X), operation="apply_jacobian", vec=vec)]
    assert np.array_equal(products, vec.sum(axis=2))
    assert [y async for y in model.amap([])] == []


async def test_errors_are_at_their_points(client: Client) -> None:
    model = client.model("moody")
    points: list[Any] = [1.0, -1.0, [1.0, 2.0], 2.0]
    with pytest.raises(ModelFailed) as raised:
        async for _ in model.amap(points):
            pass
    assert raised.value.__notes__[0] == "at point 1"
    got = [y async for y in model.amap(points, return_errors=True)]
    assert [isinstance(y, FarmError) for y in got] == [False, True, True, False]
    with pytest.raises(ValueError, match="in_flight is 0"):
        await anext(aiter(model.amap(points, in_flight=0)))


async def test_cancelling_a_task_cancels_its_calls(client: Client) -> None:
    model = client.model("moody")
    await model.aevaluate(1.0)
    one = asyncio.create_task(model.aevaluate(160.0))

    async def many() -> None:
        async for _ in model.amap([160.0] * 6):
            raise AssertionError("they sleep for a minute")

    several = asyncio.create_task(many())
    await until(lambda: in_farm(client) == 7 and len(busy(client)) == 2)
    processes = busy(client)
    for task in (one, several):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: in_farm(client) == 2)  # those that run, for which nobody waits now
    end_what_runs(client, processes)


async def test_endless_points_are_read_as_there_is_room(client: Client) -> None:
    read = []

    def points() -> Iterator[float]:
        for i in count():
            read.append(i)
            yield float(i % 50)

    got = []
    async for y in client.model("moody").amap(points(), in_flight=16):
        got.append(float(y[0]))
        if len(got) == 100:
            break
    assert got == [float(i % 50) for i in range(100)]
    assert len(read) <= 100 + 16
