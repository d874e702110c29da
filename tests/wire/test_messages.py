"""farm's own messages: round trips, and arbitrary bytes."""

from __future__ import annotations

import re
import struct
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from ml_dtypes import bfloat16

from farm.call import (
    LONGEST_NAME,
    Array,
    Buffer,
    Call,
    Derivative,
    Hints,
    ModelInfo,
    Operation,
    Origin,
    Result,
    TensorInfo,
    WorkerInfo,
    canonical_config,
)
from farm.errors import FarmError, InvalidOutput, InvalidRequest, LossCause, ModelFailed
from farm.sequences import LARGEST_ID, SequenceLimits, SequenceStep
from farm.wire import messages as wire
from farm.wire.arrays import INLINE_BYTES, arrays_of, wrt_of
from farm.wire.messages import (
    Kind,
    Loss,
    Message,
    decode_ended,
    encode_ended,
    hints_of_row,
    origin_of,
)

INFO = ModelInfo(
    "beam",
    inputs=(TensorInfo("E", (3,)), TensorInfo("load", (2, 2), "float32")),
    outputs=(TensorInfo("deflection", (31,)),),
    operations=frozenset({Operation.EVALUATE, Operation.GRADIENT}),
    max_batch=8,
    repeatable=False,
    description="a beam",
    copies=False,
)
WORKER = WorkerInfo("node3/4412-a1b2", (INFO,), 2, "node3", 4412, "gpu0", 1e9, {"site": "x"})

texts = st.text(st.characters(exclude_categories=["Cs"]))
dtypes = (
    st.sampled_from("?bhiqBHIQefdFD").flatmap(
        lambda code: st.sampled_from([np.dtype(f"<{code}"), np.dtype(f">{code}")])
    )
)  # fmt: skip
shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0)
arrays = (
    dtypes.flatmap(lambda dtype: npst.arrays(dtype, shapes))
    | npst.arrays(object, shapes, elements=st.binary(max_size=9))
    | npst.arrays(np.uint16, shapes).map(lambda array: array.view(bfloat16))
)
vectors = npst.arrays(np.float64, st.integers(0, 5))
derivatives = st.builds(
    Derivative,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.none() | vectors,
    st.none() | vectors,
)
calls = st.builds(
    Call,
    texts,
    st.sampled_from(Operation),
    st.lists(arrays, max_size=3).map(tuple),
    texts,
    st.none() | derivatives,
    st.none() | st.integers(1, 10),
)
names = texts.map(lambda text: text[:LONGEST_NAME])  # longer ones are cut
hints = st.none() | st.builds(
    Hints,
    names,
    st.integers(-5, 5),
    st.none() | st.floats(-1, 1e6, allow_nan=False),
    chain=st.none() | names,
)
seconds = st.floats(0, 1e6)
results = st.builds(
    Result,
    st.lists(arrays, max_size=3).map(tuple),
    seconds,
    st.none() | st.just(INFO),
    texts,
    seconds,
    seconds | st.just(-1.0),
    st.integers(1, 99),
    st.booleans(),
    copied=st.booleans(),
    reused=st.booleans(),
)
errors = st.builds(
    lambda kind, message, detail: kind(message, detail=detail),
    st.sampled_from(sorted(FarmError.kinds.values(), key=lambda kind: kind.__name__)),
    texts,
    texts,
)
ids = st.integers(0, 2**63)
json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | texts,
    lambda children: st.lists(children, max_size=5) | st.dictionaries(texts, children, max_size=3),
    max_leaves=20,
)

DECODERS: list[Callable[[Message], Any]] = [
    wire.decode_calls,
    wire.decode_answers,
    wire.decode_join,
    wire.decode_loss,
    wire.decode_ids,
]


def same(a: Array | None, b: Array | None) -> bool:
    if a is None or b is None:
        return a is b
    alike = a.dtype == b.dtype and a.shape == b.shape
    return alike and (a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes())


def check_calls(sent: Iterable[Call], arrived: Iterable[Call | InvalidRequest]) -> None:
    """Check that calls arrived as they were sent."""
    for expected, call in zip(sent, arrived, strict=True):
        assert isinstance(call, Call)
        assert plain(call) == plain(expected)
        arrays = zip(arrays_of(call), arrays_of(expected), strict=True)
        assert all(same(a, b) for a, b in arrays)


