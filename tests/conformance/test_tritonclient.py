"""Triton's own Python clients over HTTP and gRPC, unchanged, against `farm serve` with two workers.

What only those over gRPC have stands in `test_tritonclient_grpc.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from farm.protocols.kserve.tensors import DATATYPES
from tests.conformance.triton_farm import GRPC, HTTP, JSON, SPECS, TRITON_FARM, VALUES, Way
from tests.support.dispatcher_farm import Served

X = np.array([[1.5, -math.inf, 3.0], [4.0, 5.0, math.nan]])


served = TRITON_FARM


# Requests that run no model


def test_health_and_metadata(way: Way, client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("twice")
    assert client.is_model_ready("twice", "1")
    assert not client.is_model_ready("twice", "2")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata(**way.as_json)["name"] == "farm"
    metadata = client.get_model_metadata("twice", "1", **way.as_json)
    (given,) = metadata["inputs"]
    assert (given["name"], given["datatype"]) == ("x", "FP64")
    assert [int(size) for size in given["shape"]] == [-1, 3]
    assert [output["name"] for output in metadata["outputs"]] == ["y", "sum"]
    answer = client.get_model_config("twice", **way.as_json)
    config = answer.get("config", answer)
    assert config["max_batch_size"] == 16
    (given,) = config["input"]
    assert (given["name"], given["data_type"]) == ("x", "TYPE_FP64")
    assert [int(size) for size in given["dims"]] == [3]


def test_the_repository(way: Way, client: Any) -> None:
    def states() -> dict[str, str]:
        index = client.get_model_repository_index(**way.as_json)
        rows = index["models"] if isinstance(index, dict) else index
        return {row["name"]: row["state"] for row in rows}

    assert states()["slow"] == "READY"
    client.unload_model("slow")
    try:
        assert states()["slow"] == "UNAVAILABLE"
        assert not client.is_model_ready("slow")
        assert not client.is_server_ready()
        with way.refused("NOT_FOUND", "model 'slow' is unloaded"):
            client.infer("slow", [way.tensor([0.0], "seconds")])
    finally:
        client.load_model("slow")
    assert client.is_server_ready()
    with way.refused("UNIMPLEMENTED", "models are not changed from outside"):
        client.load_model("slow", config="{}")
    with way.refused("NOT_FOUND", "no model 'nobody'"):
        client.load_model("nobody")


def test_statistics(way: Way, client: Any) -> None:
    def of(name: str) -> Any:
        (row,) = client.get_inference_statistics(name, **way.as_json)["model_stats"]
        return row

    def counted(row: Any) -> tuple[int, int, int, int]:
        success = row["inference_stats"]["success"]
        counts = row["inference_count"], row["execution_count"], success["count"], success["ns"]
        inferences, executions, successes, ns = map(int, counts)
        return inferences, executions, successes, ns

    client.infer("twice", [way.tensor(np.ones((1, 3)))])
    before = counted(of("twice"))
    client.infer("twice", [way.tensor(np.ones((5, 3)))])
    after = counted(of("twice"))
    assert [new - old for new, old in zip(after[:3], before, strict=False)] == [5, 1, 1]
    assert after[3] > before[3]
    assert int(of("twice")["last_inference"]) > 1e12
    assert any(int(row["batch_size"]) == 5 for row in of("twice")["batch_stats"])
    every = client.get_inference_statistics(**way.as_json)["model_stats"]
    assert len(every) == len(SPECS)


def test_what_is_not_offered_says_so(way: Way, client: Any) -> None:
    names = ("TraceSetting", "LogSettings") if way is GRPC else ("", "")
    with way.refused("UNIMPLEMENTED", names[0]):
        client.get_trace_settings()
    with way.refused("UNIMPLEMENTED", names[1]):
        client.get_log_settings()


# Inference


@pytest.mark.parametrize(
    ("way", "datatype"),
    # The HTTP client takes BF16 in binary only.
    [(w, d) for w in (HTTP, JSON, GRPC) for d in sorted(DATATYPES) if (w, d) != (JSON, "BF16")],
    ids=lambda value: getattr(value, "name", value),
    indirect=["way"],
)
def test_all_datatypes(way: Way, client: Any, datatype: str) -> None:
    sent = VALUES[datatype]
    result = client.infer(
        f"echo_{DATATYPES[datatype]}",
        [way.tensor(sent, datatype=datatype)],
        outputs=way.outputs("y"),
    )
    (output,) = result.get_response(**way.as_json)["outputs"]
    assert output["datatype"] == datatype
    got = result.as_numpy("y")
    if datatype == "BYTES":
        texts = [t.decode() if isinstance(t, bytes) else t for t in got]
        assert texts == sent.tolist()
    else:
        assert got.dtype == sent.dtype
        np.testing.assert_array_equal(got.astype("f8"), sent.astype("f8"))


def test_bytes_that_are_no_text_go_in_binary(way: Way, client: Any) -> None:
    sent = np.array([b"\xff\x00", b""], object)
    answer = client.infer("echo_bytes", [way.tensor(sent, datatype="BYTES")])
    assert answer.as_numpy("y").tolist() == sent.tolist()


def test_names_with_slashes_and_sizes_that_vary(way: Way, client: Any) -> None:
    x = np.arange(10.0).reshape(5, 2)
    name = "any size/é %"
    (given,) = client.get_model_metadata(name, **way.as_json)["inputs"]
    assert [int(size) for size in given["shape"]] == [-1, -1, 2]
    np.testing.assert_array_equal(client.infer(name, [way.tensor(x)]).as_numpy("y"), x.T)
    many = np.stack([x, -x])
    got = client.infer(name, [way.tensor(many)]).as_numpy("y")
    np.testing.assert_array_equal(got, many.transpose(0, 2, 1))


@pytest.mark.parametrize("rows", [None, 1, 100, 1000])
def test_a_batch_beyond_what_the_model_takes_is_put_together_again(
    way: Way, client: Any, rows: int | None
) -> None:
    x = np.random.default_rng(1).normal(size=(3,) if rows is None else (rows, 3))
    got = client.infer("twice", [way.tensor(x)]).as_numpy("y")
    assert got.tobytes() == (2 * x).tobytes()


@pytest.mark.slow
def test_large_tensors(way: Way, client: Any) -> None:
    x = np.random.default_rng(1).normal(size=(400_000, 3))  # 9.6 MB, above gRPC's default
    np.testing.assert_array_equal(client.infer("twice", [way.tensor(x)]).as_numpy("y"), 2 * x)


def test_ids_outputs_and_parameters_pass(way: Way, client: Any) -> None:
    answer = client.infer(
        "twice",
        [way.tensor([1.0, 2.0, 3.0])],
        model_version="1",
        request_id="ü" * 100,
        outputs=way.outputs("sum"),
        parameters={"anything": "goes", "n": 1, "yes": True},
        priority=1,
        timeout=10_000_000,
        headers={"farm-client": "me"},
    )
    response = answer.get_response(**way.as_json)
    assert response["id"] == "ü" * 100
    assert (response["model_name"], response["model_version"]) == ("twice", "1")
    assert [output["name"] for output in response["outputs"]] == ["sum"]
    assert answer.as_numpy("sum").tolist() == [6.0]


def test_errors_are_readable_and_the_connection_goes_on(way: Way, client: Any) -> None:
    def good() -> None:
        got = client.infer("twice", [way.tensor(X)]).as_numpy("y")
        np.testing.assert_array_equal(got, 2 * X)

    good()
    with way.refused("NOT_FOUND", "no model 'nobody' is served here; the models are"):
        client.infer("nobody", [way.tensor(X)])
    good()
    shape = "input 'x' has shape [2, 2]; model 'twice' expects [3], or [-1, 3]"
    with way.refused("INVALID_ARGUMENT", shape):
        client.infer("twice", [way.tensor(np.ones((2, 2)))])
    good()
    datatype = "input 'x' has datatype FP32; model 'twice' expects FP64"
    with way.refused("INVALID_ARGUMENT", datatype):
        client.infer("twice", [way.tensor(np.ones((2, 3), "float32"), datatype="FP32")])
    with way.refused("INVALID_ARGUMENT", "there is no input 'q'"):
        client.infer("twice", [way.tensor(X, "q")])
    with way.refused("INVALID_ARGUMENT", "there is no output 'q'"):
        client.infer("twice", [way.tensor(X)], outputs=way.outputs("q"))
    with way.refused("NOT_FOUND", "has no version '3'"):
        client.infer("twice", [way.tensor(X)], model_version="3")
    with way.refused("INTERNAL", "ValueError: thirteen ü"):
        client.infer("twice", [way.tensor(np.full((1, 3), 13.0))])
    good()


# What only the client over HTTP has


@pytest.fixture
def http(served: Served) -> Iterator[Any]:
    with HTTP.sync.InferenceServerClient(HTTP.address(served), concurrency=4) as found:
        yield found


PACKINGS = (None, "gzip", "deflate")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize(
    ("binary_out", "pack_in", "pack_out"),
    # Every two of the three occur together.
    [
        ((None, True, False)[(i + j) % 3], pack_in, pack_out)
        for i, pack_in in enumerate(PACKINGS)
        for j, pack_out in enumerate(PACKINGS)
    ],
)
def test_every_form_of_a_request_and_of_its_answer(
    http: Any, binary_in: bool, binary_out: bool | None, pack_in: str | None, pack_out: str | None
) -> None:
    for x in (X, np.tile(X, (300, 1))):
        wish = None if binary_out is None else (HTTP if binary_out else JSON).outputs("y")
        result = http.infer(
            "twice",
            [(HTTP if binary_in else JSON).tensor(x)],
            outputs=wish,
            request_id="é-7",
            query_params={"a": "b c"},
            headers={"x-mine": "y"},
            request_compression_algorithm=pack_in,
            response_compression_algorithm=pack_out,
        )
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * x)
        told = result.get_response()
        assert (told["id"], told["model_name"], told["model_version"]) == ("é-7", "twice", "1")
        assert ("sum" in [o["name"] for o in told["outputs"]]) == (binary_out is None)


def test_asynchronous_requests(http: Any) -> None:
    asked = [http.async_infer("twice", [HTTP.tensor(-(i + 1) * X)]) for i in range(20)]
    for i, request in enumerate(asked):
        np.testing.assert_array_equal(request.get_result().as_numpy("y"), -2 * (i + 1) * X)


def test_a_timeout_is_one_for_the_queue(http: Any) -> None:
    slow = HTTP.tensor([0.5], "seconds")
    assert http.infer("slow", [slow], timeout=50_000).as_numpy("seconds")[0] == 0.5


# Many at once, with the asynchronous clients


async def test_the_asynchronous_client(way: Way, served: Served) -> None:
    async with way.aio.InferenceServerClient(way.address(served)) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("twice")
        assert not await client.is_model_ready("nobody")
        assert (await client.get_model_metadata("twice", **way.as_json))["name"] == "twice"
        assert await client.get_model_repository_index(**way.as_json)
        assert (await client.get_inference_statistics(**way.as_json))["model_stats"]
        for x in (X, np.tile(X, (300, 1))):
            result = await client.infer("twice", [way.tensor(x)])
            np.testing.assert_array_equal(result.as_numpy("y"), 2 * x)
        with way.refused("NOT_FOUND", "no model 'nobody'"):
            await client.infer("nobody", [way.tensor(X)])


async def test_200_good_and_bad_clients_at_once_get_their_own_answers(
    way: Way, served: Served
) -> None:
    options = {"conn_limit": 200} if way is HTTP else {}

    async def run(client: Any, i: int) -> None:
        x = np.full((1 + i % 3, 3), -float(i))
        if i % 4 == 0:
            x[0, 0] = 13.0  # fails in the model, possibly in a batch with others
            with way.refused("INTERNAL", "thirteen"):
                await client.infer("twice", [way.tensor(x)])
        elif i % 4 == 1:
            with way.refused("INVALID_ARGUMENT", "has shape"):
                await client.infer("twice", [way.tensor(x[:, :2])])
        else:
            sender = JSON if way is HTTP and i % 2 else way
            result = await client.infer("twice", [sender.tensor(x)], request_id=str(i))
            np.testing.assert_array_equal(result.as_numpy("y"), 2 * x)
            np.testing.assert_array_equal(result.as_numpy("sum"), x.sum(1, keepdims=True))
            assert result.get_response(**way.as_json)["id"] == str(i)

    async with way.aio.InferenceServerClient(way.address(served), **options) as client:
        await asyncio.gather(*[run(client, i) for i in range(200)])
