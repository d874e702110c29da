"""Requests as calls that run, and long answers, which reader processes encode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import farm
from farm.bodies.body import HEAVY_BYTES
from farm.bodies.readers import Outcome, Reads
from farm.call import CancelCall, Hints, Result
from farm.declared import Tensors
from farm.errors import InvalidInput, ModelFailed, ModelNotFound
from farm.model import Config, Inputs
from farm.protocols.kserve.endpoint_inference import Inference, InferenceRun, Prepared
from farm.protocols.kserve.request import InferInput, InferRequest, Wish
from tests.protocols.kserve.in_process import inference
from tests.support.coroutines import until


class Many(farm.Model):
    """Counts up to its input, from where the config says."""

    outputs = {"y": (-1,)}

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        return {"n": 1}, {"y": (-1,)}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        if inputs["n"][0] < 0:
            raise ValueError("less than nothing")
        return np.arange(inputs["n"][0]) + config.get("start", 0)


class Later(Reads):
    """Carries jobs out in this process when the test says so, and counts those cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.go: list[Callable[[], object]] = []
        self.cancelled = 0

    def execute(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        hints: Hints,
        done: Callable[[Outcome], None],
    ) -> CancelCall:
        inherited = super().execute
        self.go.append(lambda: inherited(function, *arguments, hints=hints, done=done))
        return self._count

    def _count(self) -> None:
        self.cancelled += 1


class Noted(InferenceRun):
    """Appends answers and errors to a list, the first part of its reply."""

    __slots__ = ()

    def send(self, result: Result, encoded: Any) -> None:
        self._reply[0].append(encoded)

    def fail(self, error: Exception) -> None:
        self._reply[0].append(error)


def request(count: float, **parameters: Any) -> InferRequest:
    return InferRequest(
        "many", [InferInput("n", "FP64", (1,), np.array([count]))], "", "7", parameters
    )


def encoded(wish: Wish, result: Result, factor: float) -> Any:
    (array,) = result.outputs
    if not array.size:
        raise InvalidInput("there is nothing to encode")
    return wish.id, float(factor * array[-1])


def begun(of: Inference, prepared: Prepared) -> tuple[Noted, list[Any]]:
    came: list[Any] = []
    return Noted(of, prepared, (encoded, (2.0,), False), (came, None)), came


async def test_answers_and_errors_come_once() -> None:
    async with inference({"many": Many()}, readers=Later()) as of:
        for count, expected in ((3.0, ("7", 4.0)), (0.0, InvalidInput), (-1.0, ModelFailed)):
            _, came = begun(of, await of.prepared(request(count), Hints()))
            await until(lambda came=came: came)  # type: ignore[misc]  # bound early
            (answer,) = came
            assert answer == expected or type(answer) is expected


async def test_a_long_answer_is_written_by_a_reader() -> None:
    readers, count = Later(), HEAVY_BYTES // 8 + 1
    async with inference({"many": Many()}, readers=readers) as of:
        prepared = await of.prepared(request(count), Hints())
        run, came = begun(of, prepared)
        await until(lambda: readers.go)
        readers.go.pop()()
        await until(lambda: came)
        assert came == [("7", 2.0 * (count - 1))]
        run, came = begun(of, prepared)
        await until(lambda: readers.go)
        run.cancel()
        assert (readers.cancelled, came) == (1, [])


async def test_a_config_that_is_not_described_yet_has_to_wait() -> None:
    async with inference({"many": Many()}, readers=Later()) as of:
        info = of.repository.model("many")
        asked = request(2.0, farm_config='{"start": 5}', priority=1)
        assert of.prepared_now(asked, Hints(), info) is None
        prepared = await of.prepared(asked, Hints())
        assert of.prepared_now(asked, Hints(), info) is not None
        assert (prepared.call.config, prepared.hints.priority) == ('{"start":5}', 99)
        result = await of.backend.submit(prepared.call, prepared.hints)
        assert await of.encoded(prepared, result, encoded, 1.0) == ("7", 6.0)
        with pytest.raises(ModelNotFound):
            await of.prepared(InferRequest("nobody", []), Hints())