def arrived(*calls: Call) -> list[Call | InvalidRequest]:
    """Send calls in one message; return them as they arrive."""
    _, decoded = wire.decode_calls(received(wire.encode_calls(enumerate(calls))))
    assert [task_id for task_id, _ in decoded] == list(range(len(calls)))
    return [call for _, call in decoded]


def plain(call: Call) -> object:
    """Return what a call has beside its arrays."""
    return call.model, call.operation, call.config, call.rows, call.step, call.origin, wrt_of(call)


def received(frames: list[Buffer]) -> Message:
    """Return the message as it arrives: in other memory, large frames as views of it."""
    first, *large = (bytes(frame) for frame in frames)
    return wire.decode([first, *(memoryview(bytearray(frame)) for frame in large)])


def message(kind: int, data: object, version: int = wire.VERSION) -> bytes:
    text = orjson.dumps(data)
    return struct.pack("<BBHI", version, kind, 0, len(text)) + text


# Round trips


@given(st.dictionaries(ids, calls, max_size=4), hints)
def test_calls_come_back(tasks: dict[int, Call], said: Hints | None) -> None:
    heard, decoded = wire.decode_calls(received(wire.encode_calls(tasks.items(), said)))
    assert heard == said
    assert [task_id for task_id, _ in decoded] == list(tasks)
    check_calls(tasks.values(), [call for _, call in decoded])


numbers = st.floats(width=32) | st.integers(-5, 5).map(float)


@given(
    st.lists(
        st.builds(
            lambda model, config, dtype, shape, value: Call(
                model, Operation.EVALUATE, (np.full(shape, value, dtype), np.ones(2)), config
            ),
            st.sampled_from(["a", "b"]),
            st.sampled_from(["{}", '{"k":1}']),
            st.sampled_from(["<f8", ">f8", "<i2"]),
            st.sampled_from([(2,), (3, 1), (), (0,)]),
            st.integers(-5, 5),
        ),
        max_size=40,
    )
)
@example([Call("a", Operation.EVALUATE, (np.ones(n), np.ones(2))) for n in (1, 2, 2, 2, 2)])
def test_calls_that_are_alike_come_back_in_their_order(sent: list[Call]) -> None:
    sent = sorted(sent, key=lambda c: (c.model, c.config, c.inputs[0].dtype.str))  # long runs
    check_calls(sent, arrived(*sent))


@given(
    st.lists(
        st.builds(
            lambda shape, value, worker, s: Result((np.full(shape, value),), s, None, worker, s, s),
            st.sampled_from([(1,), (2, 2)]),
            numbers,
            st.sampled_from(["", "node1/1", "node2/2"]),
            seconds,
        )
        | errors,
        max_size=40,
    )
)
def test_answers_that_are_alike_come_back(sent: list[Result | FarmError]) -> None:
    sent = sorted(sent, key=lambda o: o.worker if isinstance(o, Result) else "z")
    check_answers(dict(enumerate(sent)))


def test_a_thousand_alike_calls_are_told_once() -> None:
    sent = [Call("forward", Operation.EVALUATE, (np.full(4, float(k)),)) for k in range(1000)]
    (frame,) = wire.encode_calls(enumerate(sent))
    assert len(frame) < 1000 * (4 * 8 + 5) + 100
    (answers,) = wire.encode_answers((k, Result(c.inputs, 0.5)) for k, c in enumerate(sent))
    assert len(answers) < 1000 * (4 * 8 + 30) + 100


def test_large_arrays_are_no_group() -> None:
    sent = [Call("m", Operation.EVALUATE, (np.full(10_000, float(k)),)) for k in range(6)]
    assert len(wire.encode_calls(enumerate(sent))) == 7
    check_calls(sent, arrived(*sent))


@given(st.dictionaries(ids, results | errors, max_size=4))
def test_answers_come_back(answers: dict[int, Result | FarmError]) -> None:
    check_answers(answers)


