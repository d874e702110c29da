"""Triton's own Python clients over HTTP, unchanged: what those over gRPC do not have."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.conformance.triton_farm import triton_farm
from tests.support.coroutines import on_loop
from tests.support.time_limits import scaled

TIMEOUT_S = scaled(20.0)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with triton_farm(tmp_path_factory.mktemp("triton")) as running:
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
    client: Any, binary_in: bool, binary_out: bool | None, pack_in: str | None, pack_out: str | None
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


def test_bytes_that_are_no_text_do_not_go_in_json(client: Any) -> None:
    sent = np.array([b"\xff\x00", b""], object)
    given = [tensor(sent, datatype="BYTES")]
    with refused(400, "not UTF-8, which JSON cannot say"):
        outputs = [triton.InferRequestedOutput("y", binary_data=False)]
        client.infer("echo_bytes", given, outputs=outputs)


def test_query_parameters_and_headers_pass(client: Any) -> None:
    result = client.infer(
        "twice",
        [tensor(X)],
        query_params={"a": "b c"},
        headers={"x-mine": "y"},
    )
    np.testing.assert_array_equal(result.as_numpy("y"), 2 * X)


def test_asynchronous_requests(client: Any) -> None:
    asked = [client.async_infer("twice", [tensor(-(i + 1) * X)]) for i in range(20)]
    for i, request in enumerate(asked):
        np.testing.assert_array_equal(request.get_result().as_numpy("y"), -2 * (i + 1) * X)


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


def test_every_form_with_the_asynchronous_client(address: str) -> None:
    async def check(client: Any) -> None:
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
