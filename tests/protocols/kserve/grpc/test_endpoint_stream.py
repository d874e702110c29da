"""One ModelStreamInfer, with models in threads of this process."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import farm
from farm.dispatcher import dispatcher as dispatching
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Unavailable
from farm.grpc.call import Caller
from farm.model import Config, Inputs
from farm.protocols.kserve.dialect import OpenDialect
from farm.protocols.kserve.endpoint_inference import Inference
from farm.protocols.kserve.grpc import endpoint_stream as kserve_grpc_stream
from farm.protocols.kserve.grpc.codec import decode, messages
from farm.protocols.kserve.grpc.endpoint import SERVICE, KServeGrpc
from tests.protocols.kserve.in_process import inference
from tests.support.coroutines import LIMIT_S, until
from tests.support.garbage import garbage

CALLER = Caller("127.0.0.1", "", {}, None)


class Held(farm.Model):
    """Answers at once, or for a negative number when the test releases it."""

    inputs, outputs = {"x": 1}, {"y": 1}

    def __init__(self) -> None:
        self.go = threading.Event()

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        if inputs["x"][0] < 0:
            self.go.wait(LIMIT_S)
        return inputs["x"]


class Count(farm.Model):
    """Gives as many answers as the input says, and an error after 13."""

    inputs, outputs = {"n": 1}, {"i": 1}

    def stream(self, inputs: Inputs, config: Config) -> Iterator[Any]:
        for i in range(int(inputs["n"][0])):
            if i == 13:
                raise ValueError("thirteen")
            yield np.array([float(i)])


class Forever(farm.Model):
    """Never ends."""

    inputs, outputs = {"x": 1}, {"i": 1}

    def __init__(self) -> None:
        self.begun = threading.Event()

    def stream(self, inputs: Inputs, config: Config) -> Iterator[Any]:
        self.begun.set()
        for i in itertools.count():
            yield np.array([float(i)])


class Client:
    """The client's end: a queue of requests, and the received answers."""

    def __init__(self, service: KServeGrpc) -> None:
        self.answers: list[Any] = []
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.read = 0
        method = service.bidirectional[f"/{SERVICE}/ModelStreamInfer"]
        self.served = asyncio.ensure_future(method(self._sent(), self._write, CALLER))

    async def _sent(self) -> AsyncIterator[bytes]:
        while (body := await self._requests.get()) is not None:
            self.read += 1
            yield body

    async def _write(self, body: bytes | memoryview) -> None:
        await self.may_write.wait()
        self.answers.append(decode("inference.ModelStreamInferResponse", bytes(body)))

    def ask(self, model: str, value: float, request_id: str = "", *, final: bool = False) -> None:
        message = messages()["inference.ModelInferRequest"](model_name=model, id=request_id)
        name = "n" if model == "count" else "x"
        message.inputs.add(name=name, datatype="FP64", shape=[1])
        message.raw_input_contents.append(np.array([float(value)]).tobytes())
        if final:
            message.parameters["triton_enable_empty_final_response"].bool_param = True
        self._requests.put_nowait(message.SerializeToString())

    def send(self, body: bytes) -> None:
        self._requests.put_nowait(body)

    async def end(self) -> None:
        """Half-close, and wait for the server's end."""
        self._requests.put_nowait(None)
        await asyncio.wait_for(self.served, LIMIT_S)

    @property
    def ids(self) -> list[str]:
        return [answer.infer_response.id for answer in self.answers]


class Served:
    def __init__(self, of: Inference, held: Held, forever: Forever) -> None:
        self.dispatcher = of.backend
        self.held = held
        self.forever = forever
        self.service = KServeGrpc(of)

    def idle(self) -> bool:
        rows = self.dispatcher.snapshot()["queues"]
        return all(row["queued"] == row["in_flight"] == 0 for row in rows)


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    held, forever = Held(), Forever()
    models = {"held": held, "count": Count(), "forever": forever}
    async with inference(models, workers=2) as of:
        try:
            yield Served(of, held, forever)
        finally:
            held.go.set()


def answered(dispatcher: Dispatcher) -> int:
    """Return the number of calls of `held` that were answered correctly."""
    statistics = dispatcher.statistics().get("held")
    return 0 if statistics is None else int(statistics.success.count)