def check_answers(answers: Mapping[int, Result | FarmError]) -> None:
    """Check that answers arrive as they were sent."""
    decoded = dict(wire.decode_answers(received(wire.encode_answers(answers.items()))))
    assert decoded.keys() == answers.keys()
    for task_id, outcome in decoded.items():
        sent = answers[task_id]
        assert type(outcome) is type(sent)
        if isinstance(outcome, FarmError):
            assert isinstance(sent, FarmError)
            assert (outcome.message, outcome.detail) == (sent.message, sent.detail)
            continue
        assert isinstance(sent, Result)
        assert all(map(same, outcome.outputs, sent.outputs))
        assert len(outcome.outputs) == len(sent.outputs)
        assert (outcome.run_time_s, outcome.idle_s) == (sent.run_time_s, sent.idle_s)
        assert (outcome.batch_rows, outcome.more) == (sent.batch_rows, sent.more)
        assert (outcome.copied, outcome.reused) == (sent.copied, sent.reused)
        if sent.info is not None or sent.worker:
            for name in ("info", "worker", "queue_time_s"):
                assert getattr(outcome, name) == getattr(sent, name)


def test_join_comes_back() -> None:
    assert wire.decode_join(received(wire.encode_join("a1", WORKER))) == ("a1", WORKER)


@pytest.mark.parametrize("running", [None, [], [7, 2**63]])
def test_loss_comes_back(running: list[int] | None) -> None:
    for row, cause in product((None, 0, 41), LossCause):
        loss = Loss("node3/4412-a1b2", "signal SIGKILL", running, cause, row, "last line")
        assert wire.decode_loss(received(wire.encode_loss(loss))) == loss


def test_supervisor_may_say_only_that_it_is_there() -> None:
    assert wire.decode_loss(received(wire.encode(Kind.LOST))) is None


@pytest.mark.parametrize("rows", [0, 3])
def test_results_of_a_run_tell_how_the_next_row_failed(rows: int) -> None:
    outputs = (np.arange(6.0)[: 2 * rows].reshape(-1, 2),) if rows else ()
    sent = Result(outputs, 0.5, failed=ModelFailed("diverged", detail="line 3"))
    others = [(k, Result((np.ones(2),), 0.5)) for k in range(2, 9)]
    answers = dict(wire.decode_answers(received(wire.encode_answers([(1, sent), *others]))))
    got = answers[1]
    assert isinstance(got, Result)
    assert got.rows_done(9) == rows
    assert isinstance(got.failed, ModelFailed)
    assert (got.failed.message, got.failed.detail) == ("diverged", "line 3")
    rest = [answers[k] for k in range(2, 9)]
    assert all(isinstance(other, Result) and other.failed is None for other in rest)


def test_results_without_a_copy_have_the_fields_that_earlier_releases_read() -> None:
    message = received(wire.encode_answers([(1, Result((np.ones(2),), 0.5, worker="w"))]))
    ((row,), _) = message.data
    assert len(row) == 10


def test_text_of_an_error_that_is_no_unicode_comes_back_readable() -> None:
    (answer,) = wire.decode_answers(
        received(wire.encode_answers([(1, ModelFailed("\ud800 is wrong"))]))
    )
    assert isinstance(answer[1], ModelFailed)
    assert answer[1].message == "? is wrong"


# Arrays


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<c16", "|b1", "<f2"])
@pytest.mark.parametrize("shape", [(50_000,), (500, 100)])
def test_large_arrays_are_frames_of_their_own_and_not_copied(
    dtype: str, shape: tuple[int, ...]
) -> None:
    array = np.arange(50_000).astype(dtype).reshape(shape)
    frames = wire.encode_calls([(1, Call("m", Operation.EVALUATE, (array,)))])
    assert len(frames) == 2
    assert np.shares_memory(np.frombuffer(frames[1], np.uint8), array)
    assert len(frames[0]) < 200
    _, [(_, call)] = wire.decode_calls(wire.decode(frames))
    assert isinstance(call, Call)
    assert np.shares_memory(call.inputs[0], array)
    assert same(call.inputs[0], array)


def test_arrays_that_are_not_contiguous_arrive_right() -> None:
    wide = np.arange(100_000.0).reshape(2, -1)
    array = wide[:, ::2]
    assert array.nbytes > INLINE_BYTES
    calls = [Call("m", Operation.EVALUATE, (part,)) for part in (array, array[:, :10])]
    check_calls(calls, arrived(*calls))


