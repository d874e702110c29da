"""Triton's own Python clients over gRPC, unchanged: what those over HTTP do not have."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

import farm
from farm.protocols.kserve.grpc.codec import messages
from tests.conformance.triton_farm import GRPC, TRITON_FARM, Stream, Way
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import Served
from tests.support.time_limits import scaled

LIMIT_S = scaled(20.0)
served = TRITON_FARM


@pytest.fixture
def way() -> Way:
    return GRPC


def ask(client: Any, values: Any, **options: Any) -> Any:
    """Return the outputs of the model `twice` for the rows."""
    return client.infer("twice", [GRPC.tensor(values)], **options).as_numpy("y")


# Requests that run no model


def test_our_messages_have_tritons_field_numbers() -> None:
    compared = 0
    for name, ours in messages().items():
        if not name.startswith("inference."):
            continue
        short = name.removeprefix("inference.")
        module = service_pb2 if hasattr(service_pb2, short) else model_config_pb2
        theirs = getattr(module, short).DESCRIPTOR
        compared += _compare(ours.DESCRIPTOR, theirs)
    assert compared > 100


def _compare(ours: Any, theirs: Any) -> int:
    known = {field.name: field for field in theirs.fields}
    count = 0
    for field in ours.fields:
        if (ours.name, field.name) == ("ModelMetadataResponse", "properties"):
            continue  # it exists only in the Open Inference Protocol
        other = known[field.name]
        assert (field.number, field.type) == (other.number, other.type), field.full_name
        assert field.is_repeated == other.is_repeated, field.full_name
        count += 1
    for inner in ours.nested_types:
        if inner.name != "PropertiesEntry":
            count += _compare(inner, theirs.nested_types_by_name[inner.name])
    return count


# Inference


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
def test_compressed_messages(client: Any, packing: str) -> None:
    assert ask(client, [1.0, 2.0, 3.0], compression_algorithm=packing).tolist() == [2, 4, 6]


def test_typed_requests_have_typed_answers(served: Served) -> None:
    """KServe's own client sends typed requests and reads typed answers."""
    with grpc.insecure_channel(served.connection.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="twice", id="a")
        given = request.inputs.add(name="x", datatype="FP64", shape=[1, 3])
        given.parameters["binary_data_size"].int64_param = 24
        given.contents.fp64_contents.extend([1.0, 2.0, 3.0])
        answer = stub.ModelInfer(request, timeout=LIMIT_S)
        assert list(answer.outputs[0].contents.fp64_contents) == [2.0, 4.0, 6.0]
        assert not answer.raw_output_contents
        del given.contents.fp64_contents[:]
        given.contents.SetInParent()  # an empty message, as converters produce it
        request.raw_input_contents.append(np.array([1.0, 2.0, 3.0]).tobytes())
        answer = stub.ModelInfer(request, timeout=LIMIT_S)
        assert np.frombuffer(answer.raw_output_contents[0]).tolist() == [2.0, 4.0, 6.0]


# Deadlines and cancellation


def waiting(served: Served) -> tuple[int, int]:
    """Return the numbers of queued and running calls of the model `slow`."""
    with farm.connect(served.folder) as found:
        rows = [row for row in found.status()["queues"] if row["model"] == "slow"]
    return sum(row["queued"] for row in rows), sum(row["in_flight"] for row in rows)


def test_a_deadline_ends_the_wait(client: Any, served: Served) -> None:
    with GRPC.refused("DEADLINE_EXCEEDED", ""):
        client.infer("slow", [GRPC.tensor([1.5], "seconds")], client_timeout=0.2)
    second = [GRPC.tensor([1.0], "seconds")]
    calls = [client.async_infer("slow", second, lambda result, error: None) for _ in range(20)]
    wait_until(lambda: waiting(served)[0] > 10)
    with GRPC.refused("DEADLINE_EXCEEDED", ""):
        client.infer("slow", [GRPC.tensor([0.0], "seconds")], timeout=100_000)
    for call in calls:
        call.cancel()


def test_a_cancelled_call_leaves_the_queue(client: Any, served: Served) -> None:
    done: queue.Queue[Any] = queue.Queue()
    second = [GRPC.tensor([1.0], "seconds")]
    calls = [
        client.async_infer("slow", second, lambda result, error: done.put(error)) for _ in range(40)
    ]
    wait_until(lambda: sum(waiting(served)) > 20)
    for call in calls:
        call.cancel()
    wait_until(lambda: waiting(served)[0] == 0)
    errors = [done.get(timeout=LIMIT_S) for _ in calls]
    assert {error.status() for error in errors if error} == {"StatusCode.CANCELLED"}
    assert ask(client, [1.0, 2.0, 3.0]).tolist() == [2.0, 4.0, 6.0]


