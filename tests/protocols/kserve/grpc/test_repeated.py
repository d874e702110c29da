"""Requests like earlier ones: a server that keeps them answers as one that keeps nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hpack import Encoder

from farm.call import Call, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.grpc.http2 import headers as kept_heads
from farm.grpc.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    frame,
)
from farm.grpc.http2.sending import Sending
from farm.grpc.server import GrpcServer
from farm.http1.access import Access
from farm.model import Config, Inputs, Model
from farm.protocols.kserve.dialect import DIALECTS
from farm.protocols.kserve.endpoint_inference import Inference, Prepared
from farm.protocols.kserve.grpc import repeated as kept_requests
from farm.protocols.kserve.grpc.codec import (
    decode_infer,
    encode_infer,
    messages,
    start_of_numbers,
)
from farm.protocols.kserve.grpc.endpoint import SERVICE, KServeGrpc
from farm.protocols.kserve.grpc.repeated import Known, RepeatedRequests
from farm.protocols.kserve.repository import Repository
from farm.protocols.kserve.request import Wish, WishedOutput
from farm.transports.threads import LocalTransport
from tests.support.coroutines import LIMIT_S
from tests.support.http2_bytes import GREETING, framed

TYPES = {"FP64": np.float64, "FP32": np.float32, "INT32": np.int32, "BOOL": np.bool_}


class Twice(Model):
    """Returns all numbers, so that the answer is as long as the input."""

    inputs = {"x": (-1,)}
    outputs = {"y": (-1,)}
    max_batch = 4

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return 2 * inputs["x"]


class Whole(Model):
    """Takes whole numbers, and truth values."""

    inputs = {"x": TensorInfo("x", (2, 2), "int32"), "b": TensorInfo("b", (2,), "bool")}
    outputs = {"y": TensorInfo("y", (2,), "int32"), "z": TensorInfo("z", (), "bool")}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return {"y": inputs["x"].sum(axis=0, dtype=np.int32), "z": inputs["b"].any()}


class Nothing(Model):
    """Takes and returns nothing."""

    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return {}


class Total(Model):
    """Fails for some numbers."""

    inputs = {"x": 4}
    outputs = {"y": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        if inputs["x"][0] == 3:
            raise ValueError("three")
        return inputs["x"].sum()


Make = Callable[[random.Random], Any]


def usual(numbers: random.Random) -> Any:
    """Return a request of other numbers each time."""
    message = messages()["inference.ModelInferRequest"](model_name="total")
    message.inputs.add(name="x", shape=[4], datatype="FP64")
    values = np.array([numbers.randrange(9) for _ in range(4)], float)
    message.raw_input_contents.append(values.tobytes())
    return message


def new_request(choose: random.Random) -> Make:
    """Return what makes requests that are alike but for their numbers, most of them right."""
    model = choose.choice([*["total", "twice", "whole"] * 4, "nobody", "nothing"])
    names = {"total": "x", "twice": "x", "whole": "xb", "nothing": ""}.get(model, "x")
    shapes = {
        "total": [*[[4], [1, 4]] * 3, [2, 4], [5], []],
        "twice": [[3], [5], [1, 3], [2, 3], [0]],
    }
    datatype = choose.choice(["FP64"] * 16 + ["FP32", "INT32", "BOOL", "BYTES"])
    inputs = []
    for name in names:
        shape = choose.choice(shapes.get(model, [[2, 2]] if name == "x" else [[2]]))
        own = {"whole x": "INT32", "whole b": "BOOL"}.get(f"{model} {name}", datatype)
        inputs.append((name, shape, own))
    choose.shuffle(inputs)
    is_raw = choose.random() < 0.8
    version = choose.choice([*["", "1"] * 5, "2"])
    request_id = choose.choice([*[""] * 6, "an id"])
    outputs = choose.choice([*[[], ["y"]] * 4, ["z", "y"]])
    parameter = choose.choice([*[""] * 6, "priority", "binary_data_output", "farm_config"])
    of_input = choose.choice([*[""] * 6, "content_type"])

    def make(numbers: random.Random) -> Any:
        message = messages()["inference.ModelInferRequest"](
            model_name=model, model_version=version, id=request_id
        )
        for name, shape, kind in inputs:
            tensor = message.inputs.add(name=name, shape=shape, datatype=kind)
            count = int(np.prod(shape))
            values = np.array([numbers.randrange(9) for _ in range(count)])
            if of_input:
                tensor.parameters[of_input].string_param = "np"
            if kind == "BYTES":
                parts = [b"%d" % value for value in values]
                if is_raw:
                    raw = b"".join(len(p).to_bytes(4, "little") + p for p in parts)
                    message.raw_input_contents.append(raw)
                else:
                    tensor.contents.bytes_contents.extend(parts)
            elif is_raw:
                message.raw_input_contents.append(values.astype(TYPES[kind]).tobytes())
            else:
                field = {"INT32": "int", "BOOL": "bool"}.get(kind, kind.lower())
                typed = values.astype(TYPES[kind]).tolist()
                getattr(tensor.contents, f"{field}_contents").extend(typed)
        for name in outputs:
            message.outputs.add(name=name)
        if parameter == "priority":
            message.parameters[parameter].int64_param = 1
        elif parameter == "binary_data_output":
            message.parameters[parameter].bool_param = True
        elif parameter:
            message.parameters[parameter].string_param = '{"a": 1}'
        return message

    return make


def mutated(body: bytes, choose: random.Random) -> bytes:
    """Return a body with a change that a hostile client may make."""
    at = choose.randrange(len(body) + 1)
    kind = choose.randrange(8)
    if kind == 0:
        return body[:at] + bytes([choose.randrange(256)]) + body[at + 1 :]
    if kind == 1:
        return body[:at] + body[at + 1 :]
    if kind == 2:
        return body[:at] + bytes([choose.randrange(256)]) + body[at:]
    if kind == 3:
        return body[:at]
    if kind == 4:
        return body + body  # its fields twice
    if kind == 5:
        return body[at:] + body[:at]
    if kind == 6:  # a field after the numbers, or one more tensor
        return body + choose.choice([b"\x1a\x02id", b"\x0a\x01m", b"\x3a\x01a", b"\x7b", b"\x78"])
    return body[:-32] + b"\x1a\x1e" + body[-30:]  # another field in the place of the numbers


def conversation(seed: int) -> list[tuple[bytes | str, int]]:
    """Return what a client sends, in parts, and how many requests that are by then.

    A text is a change of a model, made when all requests before it are answered.
    """
    choose, encoder, stream = random.Random(seed), Encoder(), 1
    makes = [usual, usual, *(new_request(choose) for _ in range(4))]
    more = (("grpc-timeout", "1H"), ("farm-priority", "3"), ("x-request-id", "a"))
    extra: list[list[tuple[str, str]]] = [*[[]] * 6, *([each] for each in more)]
    parts: list[tuple[bytes | str, int]] = [(GREETING, 0)]
    for turn in range(20):
        calm = turn < 2  # first, requests that are kept
        frames: list[list[bytes]] = []
        sent = b""
        for _ in range(choose.randrange(1, 5)):
            make = choose.choice(makes) if choose.random() < 0.85 else new_request(choose)
            make = usual if calm else make
            body = make(choose).SerializeToString()
            if choose.random() < 0.2 and not calm:
                body = mutated(body, choose)
            body = framed(body)
            if choose.random() < 0.05 and not calm:
                body = mutated(body, choose)
            authority = choose.choice(["localhost"] * 9 + ["127.0.0.1"])
            head = [
                *((":method", "POST"), (":scheme", "http"), (":authority", authority)),
                *((":path", f"/{SERVICE}/ModelInfer"), ("content-type", "application/grpc")),
                *choose.choice(extra),
            ]
            sent += frame(HEADERS, END_HEADERS, stream, encoder.encode(head))
            cuts = [choose.randrange(len(body) + 1)] if choose.random() < 0.3 else []
            pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
            if choose.random() < 0.1:
                pieces.append(b"")
            last = len(pieces) - 1
            frames.append(
                [frame(DATA, END_STREAM * (i == last), stream, p) for i, p in enumerate(pieces)]
            )
            stream += 2
            if choose.random() < 0.5:  # its data before the next headers
                sent += b"".join(frames.pop())
        while frames:
            sent += choose.choice(frames).pop(0)
            frames = [left for left in frames if left]
        parts.append((sent, stream // 2))
        if choose.random() < 0.2 and not calm:
            verb = choose.choice(["load", "load", "load", "unload", "describe"])
            parts.append((f"{verb} {choose.choice(['total', 'twice'])}", 0))
    return parts


class Forgetful(dict[Any, Any]):
    """Keeps nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


