"""Triton's own Python clients over HTTP, unchanged, against `farm serve` with two workers."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from farm.protocols.kserve.tensors import DATATYPES
from tests.support.coroutines import on_loop
from tests.support.dispatcher_farm import serving
from tests.support.time_limits import scaled

TIMEOUT_S = scaled(20.0)

MODELS = f"""
import time
import numpy as np
import farm
from farm import TensorInfo

class Twice(farm.Model):
    name = "twice"
    inputs = {{"x": 3}}
    outputs = {{"y": 3, "sum": 1}}
    max_batch = 16

    def evaluate(self, inputs, config):
        x = inputs["x"]
        if (x == 13).any():
            raise ValueError("thirteen \\u00fc")
        return {{"y": 2 * x, "sum": x.sum(axis=1, keepdims=True)}}

class Slow(farm.Model):
    name = "slow"
    inputs = {{"seconds": 1}}
    outputs = {{"seconds": 1}}

    def evaluate(self, inputs, config):
        time.sleep(float(inputs["seconds"][0]))
        return inputs["seconds"]

class Any(farm.Model):
    name = "any size/é %"
    inputs = {{"x": (-1, 2)}}
    outputs = {{"y": (2, -1)}}

    def evaluate(self, inputs, config):
        return inputs["x"].T

def echo(dtype):
    class Echo(farm.Model):
        name = "echo_" + dtype
        inputs = {{"x": TensorInfo("x", (2,), dtype)}}
        outputs = {{"y": TensorInfo("y", (2,), dtype)}}

        def evaluate(self, inputs, config):
            return inputs["x"]

    return Echo

for dtype in {sorted(DATATYPES.values())}:
    globals()["Echo_" + dtype] = echo(dtype)
