"""The GraphPipe door: paths, the two forms of errors, configs, limits, disconnecting clients."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st

import farm
from farm.call import ModelInfo, TensorInfo
from farm.errors import FarmError
from farm.model import Model
from farm.protocols.graphpipe.codec import SMALL_BYTES, GraphpipeRequest, call_of, decode_request
from farm.protocols.graphpipe.endpoint import KEPT, Repeated, is_below
from farm.protocols.graphpipe.flatbuffer import root
from farm.protocols.graphpipe.flatbuffer_writer import TableToWrite, UInt8, write
from farm.protocols.graphpipe.tensors import GraphpipeFault, array_of, shape_of, tensor_record
from farm.settings import Settings
from tests.protocols.graphpipe.test_codec import INFO, TWO, request, tensor
from tests.protocols.models import Gate, Sized, posted
from tests.support.front_door import Door, front_door, read_answer, until
from tests.support.graphpipe_bytes import INFER_REQUEST, METADATA_REQUEST

GO = {"User-Agent": "Go-http-client/1.1"}
LIMIT = 10**5


@farm.model(inputs={"x": 2}, outputs={"y": 2, "total": ()})
def double(x: Any) -> Any:
    """Twice the numbers."""
    if x[0] == 13:
        raise ValueError("thirteen ü")
    return 2 * x, x.sum()


MODELS: Mapping[str, Model] = {"double": double, "sized": Sized(), "a b/c%": double, "a b": Sized()}


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with front_door(MODELS) as opened:
        yield opened


@pytest.fixture(scope="module")
def alone() -> Iterator[Door]:
    with front_door({"double": double}) as opened:
        yield opened


def infer(*arrays: Any, config: str = "", outputs: Any = None) -> bytes:
    tensors = []
    for array in arrays:
        array = np.asarray(array, float)
        tensors.append(tensor_record(array, TensorInfo("x", array.shape)))
    return write(TableToWrite([UInt8(1), TableToWrite([config, None, tensors, outputs])]))


def ask(
    door: Door, *arrays: Any, to: str = "/graphpipe/double", **more: Any
) -> urllib3.BaseHTTPResponse:
    headers = more.pop("headers", None)
    return door.ask("POST", to, infer(*arrays, **more), headers)


def values(response: urllib3.BaseHTTPResponse) -> list[Any]:
    assert response.status == 200
    assert response.headers["content-type"] == "application/octet-stream"
    answer = root(response.data)
    assert answer.vector(1, 4)[1] == 0
    return [array_of(t, "float64", shape_of(t, "y"), "y", LIMIT).tolist() for t in answer.tables(0)]


def error(response: urllib3.BaseHTTPResponse) -> tuple[int, str]:
    """Return code and message after checking that the answer has nothing else."""
    assert response.status == 200
    assert response.headers["content-type"] == "application/octet-stream"
    answer = root(response.data)
    assert answer.vector(0, 4) != (0, 0)
    assert answer.vector(0, 4)[1] == 0
    (told,) = answer.tables(1)
    return told.int64(0), told.text(1)


def text(response: urllib3.BaseHTTPResponse) -> tuple[int, str]:
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    return response.status, response.data.decode()


def test_one_evaluation_and_a_batch(door: Door) -> None:
    assert values(ask(door, [1, 2])) == [[2, 4], [3]]
    batch = values(ask(door, [[1, 2], [3, 4]]))
    assert batch == [[[2, 4], [6, 8]], [3, 7]]
    total = ask(door, [1, 2], outputs=["total"])
    assert values(total) == [[3]]
    assert float(total.headers["farm-run-time"]) >= 0


def test_the_same_message_with_other_numbers(door: Door) -> None:
    for _ in range(2):
        for x, y in ((1.5, 2), (-0.25, 1e300)):
            assert values(ask(door, [x, y])) == [
                [2 * x, 2 * y],
                [x + y],
            ]
        code, message = error(ask(door, [13, 0]))
        assert (code, "thirteen" in message) == (9, True)
        assert values(ask(door, [1], to="/graphpipe/a b")) == [[1]]


@pytest.mark.parametrize(
    "path",
    [
        "/graphpipe/double",
        "/graphpipe/double/",
        "/graphpipe/double/predict?x=1",
        "/graphpipe/double?x",
        "//graphpipe/double",
        "/graphpipe/a%20b%2fc%25",
        "/graphpipe/a%20b/c%25/any/path",
    ],
)
def test_the_model_is_the_path(door: Door, path: str) -> None:
    assert values(ask(door, [1, 2], to=path)) == [[2, 4], [3]]
    other = "/graphpipe/a%20b/d"  # the longest name counts
    assert values(ask(door, [5], to=other)) == [[5]]


def test_no_model_is_404(door: Door) -> None:
    for path in ("/graphpipe/none", "/graphpipe/doubles", "/graphpipe", "/graphpipe/"):
        for method in ("GET", "POST"):
            status, told = text(door.ask(method, path))
            assert status == 404
            assert "there are /graphpipe/double, /graphpipe/sized" in told
    status, told = text(door.ask("POST", "/", infer([1, 2])))
    assert (status, told[:55]) == (404, "no model is the default (--graphpipe-default NAME); the")


def test_the_root_is_for_the_only_model_or_the_default(alone: Door) -> None:
    assert values(alone.ask("POST", "/", infer([1, 2]))) == [[2, 4], [3]]
    assert alone.ask("GET", "/").headers["content-type"] == "text/html; charset=utf-8"
    assert alone.ask("HEAD", "/").headers["content-type"] == "text/html; charset=utf-8"
    for default, status in (("double", 200), ("none", 404)):
        settings = Settings(port=0, options={"graphpipe_default": default})
        with front_door(MODELS, settings=settings) as opened:
            assert opened.ask("POST", "/", infer([1, 2])).status == status
            assert opened.ask("GET", "/control/is_ready").status == (200 if status == 200 else 503)


def test_metadata(door: Door) -> None:
    told = door.ask("GET", "/graphpipe/double")
    assert told.headers["content-type"] == "application/json"
    inputs = [{"Name": "x", "Description": "", "Shape": [-1, 2], "Type": 11}]
    assert json.loads(told.data)["Inputs"] == inputs
    table = root(door.ask("POST", "/graphpipe/double", METADATA_REQUEST).data)
    assert (table.text(0), table.text(3)) == ("double", "Twice the numbers.")
    assert [list(t.int64s(2)) for t in table.tables(4)] == [[-1, 2]]
    assert door.ask("HEAD", "/graphpipe/double").status == 200


def test_control(door: Door) -> None:
    for prefix in ("", "/graphpipe/double"):
        for what, answer in {
            "is_alive": (200, "ok\n"),
            "is_ready": (200, "ok\n"),
            "client_count": (200, "0\n"),
            "shutdown": (403, "a farm cannot be stopped remotely: stop `farm serve`\n"),
            "else": (404, "there are /control/is_alive, is_ready and client_count\n"),
        }.items():
            assert text(door.ask("GET", f"{prefix}/control/{what}")) == answer
    assert door.ask("GET", "/graphpipe/none/control/is_alive").status == 404


def test_errors_are_answers(door: Door) -> None:
    assert error(door.ask("POST", "/graphpipe/double", b"")) == (
        1,
        "the message has 0 bytes; a flatbuffer has 8 or more",
    )
    late = ask(door, [1, 2], headers={"Farm-Deadline": "soon"})
    for answer, number, text in (
        (ask(door, [1, 2, 3]), 5, "input 'x' has shape [3];"),
        (ask(door, [13, 2]), 9, "thirteen ü"),
        (late, 5, "Farm-Deadline"),
    ):
        code, told = error(answer)
        assert (code, text in told) == (number, True), told


@pytest.mark.parametrize("agent", [GO["User-Agent"], "axios/0.18.0"])
def test_who_cannot_see_them_is_told_in_text(door: Door, agent: str) -> None:
    headers = {"User-Agent": agent}
    status, told = text(ask(door, [13, 2], headers=headers))
    assert (status, "thirteen ü" in told) == (400, True)
    status, told = text(door.ask("POST", "/graphpipe/double", b"\0" * 8, headers))
    assert (status, told[:14]) == (400, "no flatbuffer:")
    assert values(ask(door, [1, 2], headers=headers))


def test_a_config_decides_sizes(door: Door) -> None:
    three = infer([1, 2, 3], config='{"n": 3}')
    assert values(door.ask("POST", "/graphpipe/sized", three)) == [[6]]
    assert error(ask(door, [1, 2, 3], to="/graphpipe/sized"))[0] == 5
    assert error(ask(door, [1], config='{"n": 4}', to="/graphpipe/sized"))[0] == 5
    assert error(ask(door, [1], config='{"n": "bad"}', to="/graphpipe/sized"))[0] == 9
    assert error(ask(door, [1], config="[]", to="/graphpipe/sized"))[0] == 1


def test_methods_and_limits(door: Door) -> None:
    refused = door.ask("PUT", "/graphpipe/double", infer([1, 2]))
    assert refused.headers["allow"] == "GET, HEAD, POST"
    assert text(refused) == (405, "'/graphpipe/double' is asked with POST, or GET for metadata")
    assert door.ask("DELETE", "/").status == 405


def test_who_hangs_up_takes_the_call_back() -> None:
    gate = Gate(2)
    with front_door({"gate": gate}) as door:
        with posted(door, "/", infer([1, 2])) as first:
            until(lambda: gate.calls == 1, "the first runs")
            with posted(door, "/", infer([1, 2])):
                until(lambda: count(door) == 2, "the second waits")
            until(lambda: count(door) == 1, "the second is taken back")
            gate.open.set()
            assert read_answer(first)[0] == 200
        until(lambda: count(door) == 0, "it is over")
        assert gate.calls == 1


def count(door: Door) -> int:
    return int(door.ask("GET", "/control/client_count").data)


def test_before_there_is_a_model() -> None:
    with front_door({}) as door:
        door.dispatcher.first_worker.limit_s = 0.0
        assert error(ask(door, [1, 2]))[0] == 10
        assert text(door.ask("POST", "/", infer([1, 2]), GO))[0] == 400
        assert text(door.ask("GET", "/graphpipe/double"))[0] == 503
        assert text(door.ask("GET", "/control/is_ready")) == (503, "no model is served yet\n")
        assert text(door.ask("GET", "/control/is_alive")) == (200, "ok\n")


def test_after_harm_the_door_is_open(door: Door) -> None:
    shared = tensor_record(np.zeros(2), TensorInfo("x", (2,)))
    harm = write(TableToWrite([UInt8(1), TableToWrite([None, None, [shared] * 20_000])]))
    assert error(door.ask("POST", "/graphpipe/double", harm))[0] == 3
    for at in range(0, len(METADATA_REQUEST), 4):
        wrong = METADATA_REQUEST[:at] + b"\xff" * 4 + METADATA_REQUEST[at + 4 :]
        assert door.ask("POST", "/graphpipe/double", wrong).status == 200
    assert values(ask(door, [1, 2])) == [[2, 4], [3]]


def test_the_paths_are_known() -> None:
    for target in ("/graphpipe", "/graphpipe/x", "/control/is_ready"):
        assert is_below(target)
    for target in ("/", "/graphpipes", "/v2", "/controls", "/graphpipe?x"):
        assert not is_below(target)


VARIES = ModelInfo("v", (TensorInfo("x", (-1,)),), INFO.outputs)
OCTETS = ModelInfo("o", (TensorInfo("x", (-1,), "uint8"),), INFO.outputs)
TEXTS = ModelInfo("t", (TensorInfo("x", (1,), "bytes"),), INFO.outputs)


def through(message: bytes, info: ModelInfo) -> tuple[Any, ...]:
    decoded = decode_request(message)
    assert isinstance(decoded, GraphpipeRequest)
    return call_of(decoded, info)


def kept(message: bytes, info: ModelInfo) -> Repeated:
    repeated = Repeated()
    repeated.keep(message, info, *through(message, info))
    return repeated


def same(one: Any, other: Any) -> bool:
    """Whether two readings of a message are equal."""
    (a, wish_a), (b, wish_b) = one, other
    return (
        (a.model, a.operation, a.config, a.rows) == (b.model, b.operation, b.config, b.rows)
        and list(wish_a) == list(wish_b)
        and [(x.dtype, x.tobytes(), x.shape) for x in a.inputs]
        == [(x.dtype, x.tobytes(), x.shape) for x in b.inputs]
    )


@given(
    shape=st.sampled_from([(2,), (1, 2), (5, 2)]),
    names=st.sampled_from([(None, None), (["x"], ["y"]), (["x", "x"], ["s", "y"]), (None, ["s"])]),
    numbers=st.lists(st.floats(width=64), min_size=10, max_size=10),
    config=st.sampled_from([None, "", "{}"]),
)
def test_other_numbers_in_the_same_message(
    shape: Any, names: Any, numbers: list[float], config: str | None
) -> None:
    size = int(np.prod(shape))

    def message(numbers: Any) -> bytes:
        array = np.array(numbers[:size]).reshape(shape)
        return request(tensor(array), inputs=names[0], outputs=names[1], config=config)

    repeated = kept(message([0.0] * 10), INFO)
    found = repeated.call_of(message(numbers), INFO)
    assert found is not None
    assert same(found, through(message(numbers), INFO))


def test_any_other_byte_is_read_through() -> None:
    message = request(tensor([1.5, 2.5]), inputs=["x"], outputs=["y"])
    repeated = kept(message, INFO)
    numbers = message.index(struct.pack("<2d", 1.5, 2.5))
    assert repeated.call_of(message, INFO) is not None
    for place in {*range(len(message))} - {*range(numbers, numbers + 16)}:
        changed = bytearray(message)
        changed[place] ^= 1
        assert repeated.call_of(bytes(changed), INFO) is None, place
    assert repeated.call_of(message + b"\0", INFO) is None
    assert repeated.call_of(message[:-1], INFO) is None
    assert repeated.call_of(b"", INFO) is None


def test_each_model_has_its_own_and_a_new_description_begins_anew() -> None:
    message = request(tensor([1.5, 2.5]))
    repeated = kept(message, INFO)
    assert repeated.call_of(message, VARIES) is None
    again = ModelInfo("m", (TensorInfo("x", (-1,)),), INFO.outputs)
    assert repeated.call_of(message, again) is None
    repeated.keep(message, again, *through(message, again))
    assert repeated.call_of(message, again) is not None
    assert repeated.call_of(message, INFO) is None


@pytest.mark.parametrize(
    ("message", "info"),
    [
        (request(tensor([1.0, 2.0]), config='{"a":1}'), INFO),
        (request(tensor([1.0, 2.0]), tensor([1.0])), TWO),
        (request(tensor([b"text"], "bytes")), TEXTS),
        (request(tensor(np.zeros(SMALL_BYTES + 1), "uint8")), OCTETS),
        (request(tensor(np.zeros(8)), config=" " * 2 * SMALL_BYTES + "{}"), VARIES),
        (request(tensor(np.zeros(0))), VARIES),
    ],
    ids=["config", "two tensors", "texts", "large", "long", "empty"],
)
def test_what_is_not_remembered(message: bytes, info: ModelInfo) -> None:
    assert kept(message, info).call_of(message, info) is None


def test_numbers_that_are_read_as_something_else_too() -> None:
    """The config shares its bytes with the numbers, so other numbers would change the config."""

    def message(config: bytes) -> bytes:
        data = struct.pack("<I", len(config)) + config.ljust(12, b"\0")
        whole = bytearray(request(tensor(np.frombuffer(data, "u1"), "uint8"), config="{}"))
        infer = root(bytes(whole)).table(1)
        assert infer is not None
        field = infer.position + infer._offsets[0]
        struct.pack_into("<I", whole, field, whole.index(data) - field)
        return bytes(whole)

    assert through(message(b"{}"), OCTETS)[0].config == "{}"
    assert through(message(b'{"a":1}'), OCTETS)[0].config == '{"a":1}'
    repeated = kept(message(b"{}"), OCTETS)
    assert repeated.call_of(message(b'{"a":1}'), OCTETS) is None


def test_only_so_many_are_remembered() -> None:
    repeated = Repeated()
    for size in range(1, 2 * KEPT):
        message = request(tensor(np.zeros(size)))
        repeated.keep(message, VARIES, *through(message, VARIES))
        assert repeated.call_of(message, VARIES) is not None
        assert len(repeated._known) <= KEPT


@given(st.integers(0, len(INFER_REQUEST) - 1), st.integers(0, 255), st.binary(max_size=64))
def test_damaged_messages_are_read_alike(place: int, byte: int, other: bytes) -> None:
    """After an accepted message, damaged or not, the next is read as it would be alone."""
    damaged = bytearray(request(tensor(np.arange(8.0)), inputs=["x"]))
    damaged[place % len(damaged)] = byte
    try:
        repeated = kept(bytes(damaged), VARIES)
    except (FarmError, GraphpipeFault):
        return
    damaged[-len(other) :] = other
    found = repeated.call_of(bytes(damaged), VARIES)
    assert found is None or same(found, through(bytes(damaged), VARIES))