def test_results_may_be_written_to_and_share_nothing() -> None:
    big = np.zeros(10_000)
    sent = [(i, Result((np.zeros(3), big))) for i in range(2)]
    outcomes = [o for _, o in wire.decode_answers(received(wire.encode_answers(sent)))]
    arrays = [array for o in outcomes if isinstance(o, Result) for array in o.outputs]
    for i, array in enumerate(arrays):
        array[:] = i
    assert [array[0] for array in arrays] == [0, 1, 2, 3]
    assert [array[-1] for array in arrays] == [0, 1, 2, 3]
    assert not big.any()


def test_inputs_of_a_call_are_for_reading() -> None:
    (call,) = arrived(Call("m", Operation.EVALUATE, (np.zeros(3),)))
    assert isinstance(call, Call)
    with pytest.raises(ValueError, match="read-only"):
        call.inputs[0][0] = 1.0


OBJECTS = np.array([None, "a"])


@pytest.mark.parametrize(
    "array", [OBJECTS, np.array(["a"]), np.zeros(2, "M8[s]"), np.zeros(1, "f8,f8")]
)
def test_what_is_no_number_is_refused_before_it_is_sent(array: Array) -> None:
    with pytest.raises(TypeError, match="are not supported"):
        wire.encode_calls([(1, Call("m", Operation.EVALUATE, (array,)))])


def test_config_that_is_no_unicode_is_refused_before_it_is_sent() -> None:
    with pytest.raises(TypeError):
        wire.encode_calls([(1, Call("m", Operation.EVALUATE, (), "\ud800"))])


# The document


def test_document_lists_every_kind() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "messages.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", text, re.MULTILINE)
    assert rows == [(str(kind.value), kind.name) for kind in Kind]
    assert f"version {wire.VERSION}" in text.splitlines()[0]


# Arbitrary bytes


def decode_all(frames: list[Buffer]) -> None:
    """Decode in every possible way: returns a value or raises InvalidRequest, nothing else."""
    try:
        decoded = wire.decode(frames)
    except InvalidRequest:
        return
    for decoder in DECODERS:
        complaint = ""
        try:
            decoder(decoded)
        except InvalidRequest as error:
            complaint = error.message
        assert len(complaint) < 400  # short enough for a log


@given(st.lists(st.binary(max_size=100), max_size=3))
def test_any_bytes_give_a_value_or_invalid_request(frames: list[Buffer]) -> None:
    decode_all(frames)


@given(st.integers(0, 255), json_data, st.lists(st.binary(max_size=40), max_size=2))
def test_any_data_gives_a_value_or_invalid_request(
    kind: int, data: object, frames: list[Buffer]
) -> None:
    decode_all([message(kind, data), *frames])


VALID = [
    wire.encode_calls(
        [
            (1, Call("m", Operation.EVALUATE, (np.ones(3), np.ones(5000)))),
            (
                2,
                Call(
                    "m",
                    Operation.APPLY_HESSIAN,
                    (np.ones((1, 2)),),
                    '{"a":1}',
                    Derivative(0, 1, 0, np.ones(2), np.ones(3)),
                    1,
                ),
            ),
        ],
        Hints("me", 1, 5.0),
    ),
    wire.encode_answers(
        [(1, Result((np.ones(3),), 0.1, INFO, "w", 0.2)), (2, ModelFailed("no", detail="why"))]
    ),
    wire.encode_calls((i, Call("m", Operation.EVALUATE, (np.ones(3),))) for i in range(5)),
    wire.encode_answers((i, Result((np.ones(3),), 0.1, None, "w", 0.2)) for i in range(5)),
    wire.encode_join("a1", WORKER),
    wire.encode_loss(Loss("w", "died", [1])),
    wire.encode(Kind.CANCEL, [1, 2]),
]


@pytest.mark.parametrize("frames", VALID, ids=lambda frames: Kind(frames[0][1]).name)
def test_truncated_at_every_point(frames: list[Buffer]) -> None:
    first, *large = frames
    for n in range(len(first)):
        decode_all([first[:n], *large])
        decode_all([first[:n]])