async def answers(seed: int, monkeypatch: pytest.MonkeyPatch, *, keeps: bool) -> dict[int, bytes]:
    """Return the frames that answer each stream of a conversation.

    keeps: whether the server keeps anything of earlier requests.
    """
    choose, answered, ended = random.Random(-seed), dict[int, bytes](), 0
    models = {"total": Total(), "twice": Twice(), "whole": Whole(), "nothing": Nothing()}
    dispatcher = Dispatcher([LocalTransport(models)])
    dialect = DIALECTS[("open", "triton")[seed % 2]]
    repository = Repository(dispatcher, dialect)
    with monkeypatch.context() as patch:
        if not keeps:
            patch.setattr(kept_heads, "LONGEST_KEPT", -1)
            patch.setattr(kept_requests, "LONGEST", 0)
            patch.setattr(Sending, "answer", lambda *about: False)
            patch.setattr(repository, "_found", Forgetful())
        dispatcher.start()
        await dispatcher.wait_for_workers(1, timeout_s=LIMIT_S)
        server = GrpcServer(KServeGrpc(Inference(dispatcher, repository)), Access(None))
        reader, writer = await asyncio.open_connection(*await server.start())
        try:
            for part, streams in conversation(seed):
                if isinstance(part, str):
                    change(part, repository, dispatcher)
                    continue
                for i in range(0, len(part), size := choose.choice([len(part), 7, 50])):
                    writer.write(part[i : i + size])
                    await asyncio.sleep(0)
                while ended < streams:
                    head = await asyncio.wait_for(reader.readexactly(9), LIMIT_S)
                    high, low, kind, flags, stream = HEAD.unpack(head)
                    frame = head + await reader.readexactly(high << 8 | low)
                    if stream:
                        answered[stream] = answered.get(stream, b"") + frame
                        ended += kind == HEADERS and bool(flags & END_STREAM)
        finally:
            writer.close()
            await server.stop(0.0)
            await dispatcher.close(grace_s=0.0)
    return answered


