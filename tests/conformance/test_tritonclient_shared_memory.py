"""Triton's own Python clients with system shared memory, unchanged, against `farm serve`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import (
    InferenceServerException,
    serialize_byte_tensor,
    serialized_byte_size,
    shared_memory,
)

from farm.bodies.body import HEAVY_BYTES
from farm.protocols.kserve.shared_memory.regions import MOST_REGIONS, OBJECTS
from tests.conformance.triton_farm import GRPC, HTTP, Stream, Way
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import Served, farm_of
from tests.support.shared_objects import open_of, shared_object

pytestmark = pytest.mark.skipif(not OBJECTS.is_dir(), reason="this system has no /dev/shm")

MODELS = """
import time
import farm
from farm import TensorInfo

def echo(name, dtype):
    class Echo(farm.Model):
        inputs = {"x": TensorInfo("x", (-1,), dtype)}
        outputs = {"y": TensorInfo("y", (-1,), dtype)}
        max_batch = 8

        def evaluate(self, inputs, config):
            time.sleep(config.get("sleep", 0))
            return inputs["x"]

    Echo.name = name
    return Echo

Numbers, Texts = echo("numbers", "float64"), echo("texts", "bytes")

class Both(farm.Model):
    name = "both"
    inputs = {"a": 2, "b": -1}
    outputs = {"c": 2, "d": -1}

    def evaluate(self, inputs, config):
        return {"c": 2 * inputs["a"], "d": inputs["b"]}

class Count(farm.Model):
    name = "count"
    inputs = {"x": 1}
    outputs = {"y": 1}

    def stream(self, inputs, config):
        for i in range(int(inputs["x"][0])):
            yield [i]
"""


served = farm_of(MODELS, "Numbers", "Texts", "Both", "Count", options="--grpc-port 0")


@pytest.fixture
def client(way: Way, served: Served) -> Iterator[Any]:
    with way.sync.InferenceServerClient(way.address(served)) as found:
        yield found
        found.unregister_system_shared_memory()


@contextmanager
def region(client: Any, size: int, name: str = "region") -> Iterator[Any]:
    """Make and register a region as Triton's examples do."""
    with shared_object(None) as free:
        handle = shared_memory.create_shared_memory_region(name, free.key, size)
        try:
            client.register_system_shared_memory(name, free.key, size)
            yield handle
        finally:
            shared_memory.destroy_shared_memory_region(handle)


def regions(client: Any) -> dict[str, Any]:
    status = client.get_system_shared_memory_status()
    if isinstance(status, list):
        return {found["name"]: found for found in status}
    return dict(status.regions)


def tensors(module: Any, shape: list[int], size: int, datatype: str = "FP64") -> dict[str, Any]:
    """Build an input at the start of the region and an output behind it."""
    x = module.InferInput("x", shape, datatype)
    x.set_shared_memory("region", size)
    y = module.InferRequestedOutput("y")
    y.set_shared_memory("region", size, offset=size)
    return {"inputs": [x], "outputs": [y]}


def shape_of(output: Any) -> list[int]:
    return list(output["shape"] if isinstance(output, dict) else output.shape)


def test_regions_are_registered_shown_and_unregistered(client: Any) -> None:
    client.unregister_cuda_shared_memory()  # as Triton's examples begin
    assert not regions(client)
    with region(client, 64, "a b/ü"), region(client, 32, "other"):
        assert set(regions(client)) == {"a b/ü", "other"}
        client.unregister_system_shared_memory("a b/ü")
        assert set(regions(client)) == {"other"}
        client.unregister_system_shared_memory()
        assert not regions(client)


def test_errors_have_tritons_texts(client: Any, way: Way) -> None:
    with region(client, 64), shared_object(8) as other:
        register = client.register_system_shared_memory
        with way.refused("ALREADY_EXISTS", "shared memory region 'region' already in manager"):
            register("region", other.key, 8)
        with way.refused("NOT_FOUND", "Unable to find system shared memory region: 'nobody'"):
            client.get_system_shared_memory_status("nobody")
        with way.refused("INVALID_ARGUMENT", "failed to register shared memory region 'q'"):
            register("q", other.key, 9)
        with way.refused("INVALID_ARGUMENT", "Invalid offset for shared memory region: 'region'"):
            client.infer("numbers", **tensors(way.sync, [8], 64))
        assert set(regions(client)) == {"region"}


@pytest.mark.parametrize("count", [4, HEAVY_BYTES])  # 2 MiB
@pytest.mark.parametrize("lead", [[], [1]])
def test_numbers(client: Any, way: Way, count: int, lead: list[int]) -> None:
    x = np.random.default_rng(5).random(count)
    with region(client, 2 * x.nbytes) as handle:
        shared_memory.set_shared_memory_region(handle, [x])
        result = client.infer("numbers", **tensors(way.sync, [*lead, count], x.nbytes))
        assert shape_of(result.get_output("y")) == [*lead, count]
        y = shared_memory.get_contents_as_numpy(handle, np.float64, [count], offset=x.nbytes)
        assert np.array_equal(x, y)
        del y


@pytest.mark.parametrize("count", [4, 20_000])  # in this process; in a reader process
def test_texts(client: Any, way: Way, count: int) -> None:
    texts = np.array([b"x" * (i % 40) for i in range(count)], object)
    raw = serialize_byte_tensor(texts)
    size = serialized_byte_size(raw)
    assert (size > HEAVY_BYTES) is (count > 4)
    with region(client, 2 * size) as handle:
        shared_memory.set_shared_memory_region(handle, [raw])
        result = client.infer("texts", **tensors(way.sync, [count], size, "BYTES"))
        assert shape_of(result.get_output("y")) == [count]
        got = shared_memory.get_contents_as_numpy(handle, np.object_, [count], offset=size)
        assert got.tolist() == texts.tolist()
        del got