"""

SPECS = ("Twice", "Slow", "Any", *(f"Echo_{dtype}" for dtype in sorted(DATATYPES.values())))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("triton")
    (folder / "models.py").write_text(MODELS)
    names = [f"models.py:{name}" for name in SPECS]
    with serving(folder, *names, "--workers", "2") as running:
        yield urlsplit(running.connection.url).netloc


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with triton.InferenceServerClient(address, concurrency=4) as found:
        yield found


def tensor(values: Any, *, name: str = "x", datatype: str = "FP64", binary: bool = True) -> Any:
    array = np.asarray(values)
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


@contextmanager
def refused(status: int, text: str) -> Iterator[None]:
    with pytest.raises(InferenceServerException) as caught:
        yield
    assert caught.value.status() == str(status)
    assert text in caught.value.message()


X = np.array([[1.5, -math.inf, 3.0], [4.0, 5.0, math.nan]])


# Requests that run no model


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("twice")
    assert client.is_model_ready("twice", "1")
    assert not client.is_model_ready("twice", "2")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "farm"
    metadata = client.get_model_metadata("twice", "1")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}]
    config = client.get_model_config("twice")
    assert config["max_batch_size"] == 16
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP64", "dims": [3]}]


def test_the_repository(client: Any) -> None:
    def states() -> dict[str, str]:
        return {row["name"]: row["state"] for row in client.get_model_repository_index()}

    assert states()["slow"] == "READY"
    client.unload_model("slow")
    try:
        assert states()["slow"] == "UNAVAILABLE"
        assert not client.is_model_ready("slow")
        assert not client.is_server_ready()
        with refused(404, "model 'slow' is unloaded"):
            client.infer("slow", [tensor([0.0], name="seconds")])
    finally:
        client.load_model("slow")
    assert client.is_server_ready()
    with refused(501, "models are not changed from outside"):
        client.load_model("slow", config="{}")
    with refused(404, "no model 'nobody'"):
        client.load_model("nobody")


def test_statistics(client: Any) -> None:
    def of(name: str) -> Any:
        (row,) = client.get_inference_statistics(name)["model_stats"]
        return row

    before = of("twice")
    client.infer("twice", [tensor(np.ones((5, 3)))])
    after = of("twice")
    assert after["inference_count"] - before["inference_count"] == 5
    assert after["execution_count"] - before["execution_count"] == 1
    assert after["inference_stats"]["success"]["count"] > 0
    every = client.get_inference_statistics()["model_stats"]
    assert len(every) == len(SPECS)


def test_what_is_not_offered_says_so(client: Any) -> None:
    for ask in (
        client.get_trace_settings,
        client.get_log_settings,
    ):
        with refused(501, "are not offered here"):
            ask()


# Inference


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [None, True, False])
@pytest.mark.parametrize("pack_in", [None, "gzip", "deflate"])
@pytest.mark.parametrize("pack_out", [None, "gzip", "deflate"])
def test_every_form_of_a_request_and_of_its_answer(
    client: Any, binary_in: bool, binary_out: bool | None, pack_in: str, pack_out: str
) -> None:
    for x in (X, np.tile(X, (300, 1))):
        outputs = None
        if binary_out is not None:
            outputs = [triton.InferRequestedOutput("y", binary_data=binary_out)]
        result = client.infer(
            "twice",
            [tensor(x, binary=binary_in)],
            outputs=outputs,
            request_id="é-7",
            request_compression_algorithm=pack_in,
            response_compression_algorithm=pack_out,
        )
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * x)
        told = result.get_response()
        assert (told["id"], told["model_name"], told["model_version"]) == ("é-7", "twice", "1")
        assert ("sum" in [o["name"] for o in told["outputs"]]) == (binary_out is None)


VALUES: dict[str, Any] = {
    "BOOL": np.array([True, False]),
    "BYTES": np.array(["grüße", ""], object),
    "FP16": np.array([0.1, -math.inf], "float16"),
    "BF16": np.array([0.1, 3.0], ml_dtypes.bfloat16),
    "FP32": np.array([0.1, math.inf], "float32"),
    "FP64": np.array([0.1, math.nan]),
} | {
    DATATYPES[d].upper(): np.array([np.iinfo(t).min, np.iinfo(t).max], t)
    for d, t in DATATYPES.items()
    if "INT" in d
}


@pytest.mark.parametrize(
    ("datatype", "binary"),
    # This client takes BF16 in binary only.
    [(d, binary) for d in sorted(DATATYPES) for binary in (True, False) if binary or d != "BF16"],
)
def test_all_datatypes(client: Any, datatype: str, binary: bool) -> None:
    sent = VALUES[datatype]
    result = client.infer(
        f"echo_{DATATYPES[datatype]}",
        [tensor(sent, datatype=datatype, binary=binary)],
        outputs=[triton.InferRequestedOutput("y", binary_data=binary)],
    )
    got = result.as_numpy("y")
    assert result.get_output("y")["datatype"] == datatype
    if datatype == "BYTES":
        texts = [t.decode() if isinstance(t, bytes) else t for t in got]
        assert texts == sent.tolist()
    else:
        assert got.dtype == sent.dtype
        np.testing.assert_array_equal(got.astype("f8"), sent.astype("f8"))


def test_bytes_that_are_no_text_go_in_binary(client: Any) -> None:
    sent = np.array([b"\xff\x00", b""], object)
    given = [tensor(sent, datatype="BYTES")]
    assert client.infer("echo_bytes", given).as_numpy("y").tolist() == sent.tolist()
    with refused(400, "not UTF-8, which JSON cannot say"):
        outputs = [triton.InferRequestedOutput("y", binary_data=False)]
        client.infer("echo_bytes", given, outputs=outputs)


def test_names_with_slashes_and_sizes_that_vary(client: Any) -> None:
    x = np.arange(10.0).reshape(5, 2)
    name = "any size/é %"
    assert client.get_model_metadata(name)["inputs"][0]["shape"] == [-1, -1, 2]
    np.testing.assert_array_equal(client.infer(name, [tensor(x)]).as_numpy("y"), x.T)
    many = np.stack([x, -x])
    got = client.infer(name, [tensor(many)]).as_numpy("y")
    np.testing.assert_array_equal(got, many.transpose(0, 2, 1))


def test_a_batch_beyond_what_the_model_takes_is_put_together_again(client: Any) -> None:
    x = np.random.default_rng(1).normal(size=(1000, 3))
    np.testing.assert_array_equal(client.infer("twice", [tensor(x)]).as_numpy("y"), 2 * x)


def test_parameters_pass(client: Any) -> None:
    result = client.infer(
        "twice",
        [tensor(X)],
        priority=1,
        timeout=10_000_000,
        parameters={"mine": "x", "n": 3},
        query_params={"a": "b c"},
        headers={"x-mine": "y"},
    )
    np.testing.assert_array_equal(result.as_numpy("y"), 2 * X)


def test_a_sequence_is_refused_by_name(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="parameter sequence_id is 7"):
        client.infer("twice", [tensor(X)], sequence_id=7, sequence_start=True)


def test_asynchronous_requests(client: Any) -> None:
    asked = [client.async_infer("twice", [tensor(-(i + 1) * X)]) for i in range(20)]
    for i, request in enumerate(asked):
        np.testing.assert_array_equal(request.get_result().as_numpy("y"), -2 * (i + 1) * X)


def test_errors_are_readable_and_the_connection_goes_on(client: Any) -> None:
    def good() -> None:
        np.testing.assert_array_equal(client.infer("twice", [tensor(X)]).as_numpy("y"), 2 * X)

    good()
    with refused(404, "no model 'nobody' is served here; the models are"):
        client.infer("nobody", [tensor(X)])
    good()
    with refused(400, "input 'x' has shape [2, 2]; model 'twice' expects [3], or [-1, 3]"):
        client.infer("twice", [tensor(np.ones((2, 2)))])
    good()
    with refused(400, "input 'x' has datatype FP32; model 'twice' expects FP64"):
        client.infer("twice", [tensor(np.ones((2, 3), "float32"), datatype="FP32")])
    with refused(400, "there is no input 'q'"):
        client.infer("twice", [tensor(X, name="q")])
    with refused(400, "there is no output 'q'"):
        client.infer("twice", [tensor(X)], outputs=[triton.InferRequestedOutput("q")])
    with refused(404, "has no version '3'"):
        client.infer("twice", [tensor(X)], model_version="3")
    with refused(500, "ValueError: thirteen ü"):
        client.infer("twice", [tensor(np.full((1, 3), 13.0))])
    good()


def test_a_timeout_is_one_for_the_queue(client: Any) -> None:
    slow = tensor([0.5], name="seconds")
    assert client.infer("slow", [slow], timeout=50_000).as_numpy("seconds")[0] == 0.5


def test_wrong_lengths_of_the_json(client: Any) -> None:
    body, length = triton.InferenceServerClient.generate_request_body([tensor(X)])
    for wrong in (length - 1, length + 1, 0, -1, len(body) + 1, "x"):
        response = client._post(
            "v2/models/twice/infer", body, {"Inference-Header-Content-Length": wrong}, None
        )
        assert response.status_code == 400
        assert list(json.loads(response.read())) == ["error"]


def test_threads_with_clients_of_their_own(address: str) -> None:
    def run(i: int) -> None:
        x = np.full((1 + i % 3, 3), -float(i))
        with triton.InferenceServerClient(address, network_timeout=TIMEOUT_S) as client:
            for _ in range(3):
                got = client.infer("twice", [tensor(x, binary=bool(i % 2))])
                np.testing.assert_array_equal(got.as_numpy("y"), 2 * x)

    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(run, range(32)):
            pass


@on_loop
async def aio(address: str, check: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Run checks with an asynchronous client."""
    async with triton_aio.InferenceServerClient(address, conn_limit=200) as client:
        await check(client)