@given(st.sampled_from(VALID), st.data())
def test_any_value_in_any_place(frames: list[Buffer], data: st.DataObject) -> None:
    """Replace one value of a well-formed message by anything."""
    first = bytes(frames[0])
    length = struct.unpack_from("<I", first, 4)[0]
    content = orjson.loads(first[8 : 8 + length])
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items: Any = []
        if isinstance(node, list):
            items = enumerate(node)
        elif isinstance(node, dict):
            items = node.items()
        for key, child in list(items):
            places.append((node, key))
            walk(child)

    walk(content)
    node, key = data.draw(st.sampled_from(places))
    node[key] = data.draw(json_data)
    decode_all([message(first[1], content) + bytes(200), *frames[1:]])


def test_other_versions_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="wire version 1; this farm speaks 2"):
        wire.decode([message(Kind.PROBE, None, version=1)])


def call_row(*arrays: Any) -> list[Any]:
    return [1, "m", "evaluate", list(arrays)]


HOSTILE = {
    "huge": ["<f8", [10**18], 0],
    "huge product": ["<f8", [2**62] * 32, 0],
    "deep": ["<f8", [10**18] * 100_000, 0],
    "negative": ["<f8", [-1], 0],
    "negative product": ["<f8", [-2, -3], 0],
    "unknown side": ["<f8", [-1, 2], 0],
    "fraction": ["<f8", [1.5], 0],
    "text": ["<f8", ["3"], 0],
    "far": ["<f8", [1], 2**62],
    "farther": ["<f8", [1], 2**64 - 1],
    "no frame": ["<f8", [1], -9],
    "wrong frame": ["<f8", [3], -1],
    "no offset": ["<f8", [1], None],
    "object": ["|O", [1], 0],
    "text array": ["<U1000000000", [1], 0],
    "structure": ["f8," * 10_000, [1], 0],
    "no type": [["<f8"], [1], 0],
    "empty, huge": ["<f8", [0, 2**62, 2**62], 0],
    "nothing": [],
}


def read_calls(data: object) -> list[Call | InvalidRequest]:
    """Return the calls of a message with two good frames, which must be read in little memory."""
    first = message(Kind.CALLS, [None, data])
    frames: list[Buffer] = [first + bytes(-len(first) % 8 + 32), memoryview(bytes(16))]
    decoded = wire.decode(frames)
    tracemalloc.start()
    _, calls = wire.decode_calls(decoded)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert [task_id for task_id, _ in calls] == list(range(1, 1 + len(calls)))
    return [call for _, call in calls]


