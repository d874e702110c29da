"""Models of KubeMo's own server, and of servers that break the protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import BYTES, Array, Call, Operation, TensorInfo
from farm.dtypes import bytes_array
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    ModelFailed,
    Unavailable,
    UnsupportedFeature,
)
from farm.protocols.mip import remote as module
from farm.protocols.mip.remote import MipModel, Server, models_at
from farm.worker.runner import Runner
from tests.support.kubemo_server import kubemo_serving

PONG = bytes.fromhex("0001010000000000")
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364"
    "f80f00010501012718e3660000000049454e44ae426082"
)


def answer(model: MipModel, *inputs: Any, rows: int | None = None, config: str = "{}") -> Any:
    """Return the outputs of one call, as a farm's worker gets them, or raise its error."""
    arrays: list[Array] = [np.asarray(x) for x in inputs]
    call = Call(model.name, Operation.EVALUATE, tuple(arrays), config, rows=rows)
    ((_, outcome),) = [pair for some in Runner({model.name: model}).run([call]) for pair in some]
    if isinstance(outcome, FarmError):
        raise outcome
    return [output.tolist() for output in outcome.outputs]


@contextmanager
def scripted(*answers: bytes | None) -> Iterator[str]:
    """A server with one answer per connection; None: it disconnects without an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for packet in answers:
                connection, _ = listener.accept()
                with connection:
                    if packet is not None:
                        connection.recv(65536)
                        connection.sendall(packet)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"mip://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join(20)
            assert not thread.is_alive(), "fewer questions than answers"


# KubeMo's own server


def test_a_text_by_url_alone() -> None:
    with kubemo_serving("upper") as (port, _):
        (model,) = models_at(f"mip://127.0.0.1:{port}", "upper").values()
        assert model.name == "upper"
        assert isinstance(model, MipModel)
        assert answer(model, bytes_array(["wörld"])) == [["WÖRLD".encode()]]


def test_an_image_over_a_socket_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kubemo_serving("image_size", str(path)):
        model = MipModel(f"mip+unix:{path}")
        assert answer(model, bytes_array([PNG])) == [[b"1 x 1"]]


def test_numbers_alone_and_in_batches() -> None:
    pair = {"a": 2, "b": 2}
    with kubemo_serving("sum_product") as (port, _):
        for most in (1, 100):
            model = MipModel(f"mip://127.0.0.1:{port}", inputs=pair, outputs=pair, max_batch=most)
            assert answer(model, [1.0, 2.0], [3.0, 4.0]) == [[4, 6], [3, 8]]
        a, b = np.arange(6.0).reshape(3, 2), np.ones((3, 2))
        assert answer(model, a, b, rows=3) == [(a + b).tolist(), a.tolist()]


def test_more_outputs_than_inputs_which_the_server_counts_wrong() -> None:
    with kubemo_serving("parts") as (port, _):
        sizes: dict[str, Any] = {"inputs": {"x": 2}, "outputs": {"y": 2, "z": 2}}
        model = MipModel(f"mip://127.0.0.1:{port}", **sizes)
        assert answer(model, [1.0, 2.0]) == [[2, 3], [10, 20]]
        batched = MipModel(f"mip://127.0.0.1:{port}", **sizes, max_batch=9)
        with pytest.raises(InvalidInput, match="not as many outputs as inputs"):
            answer(batched, np.ones((2, 2)), rows=2)


def test_errors_of_the_server() -> None:
    with kubemo_serving("fails") as (port, _):
        model = MipModel(f"mip://127.0.0.1:{port}", inputs={"x": 1}, outputs={"y": 1})
        with pytest.raises(ModelFailed, match="error code 5: the model failed"):
            answer(model, [1.0])


def test_outputs_that_are_not_as_declared_and_a_server_that_is_gone(tmp_path: Path) -> None:
    # By a socket file: another program might get the port of a server that is gone.
    path = tmp_path / "s"
    with kubemo_serving("double", str(path)) as (_, process):
        model = MipModel(f"mip+unix:{path}", inputs={"x": 2}, outputs={"y": 3})
        with pytest.raises(InvalidOutput, match=r"output 0 \('y'\) has shape \[2\]"):
            answer(model, [1.0, 2.0])
        process.kill()
        process.wait(20)
        with pytest.raises(Unavailable, match="does not answer: Connection refused"):
            answer(model, [1.0, 2.0])


# Other servers


def test_a_config_is_refused() -> None:
    with (
        scripted(PONG) as url,
        pytest.raises(InvalidInput, match="takes no config"),
    ):
        answer(MipModel(url), bytes_array(["a"]), config='{"a":1}')


@pytest.mark.parametrize(
    ("packets", "kind", "said"),
    [
        ([None], Unavailable, "before its answer was whole|reset"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], InvalidOutput, "is it a MIP server"),
        ([bytes.fromhex("0000020000000000")], UnsupportedFeature, "error code 2: it has no model"),
        ([PONG, bytes.fromhex("00020100000000ff") + b"abc"], Unavailable, "was whole"),
        ([PONG, PONG], InvalidOutput, "the answer begins with 00 01 01"),
        ([PONG, bytes.fromhex("0002010000000000")], InvalidOutput, "has 0 bytes"),
        ([PONG, bytes.fromhex("0000040000000003") + b"why"], InvalidInput, "code 4: why"),
    ],
)
def test_servers_that_answer_otherwise(
    packets: Sequence[bytes | None], kind: type[FarmError], said: str
) -> None:
    with scripted(*packets) as url, pytest.raises(kind, match=said):
        answer(MipModel(url), bytes_array(["a"]))


def test_an_answer_that_comes_before_the_request_is_whole() -> None:
    refusal = bytes.fromhex("0000030000000000")
    with scripted(PONG, refusal) as url:
        wide = {"x": TensorInfo("x", (1,), BYTES)}
        with pytest.raises(ModelFailed, match="error code 3"):
            answer(MipModel(url, inputs=wide), bytes_array([b"x" * (64 << 20)]))


@pytest.mark.parametrize("url", ["mip://host", "mip:/x", "mip+unix:x", "http://host:1"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(Unavailable, match="is not the address of a server"):
        Server(url)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "CONNECT_RETRIES", 1)
    with socket.socket() as bound:  # nobody else gets its port, and it does not listen
        bound.bind(("127.0.0.1", 0))
        for url in (f"mip://127.0.0.1:{bound.getsockname()[1]}", f"mip+unix:{tmp_path}/s"):
            with pytest.raises(Unavailable, match="does not answer"):
                models_at(url)