def test_the_asynchronous_client(address: str) -> None:
    async def check(client: Any) -> None:
        assert await client.is_server_ready()
        assert await client.is_model_ready("twice")
        assert (await client.get_model_metadata("twice"))["name"] == "twice"
        assert len(await client.get_model_repository_index()) == len(SPECS)
        assert (await client.get_inference_statistics())["model_stats"]
        for x in (X, np.tile(X, (300, 1))):
            for binary in (True, False):
                for packing in (None, "gzip", "deflate"):
                    result = await client.infer(
                        "twice",
                        [tensor(x, binary=binary)],
                        outputs=[triton.InferRequestedOutput("y", binary_data=binary)],
                        request_compression_algorithm=packing,
                        response_compression_algorithm=packing,
                    )
                    np.testing.assert_array_equal(result.as_numpy("y"), 2 * x)
        with refused(404, "no model 'nobody'"):
            await client.infer("nobody", [tensor(X)])
        assert await client.is_server_live()

    aio(address, check)


def test_200_good_and_bad_clients_at_once_get_their_own_answers(address: str) -> None:
    async def run(client: Any, i: int) -> None:
        x = np.full((1 + i % 3, 3), -float(i))
        given = [tensor(x, binary=bool(i % 2))]
        if i % 4 == 0:
            x[0, 0] = 13.0  # fails in the model, possibly in a batch with others
            with refused(500, "thirteen"):
                await client.infer("twice", [tensor(x)])
        elif i % 4 == 1:
            with refused(400, "has shape"):
                await client.infer("twice", [tensor(x[:, :2])])
        else:
            result = await client.infer("twice", given, request_id=str(i))
            np.testing.assert_array_equal(result.as_numpy("y"), 2 * x)
            np.testing.assert_array_equal(result.as_numpy("sum"), x.sum(1, keepdims=True))
            assert result.get_response()["id"] == str(i)

    async def check(client: Any) -> None:
        for _ in range(3):
            await asyncio.gather(*[run(client, i) for i in range(200)])

    aio(address, check)


def test_a_client_that_vanishes_harms_nobody(address: str, client: Any) -> None:
    host, _, port = address.partition(":")
    body, length = triton.InferenceServerClient.generate_request_body([tensor(X)])
    head = (
        f"POST /v2/models/twice/infer HTTP/1.1\r\nHost: {address}\r\n"
        f"Inference-Header-Content-Length: {length}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    for sent in (head + body, head + body[:-1], head[:-5]):
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as gone:
                gone.sendall(sent)
    np.testing.assert_array_equal(client.infer("twice", [tensor(X)]).as_numpy("y"), 2 * X)