def test_a_client_that_vanishes_leaves_the_queue(client: Any, served: Served) -> None:
    program = f"""
import numpy as np, tritonclient.grpc as triton, time
client = triton.InferenceServerClient({served.connection.grpc!r})
given = triton.InferInput("seconds", [1], "FP64")
given.set_data_from_numpy(np.array([1.0]))
for _ in range(40):
    client.async_infer("slow", [given], lambda result, error: None)
client.start_stream(lambda result, error: None)
for _ in range(40):
    client.async_stream_infer("slow", [given])
print("asked", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"asked\n"
        wait_until(lambda: sum(waiting(served)) > 40)  # some on the stream, too
    finally:
        child.kill()
        child.communicate()
    wait_until(lambda: waiting(served)[0] == 0)
    assert ask(client, [1.0, 2.0, 3.0]).tolist() == [2.0, 4.0, 6.0]


# Streams


def test_a_stream_answers_in_order_and_stays_open_after_errors(client: Any) -> None:
    stream = Stream(client)
    stream.ask("slow", GRPC.tensor([1.0], "seconds"), request_id="slow")
    stream.ask("nobody", GRPC.tensor([1.0]), request_id="nobody")
    stream.ask("twice", GRPC.tensor([13.0, 0.0, 0.0]), request_id="raises")
    stream.ask("twice", GRPC.tensor([1.0, 2.0, 3.0]), request_id="quick")
    stream.ask("twice", GRPC.tensor([1.0]), request_id="short", enable_empty_final_response=True)
    errors, ids = [], []
    for _ in range(5):
        result, error = stream.get()
        if error is not None:
            errors.append(error.message())
        else:
            answer = result.get_response()
            ids.append(answer.id)
            assert answer.parameters["triton_final_response"].bool_param
    assert ids == ["slow", "quick"]
    nobody, raises, short = errors
    assert "nobody" in nobody
    assert "thirteen" in raises
    assert "[1]" in short
    stream.end()


def test_a_decoupled_model_gives_several_answers(client: Any) -> None:
    config = client.get_model_config("count").config
    assert config.model_transaction_policy.decoupled
    with GRPC.refused("UNIMPLEMENTED", "ModelStreamInfer"):
        client.infer("count", [count_to(3)])
    stream = Stream(client)
    stream.ask("count", count_to(3), request_id="marked", enable_empty_final_response=True)
    answers = [stream.result() for _ in range(4)]
    assert [a.as_numpy("i").tolist() for a in answers[:3]] == [[0], [1], [2]]
    assert answers[3].as_numpy("i") is None
    finals = [a.get_response().parameters["triton_final_response"].bool_param for a in answers]
    assert finals == [False, False, False, True]
    stream.ask("count", count_to(2), request_id="plain")
    assert [stream.result().as_numpy("i").tolist() for _ in range(2)] == [[0], [1]]
    stream.ask("count", GRPC.tensor(np.array([[2]], np.int32), "n", "INT32"), request_id="a row")
    assert [stream.result().as_numpy("i").tolist() for _ in range(2)] == [[[0]], [[1]]]
    stream.end()


def count_to(n: int) -> Any:
    return GRPC.tensor(np.array([n], np.int32), "n", "INT32")


# Many at once, and the asynchronous clients


def test_the_asynchronous_client_and_its_stream(served: Served) -> None:
    async def use() -> list[tuple[str, float]]:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            for i in range(50):
                given = GRPC.tensor([float(i), 0.0, 0.0])
                yield {"model_name": "twice", "inputs": [given], "request_id": str(i)}

        async with triton_aio.InferenceServerClient(served.connection.grpc) as client:
            assert await client.is_server_ready()
            assert not await client.is_model_ready("nobody")
            found = []
            async for result, error in client.stream_infer(requests()):
                if error is None:
                    found.append((result.get_response().id, result.as_numpy("y")[0]))
            return found

    found = asyncio.run(use())
    assert sorted(found) == sorted((str(i), 2.0 * i) for i in range(50) if i != 13)