def test_an_output_of_another_size_than_its_place(client: Any, way: Way) -> None:
    with region(client, 256) as handle:
        shared_memory.set_shared_memory_region(handle, [np.arange(4.0)])
        asked = tensors(way.sync, [4], 32)
        y = asked["outputs"][0]
        y.set_shared_memory("region", 31, offset=32)
        with pytest.raises(
            InferenceServerException, match=r"\(31 bytes\) should be at least 32 bytes"
        ):
            client.infer("numbers", **asked)
        sent = client.infer("numbers", asked["inputs"])  # an output that has no place
        assert sent.as_numpy("y").tolist() == [0, 1, 2, 3]
        y.set_shared_memory("region", 100, offset=32)
        client.infer("numbers", **asked)
        got = shared_memory.get_contents_as_numpy(handle, np.float64, [5], offset=32)
        assert got.tolist() == [0, 1, 2, 3, 0]
        del got


def test_a_message_for_a_reader_process_may_name_places(served: Served) -> None:
    """The long input and output are JSON, which other processes read and write."""
    b = np.random.default_rng(6).random(30_000)
    with (
        triton_http.InferenceServerClient(HTTP.address(served)) as client,
        region(client, 32) as handle,
    ):
        shared_memory.set_shared_memory_region(handle, [np.array([1.0, 2.0])])
        inputs = [
            triton_http.InferInput("a", [2], "FP64"),
            triton_http.InferInput("b", [30_000], "FP64"),
        ]
        inputs[0].set_shared_memory("region", 16)
        inputs[1].set_data_from_numpy(b, binary_data=False)
        outputs = [
            triton_http.InferRequestedOutput("c"),
            triton_http.InferRequestedOutput("d", binary_data=False),
        ]
        outputs[0].set_shared_memory("region", 16, offset=16)
        result = client.infer("both", inputs, outputs=outputs)
        assert np.array_equal(result.as_numpy("d"), b)
        c = shared_memory.get_contents_as_numpy(handle, np.float64, [2], offset=16)
        assert c.tolist() == [2, 4]
        del c
        client.unregister_system_shared_memory()


async def test_asyncio_clients(served: Served, way: Way) -> None:
    x = np.arange(4.0)
    async with way.aio.InferenceServerClient(way.address(served)) as client:
        with shared_object(64) as made:
            made.write(x.tobytes())
            await client.register_system_shared_memory("region", made.key, 64)
            await client.infer("numbers", **tensors(way.aio, [4], 32))
            assert np.frombuffer(made.read()[32:]).tolist() == x.tolist()
            await client.unregister_system_shared_memory("region")


def test_streams(served: Served) -> None:
    with (
        triton_grpc.InferenceServerClient(GRPC.address(served)) as client,
        region(client, 64) as handle,
    ):
        shared_memory.set_shared_memory_region(handle, [np.array([3.0, 5.0])])
        stream = Stream(client)
        client.async_stream_infer("numbers", **tensors(triton_grpc, [2], 16))
        assert list(stream.result().get_output("y").shape) == [2]
        got = shared_memory.get_contents_as_numpy(handle, np.float64, [2], offset=16)
        assert got.tolist() == [3, 5]
        client.async_stream_infer("count", **tensors(triton_grpc, [1], 8))
        for _ in range(3):
            stream.result()
        got = shared_memory.get_contents_as_numpy(handle, np.float64, [1], offset=8)
        assert got.tolist() == [2]
        client.unregister_system_shared_memory()
        client.async_stream_infer("numbers", **tensors(triton_grpc, [2], 16))
        assert "Unable to find shared memory region: 'region'" in str(stream.get()[1])
        stream.end()
        del got


def error_of(client: Any, **asked: Any) -> str | None:
    """Return the error of an inference, if it is one."""
    try:
        client.infer("numbers", **asked)
    except InferenceServerException as error:
        return str(error.message())
    return None


def test_objects_that_are_cut_all_the_time_never_end_the_server(
    client: Any, way: Way, served: Served
) -> None:
    """A mapping would end it by SIGBUS at the first such request."""
    size = 1 << 20
    with shared_object(2 * size) as made:
        client.register_system_shared_memory("region", made.key, 2 * size)
        stop = threading.Event()

        def cut() -> None:
            while not stop.is_set():
                made.cut(0)
                made.cut(2 * size)

        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            for _ in range(40):
                error = error_of(client, **tensors(way.sync, [size // 8], size))
                assert error is None or "'region' was cut: its object" in error
        finally:
            stop.set()
            cutting.join()
        client.infer("numbers", **tensors(way.sync, [size // 8], size))
    assert served.process.poll() is None


@pytest.mark.slow
def test_a_thousand_regions(client: Any, served: Served) -> None:
    """The limit is an error of the client that meets it, and leaves nothing open."""
    with shared_object(64) as made:

        def fill() -> None:
            for i in range(MOST_REGIONS + 1):
                client.register_system_shared_memory(f"r{i}", made.key, 64)

        with pytest.raises(InferenceServerException, match="regions are registered or in use"):
            fill()
        assert open_of(made.path, served.process.pid) == 1
        client.unregister_system_shared_memory()
        wait_until(lambda: open_of(made.path, served.process.pid) == 0)
        client.register_system_shared_memory("again", made.key, 64)