async def test_answers_keep_the_order_of_the_requests() -> None:
    async with served() as farm_:
        client = Client(farm_.service)
        client.ask("held", -1, "slow")
        client.ask("held", 1, "quick")
        client.ask("nobody", 1, "wrong")
        client.send(b"\xff\xff")
        client.ask("held", 2, "last")
        await until(lambda: answered(farm_.dispatcher) == 2)
        assert client.ids == []
        farm_.held.go.set()
        await until(lambda: client.ids == ["slow", "quick", "wrong", "", "last"])
        assert [bool(answer.error_message) for answer in client.answers] == [0, 0, 1, 1, 0]
        await client.end()
        for answer in client.answers:
            assert answer.infer_response.parameters["triton_final_response"].bool_param


async def test_a_model_that_streams_keeps_nobody_waiting_and_waits_for_nobody() -> None:
    async with served() as farm_:
        client = Client(farm_.service)
        client.ask("held", -1, "slow")
        client.ask("count", 2, "stream")
        await until(lambda: client.ids == ["stream", "stream"])
        client.ask("held", 1, "quick")
        client.ask("count", 14, "fails")
        await until(lambda: len(client.answers) == 2 + 14)
        assert "quick" not in client.ids, "its turn is after that of the slow one"
        assert "thirteen" in client.answers[-1].error_message
        farm_.held.go.set()
        await until(lambda: client.ids[-2:] == ["slow", "quick"])
        await client.end()


async def test_an_error_is_a_message_and_the_stream_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as farm_:
        client = Client(farm_.service)
        client.ask("nobody", 1, "a")
        client.send(b"\xff\xff")
        await until(lambda: len(client.answers) == 2)
        assert "no model 'nobody'" in client.answers[0].error_message
        assert client.answers[0].infer_response.id == "a"
        assert "not a valid inference.ModelInferRequest" in client.answers[1].error_message
        with monkeypatch.context() as patched:
            patched.setattr(OpenDialect, "decode_streamed", lambda self, message: 1 / 0)
            client.ask("held", 1, "b")
            await until(lambda: len(client.answers) == 3)
        assert "its log says" in client.answers[2].error_message
        assert "ZeroDivisionError" in caplog.text
        client.ask("held", 1, "c")
        await until(lambda: len(client.answers) == 4)
        assert client.answers[3].error_message == ""
        await client.end()


async def test_who_does_not_take_answers_is_not_read_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kserve_grpc_stream, "IN_FLIGHT", 4)
    async with served() as farm_:
        client = Client(farm_.service)
        client.may_write.clear()
        for i in range(50):
            client.ask("held", 1, str(i))
        await until(lambda: client.read == 5)
        for _ in range(20):
            await asyncio.sleep(0)
        assert client.read == 5
        client.may_write.set()
        await until(lambda: len(client.answers) == 50)
        await client.end()


async def test_a_model_that_goes_on_and_on_is_ended_when_nobody_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatching, "MOST_WAITING_BYTES", 100_000)
    async with served() as farm_:
        client = Client(farm_.service)
        client.may_write.clear()
        client.ask("forever", 1)
        await until(farm_.forever.begun.is_set)
        await until(lambda: farm_.idle())
        client.may_write.set()
        await until(lambda: client.answers and client.answers[-1].error_message)
        assert "faster than the client reads" in client.answers[-1].error_message
        assert 90 < len(client.answers) < 110
        client.ask("held", 1, "next")
        await until(lambda: client.ids[-1] == "next")
        await client.end()


async def test_the_servers_end_finishes_what_runs() -> None:
    async with served() as farm_:
        client, idle = Client(farm_.service), Client(farm_.service)
        client.ask("held", -1, "a")
        await until(lambda: farm_.dispatcher.stages.calls_open() == 1)
        farm_.service.end_streams()
        with pytest.raises(Unavailable, match="shutting down"):
            await asyncio.wait_for(idle.served, LIMIT_S)
        assert not client.served.done()
        farm_.held.go.set()
        with pytest.raises(Unavailable, match="shutting down"):
            await asyncio.wait_for(client.served, LIMIT_S)
        assert client.ids == ["a"]


async def test_a_stream_that_is_cancelled_leaves_nothing_for_the_garbage_collector() -> None:
    async def cancelled(farm_: Served) -> None:
        client = Client(farm_.service)
        for number in (1, -1, -2, -3):
            client.ask("held", number)
        client.send(b"\xff\xff")
        await until(lambda: len(client.answers) == 1)
        client.served.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.served
        farm_.held.go.set()
        await until(farm_.idle)
        farm_.held.go.clear()

    async with served() as farm_:
        await cancelled(farm_)
        with garbage() as left:
            await cancelled(farm_)
            await cancelled(farm_)
        assert left == []