@pytest.mark.parametrize("where", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_array_costs_nothing_and_is_answered(where: Any) -> None:
    good = ["<f8", [2], 0]
    hostile, fine = read_calls([call_row(where), [2, "m", "evaluate", [good]]])
    assert isinstance(hostile, InvalidRequest)
    assert "malformed call" in hostile.message
    assert isinstance(fine, Call)


@pytest.mark.parametrize("where", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_group_costs_nothing_and_is_answered(where: Any) -> None:
    good = ["<f8", [2], 0]
    groups = [[[1, 2], "m", "evaluate", [good, where], "{}"], [[3], "m", "evaluate", [good], "{}"]]
    assert [type(call) for call in read_calls(groups)] == [InvalidRequest, InvalidRequest, Call]
    times = [[0.1, 0.1], [-1.0, -1.0], "w", [0.0, 0.0], 1]
    assert kinds_of_answers([[1, 2], [where], *times]) == [InvalidOutput, InvalidOutput]


def kinds_of_answers(group: object) -> list[type]:
    first = message(Kind.ANSWERS, [[group], []])
    answers = wire.decode_answers(wire.decode([first + bytes(-len(first) % 8 + 32)]))
    return [type(outcome) for _, outcome in answers]


@pytest.mark.parametrize(
    ("run_times_s", "idle_s", "queue_times_s"),
    [
        ([0.1], [0.0, 0.0], [0.0, 0.0]),
        ([0.1, -0.1], [0.0, 0.0], [0.0, 0.0]),
        ([0.1, 0.1], [-2.0, 0.0], [0.0, 0.0]),
        ([0.1, 1e300], [0.0, 0.0], [0.0, 0.0]),
        ([0.1, 0.1], [0.0, 0.0], ["a", "b"]),
        ([0.1, 0.1], [0.0, 0.0], None),
        ([], [], []),
    ],
)
def test_times_of_a_group_have_to_be_times(
    run_times_s: Any, idle_s: Any, queue_times_s: Any
) -> None:
    group = [[1, 2], [["<f8", [1], 0]], run_times_s, idle_s, "w", queue_times_s, 1]
    assert kinds_of_answers(group) == [InvalidOutput, InvalidOutput]


def test_hostile_answer_is_an_answer_too() -> None:
    rows = [
        [1, [["<f8", [10**18], 0]], 0.1, -1.0, 0.0],
        [2, [], 0.1, -1.0, 0.0],
        [3, [], "fast", -1.0, 0.0],
        [4, [], 0.1, -1.0, -0.5],
    ]
    answers = dict(wire.decode_answers(wire.decode([message(Kind.ANSWERS, [rows, []])])))
    assert isinstance(answers[1], InvalidOutput)
    assert isinstance(answers[2], Result)
    assert isinstance(answers[3], InvalidOutput)
    assert isinstance(answers[4], InvalidOutput)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("errors", [None, False, 0])
def test_answers_without_a_list_of_errors_are_malformed(count: int, errors: object) -> None:
    rows = [[number, [], 0.1, -1.0, 0.0] for number in range(count)]
    with pytest.raises(InvalidRequest, match="malformed ANSWERS message"):
        wire.decode_answers(wire.decode([message(Kind.ANSWERS, [rows, errors])]))


def test_unknown_error_is_a_failure_of_the_model() -> None:
    data = [[], [[1, "NewError", "something new", ""]]]
    ((_, error),) = wire.decode_answers(wire.decode([message(Kind.ANSWERS, data)]))
    assert isinstance(error, ModelFailed)
    assert "NewError: something new" in error.message


def test_canonical_configs_always_travel() -> None:
    call = Call("m", Operation.EVALUATE, (), canonical_config({"name": "\ud800"}))
    check_calls([call], arrived(call))


def test_an_answer_that_cannot_be_sent_becomes_an_error_and_shifts_no_other() -> None:
    """It leaves no frame behind that others would be read from."""
    big, other = np.full(5000, 1.0), np.full(5000, 2.0)
    frames = wire.encode_answers([(1, Result((big, OBJECTS))), (2, Result((other,)))])
    answers = dict(wire.decode_answers(received(frames)))
    refused, outcome = answers[1], answers[2]
    assert isinstance(outcome, Result)
    assert same(outcome.outputs[0], other)
    assert isinstance(refused, InvalidOutput)
    assert "object" in refused.message


@pytest.mark.parametrize("operation", [Operation.EVALUATE, Operation.GRADIENT])
def test_calls_arrive_with_their_origins(operation: Operation) -> None:
    """Also among similar calls, which share a group if they have none."""
    derivative = Derivative(0, 0, sens=np.ones(1)) if operation is Operation.GRADIENT else None
    origins = [None] * 5 + [Origin("a-1", "anna"), Origin("a-2")] + [None] * 5
    calls = [
        Call("beam", operation, (np.full(3, float(n)),), derivative=derivative, origin=origin)
        for n, origin in enumerate(origins)
    ]
    check_calls(calls, arrived(*calls))


def test_the_parent_span_of_a_call_stays_in_the_front_door() -> None:
    """A worker has no use for it."""
    call = Call("beam", Operation.EVALUATE, origin=Origin("a-1", "anna", "00-1-2-01"))
    check_calls([replace(call, origin=Origin("a-1", "anna"))], arrived(call))


def test_a_malformed_origin_fails_its_call_alone() -> None:
    good = Call("beam", Operation.EVALUATE, (np.ones(3),), origin=Origin("a-1"))
    bad = Call("beam", Operation.EVALUATE, (np.ones(3),), origin=Origin("a\n1"))
    assert [type(call) for call in arrived(bad, good)] == [InvalidRequest, Call]


@pytest.mark.parametrize(
    ("client", "chain", "shown_as"),
    [
        ("", None, None),
        ("", "", None),
        ("me", None, ("me", None)),
        ("me", "", ("me", "")),
        ("", "chain 7", ("", "chain 7")),
        ("c" * 1000, "x" * 1000, ("c" * LONGEST_NAME, "x" * LONGEST_NAME)),
    ],
)
def test_calls_that_give_a_name_are_shown_under_it(
    client: str, chain: str | None, shown_as: tuple[str, str | None] | None
) -> None:
    hints = hints_of_row("", *[client, 0, None, chain])
    assert hints.shown_as == shown_as
    assert (hints.client, hints.chain) == (shown_as or ("", chain))


@pytest.mark.parametrize(
    "row",
    [
        [1, 0, None, None],
        ["me", 0.5, None, None],
        ["me", True, None, None],
        ["me", 1001, None, None],
        ["me", 0, "soon", None],
        ["me", 0, float("nan"), None],
        ["me", 0, 1e12, None],
        ["me", 0, None, 7],
        ["me", 0, None],
        ["me", 0, None, "x", 1],
    ],
)
def test_anything_else_is_an_error(row: list[Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        hints_of_row("", *row)


def test_a_row_that_only_equals_an_earlier_one_is_an_error() -> None:
    assert hints_of_row("", "me", 1, None, None).priority == 1
    for priority in (True, 1.0):
        with pytest.raises(TypeError):
            hints_of_row("", "me", priority, None, None)


def test_the_sender_names_a_client_without_a_name() -> None:
    for client, name in (("", "host"), ("me", "me")):
        hints = hints_of_row("host", client, 0, None, None)
        assert (hints.client, hints.patient) == (name, True)
        assert hints.shown_as == ((client, None) if client else None)


def test_an_origin_arrives_as_it_was() -> None:
    assert origin_of(["a-1", "anna"]) == Origin("a-1", "anna")
    assert origin_of(["a-1", "c" * 1000]).client == "c" * LONGEST_NAME


@pytest.mark.parametrize(
    "row",
    [
        ["", "c"],
        ["a b", "c"],
        ["x" * 129, "c"],
        ["a", None],
        [1, "c"],
        [None, "c"],
        ["a"],
        "",
        None,
    ],
)
def test_other_values_are_no_origins(row: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        origin_of(row)


CALL = Call("m", Operation.EVALUATE, (np.ones(2),), step=SequenceStep(7, start=True))


def test_ended_sequences_come_back() -> None:
    ended: list[tuple[str, int | str]] = [("m", 7), ("n", "x"), ("m", LARGEST_ID)]
    assert decode_ended(wire.decode(encode_ended(ended))) == ended


@pytest.mark.parametrize("data", [None, 7, [7], [["m"]], [["m", 0]], [[1, 7]], [["m", 7, 8]]])
def test_malformed_message_is_refused(data: Any) -> None:
    message = wire.decode(wire.encode(Kind.END_SEQUENCES, data))
    with pytest.raises(InvalidRequest, match="malformed END_SEQUENCES message"):
        decode_ended(message)


@pytest.mark.parametrize(
    "step", [SequenceStep(7, start=True), SequenceStep("x", end=True), SequenceStep(LARGEST_ID)]
)
@pytest.mark.parametrize("origin", [None, Origin("id-1", "me")])
@pytest.mark.parametrize("config", ["{}", '{"a":1}'])
def test_steps_come_back(step: SequenceStep, origin: Origin | None, config: str) -> None:
    call = replace(CALL, step=step, origin=origin, config=config)
    check_calls([call], arrived(call))


def test_many_steps_are_in_no_group() -> None:
    """Their ids differ, which a group has no place for; those around them are a group."""
    plain = replace(CALL, step=None)
    calls = [plain if i % 10 else replace(CALL, step=SequenceStep(i + 1)) for i in range(40)]
    check_calls(calls, arrived(*calls))


@pytest.mark.parametrize("step", [[7], [0, True, False], [7, 1, 0], ["x" * 129, True, True], "x"])
def test_malformed_step_is_an_error_of_its_call(step: Any) -> None:
    row = [1, "m", "evaluate", [], "{}", None, None, step]
    ((_, found),) = wire.decode_calls(wire.decode(wire.encode(Kind.CALLS, [None, [row]])))[1]
    assert isinstance(found, InvalidRequest)


def test_limits_of_a_model_come_back_and_others_have_no_such_key() -> None:
    info = ModelInfo("m", (TensorInfo("x", ()),), ())
    assert "sequences" not in info.to_json()
    stateful = replace(info, sequences=SequenceLimits(2, 3.0))
    assert ModelInfo.from_json(stateful.to_json()) == stateful
    with pytest.raises(ValueError, match="sequences a worker"):
        ModelInfo.from_json({**info.to_json(), "sequences": [0, 1.0]})