def change(what: str, repository: Repository, dispatcher: Dispatcher) -> None:
    """Load or unload a model, or describe it in another way."""
    verb, name = what.split()
    if verb == "load":
        repository.load(name, {})
    elif verb == "unload":
        repository.unload(name)
    else:
        models = cast(dict[str, ModelInfo], dispatcher.models())
        size = 5 if models[name].inputs[0].shape == (4,) else 4
        models[name] = replace(models[name], inputs=(TensorInfo("x", (size,)),))


USUAL = {1, 2, 10, 12, 13, 19, 21, 22}
"""Seeds of conversations in both dialects in which models are unloaded and described anew."""


@pytest.mark.parametrize(
    "seed",
    [pytest.param(s, marks=[] if s in USUAL else [pytest.mark.slow]) for s in range(24)],
)
async def test_a_server_that_keeps_requests_answers_as_one_that_keeps_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Known] = []
    ask = Known.prepared

    def counted(known: Known, body: bytes, hints: Hints) -> Prepared:
        made.append(known)
        return ask(known, body, hints)

    monkeypatch.setattr(Known, "prepared", counted)
    kept = await answers(seed, monkeypatch, keeps=True)
    assert made
    made.clear()
    assert kept == await answers(seed, monkeypatch, keeps=False)
    assert not made


def raw_request(*fields: bytes, numbers: bytes = bytes(32), shape: Sequence[int] = (4,)) -> bytes:
    """Return a request of these numbers, with fields of protobuf before them."""
    message = messages()["inference.ModelInferRequest"](model_name="m")
    message.inputs.add(name="x", datatype="FP64", shape=shape)
    end = messages()["inference.ModelInferRequest"](raw_input_contents=[numbers])
    return b"".join([message.SerializeToString(), *fields, end.SerializeToString()])


RAW = b"\x3a\x20" + bytes(32)
"""A field of raw contents."""


def test_the_numbers_are_found_at_the_end_of_a_message_alone() -> None:
    assert start_of_numbers(raw_request(), bytes(32)) == len(raw_request()) - 32
    assert start_of_numbers(raw_request(b"\x1a\x01i"), bytes(32))
    assert not start_of_numbers(raw_request() + b"\x1a\x01i", bytes(32))
    assert not start_of_numbers(raw_request(), bytes(31) + b"1")
    assert not start_of_numbers(raw_request(numbers=b""), b"")
    # The id ends in what looks like the field.
    head, request_id = raw_request(), b"\x1a\x22" + RAW
    assert decode_infer(head + request_id)[0].id == RAW.decode()
    assert not start_of_numbers(head + request_id, bytes(32))
    # The raw contents of another input come first.
    assert not start_of_numbers(raw_request(RAW), bytes(32))


INFO = ModelInfo("m", (TensorInfo("x", (4,)),), (TensorInfo("y", (1,)),))


def learned(kept: RepeatedRequests, body: bytes) -> Known | None:
    """Read a request and let it be kept."""
    request, _ = decode_infer(body)
    call = Call("m", Operation.EVALUATE, (request.inputs[0].array,))
    wish = Wish("m", request.id, [WishedOutput(0, "y", "FP64", False)])
    return kept.keep(body, request, INFO, Prepared(call, Hints(), wish))


def test_a_request_is_known_by_its_bytes_and_size() -> None:
    kept = RepeatedRequests()
    body = raw_request()
    assert kept.find(body) is None
    known = learned(kept, body)
    assert known is not None
    other = raw_request(numbers=np.arange(4.0).tobytes())
    assert kept.find(other) is known
    call, hints, wish = known.prepared(other, Hints("me"))
    assert np.array_equal(call.inputs[0], np.arange(4.0))
    assert (hints.client, wish.model, wish.lead) == ("me", "m", ())
    assert kept.find(other + b"1") is None
    assert kept.find(other.replace(b"FP64", b"FP32")) is None
    # The size is that of a second request, whose numbers begin where those of the first do.
    second = raw_request(numbers=bytes(40), shape=(5,))
    learned(kept, second)
    assert len(second) == len(body) + 8
    assert kept.find(body + bytes(8)) is None


PARAMETER = b"\x0a\x01p\x12\x02\x08\x01"


@pytest.mark.parametrize(
    "field",
    [
        b"\x1a\x01i",  # an id
        b"\x22\x07" + PARAMETER,
        b"\x32\x0c\x0a\x01y\x12\x07" + PARAMETER,  # an output with a parameter
    ],
)
def test_a_request_with_more_than_names_and_numbers_is_not_kept(field: bytes) -> None:
    kept = RepeatedRequests()
    assert learned(kept, raw_request()) is not None
    assert learned(kept, raw_request(field)) is None
    assert kept.find(raw_request(field)) is None


@pytest.mark.parametrize("kind", ["BOOL", "BYTES", "INT8", "parameter", "two"])
def test_inputs_whose_bytes_need_a_check_are_not_kept(kind: str) -> None:
    message = messages()["inference.ModelInferRequest"](model_name="m")
    datatype = kind if kind.isupper() else "INT8"
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[1])
    message.raw_input_contents.append(bytes(4 if kind == "BYTES" else 1))
    if kind == "parameter":
        tensor.parameters["p"].bool_param = True
    elif kind == "two":
        message.inputs.add(name="z", datatype="INT8", shape=[1])
        message.raw_input_contents.append(b"1")
    known = learned(RepeatedRequests(), message.SerializeToString())
    assert (known is not None) is (kind == "INT8")


def test_only_so_many_requests_are_kept() -> None:
    kept = RepeatedRequests()
    bodies = [raw_request(b"\x12\x04%04d" % i) for i in range(kept_requests.KNOWN + 1)]
    for body in bodies:
        learned(kept, body)
    assert [kept.find(body) is not None for body in bodies] == [*[False] * 256, True]
    assert learned(kept, raw_request(b"\x12\x80\x10" + b"1" * 2048)) is None


def test_an_answer_is_known_by_its_shape_and_type() -> None:
    known = learned(RepeatedRequests(), raw_request())
    assert known is not None
    first = Result((np.arange(2.0),))
    assert known.answer(first) is None
    known.keep(Result(()), b"")
    assert known.answer(Result(())) is None
    outputs = [WishedOutput(0, "y", "FP64", False)]

    def encoded(result: Result) -> bytes:
        return encode_infer(Wish("m", None, outputs), result, True)

    known.keep(Result(first.outputs, reused=True), b"?" + first.outputs[0].tobytes())
    known.keep(first, encoded(first))
    other = Result((np.arange(5.0, 7.0),))
    assert known.answer(other) == encoded(other)
    for changed in (
        Result(other.outputs, reused=True),
        Result((np.arange(3.0),)),
        Result((np.arange(2.0).reshape(1, 2),)),
        Result((np.arange(2),)),
        Result((np.arange(2.0), np.arange(2.0))),
        Result(()),
        Result((np.arange(2.0).astype(">f8"),)),
    ):
        assert known.answer(changed) is None
