"""KServe requests as calls: names, types, ranks, outputs, parameters, errors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Hints, ModelInfo, Operation, TensorInfo
from farm.encoding.json_numbers import MOST_CONFIG
from farm.errors import FarmError, InvalidInput, ModelNotFound, UnsupportedFeature
from farm.model import check_call
from farm.protocols.kserve.request import (
    ERRORS,
    InferInput,
    InferRequest,
    RequestedOutput,
    WishedOutput,
    call_of,
    check_version,
    config_of,
    hints_of_parameters,
    refuse_shared_memory,
    without_axis,
)
from farm.protocols.kserve.tensors import DATATYPES
from farm.sequences import SequenceLimits, SequenceStep

TWO = ModelInfo(
    "two",
    inputs=(TensorInfo("a", (3,)), TensorInfo("b", (2, 2), "int32")),
    outputs=(TensorInfo("y", (3,)), TensorInfo("z", (), "bool")),
)
OPEN = ModelInfo("open", (TensorInfo("x", (-1, 2)),), (TensorInfo("y", (-1,)),))
SCALAR = ModelInfo("scalar", (TensorInfo("x", ()),), (TensorInfo("y", ()),))
EMPTY = ModelInfo("empty", (), (TensorInfo("y", (1,)),))


def tensor(name: str, shape: tuple[int, ...], datatype: str = "FP64") -> InferInput:
    return InferInput(name, datatype, shape, np.zeros(shape, DATATYPES[datatype]))


def asked(*inputs: InferInput, **rest: Any) -> InferRequest:
    return InferRequest("two", inputs, **rest)


A, B = tensor("a", (3,)), tensor("b", (2, 2), "INT32")
AS, BS = tensor("a", (5, 3)), tensor("b", (5, 2, 2), "INT32")


def test_rank_decides_between_one_evaluation_and_a_batch() -> None:
    call, _ = call_of(asked(A, B), TWO)
    assert (call.model, call.operation, call.rows) == ("two", Operation.EVALUATE, None)
    call, _ = call_of(asked(AS, BS), TWO)
    assert call.rows == 5
    assert [x.shape for x in call.inputs] == [(5, 3), (5, 2, 2)]


def test_a_row_alone_needs_no_axis() -> None:
    texts = np.array([b"a"], object)
    info = ModelInfo("m", (TensorInfo("a", (3,)), TensorInfo("t", (), "bytes")), ())
    request = asked(tensor("a", (1, 3)), InferInput("t", "BYTES", (1,), texts))
    call, _ = call_of(request, info)
    assert call.rows == 1
    row = without_axis(call)
    assert (row.model, row.operation, row.rows) == ("m", Operation.EVALUATE, None)
    assert [x.shape for x in row.inputs] == [(3,), ()]
    assert row.inputs[1].item() == b"a"


def test_inputs_are_found_by_name() -> None:
    call, _ = call_of(asked(B, A), TWO)
    assert call.inputs[0] is A.array
    assert call.inputs[1] is B.array


def test_open_sizes_and_scalars() -> None:
    assert call_of(asked(tensor("x", (7, 2))), OPEN)[0].rows is None
    assert call_of(asked(tensor("x", (3, 7, 2))), OPEN)[0].rows == 3
    assert call_of(asked(tensor("x", ())), SCALAR)[0].rows is None
    assert call_of(asked(tensor("x", (4,))), SCALAR)[0].rows == 4
    assert call_of(asked(), EMPTY)[0].rows is None


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([A], "input 'b' is missing; model 'two' expects the inputs ['a', 'b']"),
        ([A, B, tensor("c", (1,))], "there is no input 'c'"),
        ([A, tensor("c", (1,))], "there is no input 'c'"),
        ([A, A], "input 'a' is given more than once"),
        ([A, B, A], "input 'a' is given more than once"),
        ([], "input 'a' is missing"),
        ([A, tensor("b", (2, 2), "INT64")], "'b' has datatype INT64; model 'two' expects INT32"),
        ([tensor("a", (4,)), B], "'a' has shape [4]; model 'two' expects [3], or [-1, 3] for a"),
        ([tensor("a", (5, 4)), BS], "'a' has shape [5, 4]"),
        ([tensor("a", (5, 5, 3)), BS], "'a' has shape [5, 5, 3]"),
        ([tensor("a", ()), B], "'a' has shape []"),
        ([A, tensor("b", (4,), "INT32")], "'b' has shape [4]"),
        ([AS, B], "the inputs have the shapes 'a' [5, 3], 'b' [2, 2]; expected a batch axis"),
        ([AS, tensor("b", (4, 2, 2), "INT32")], "expected a batch axis of the same size"),
        ([tensor("a", (0, 3)), tensor("b", (0, 2, 2), "INT32")], "the inputs hold no values"),
    ],
)
def test_inputs_that_do_not_fit(inputs: list[InferInput], text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        call_of(asked(*inputs), TWO)
    assert text in caught.value.message


@pytest.mark.parametrize("shape", [(1, 0), (3, 0)])
def test_rows_without_entries_fit_a_size_that_varies(shape: tuple[int, ...]) -> None:
    info = ModelInfo(
        "m", (TensorInfo("x", (-1,)),), (TensorInfo("y", (-1,)),), frozenset({Operation.EVALUATE})
    )
    call, _ = call_of(asked(tensor("x", shape)), info)
    assert call.rows == shape[0]
    assert call.inputs[0].shape == shape
    check_call(call, info)


@pytest.mark.parametrize("name", ["sequence_id", "sequence_start", "sequence_end"])
def test_sequences_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedFeature, match=f"parameter {name} is .*sequences"):
        call_of(asked(A, B, parameters={name: True if name != "sequence_id" else 7}), TWO)
    with pytest.raises(UnsupportedFeature, match=f"parameter {name} is "):
        call_of(asked(A, B, parameters={name: "a"}), TWO)
    for none in (0, "", False):
        call_of(asked(A, B, parameters={name: none}), TWO)


def test_a_million_million_rows_of_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the inputs hold no values"):
        call_of(asked(tensor("x", (10**12, 0, 2))), OPEN)


def test_the_outputs_wished_for() -> None:
    y, z = WishedOutput(0, "y", "FP64", False), WishedOutput(1, "z", "BOOL", False)
    _, wish = call_of(asked(A, B, id="é"), TWO)
    assert (wish.model, wish.id, list(wish.outputs)) == ("two", "é", [y, z])
    _, wish = call_of(asked(A, B, outputs=[RequestedOutput("z"), RequestedOutput("y")]), TWO)
    assert list(wish.outputs) == [z, y]
    _, wish = call_of(asked(A, B, parameters={"binary_data_output": True}), TWO)
    assert [output.binary for output in wish.outputs] == [True, True]
    some = [RequestedOutput("z", {"binary_data": False}), RequestedOutput("y")]
    _, wish = call_of(asked(A, B, parameters={"binary_data_output": True}, outputs=some), TWO)
    assert [output.binary for output in wish.outputs] == [False, True]
    _, wish = call_of(asked(A, B, outputs=[RequestedOutput("y", {"binary_data": True})]), TWO)
    assert [output.binary for output in wish.outputs] == [True]


@pytest.mark.parametrize(
    ("outputs", "parameters", "kind", "text"),
    [
        (["q"], {}, InvalidInput, "there is no output 'q'; model 'two' has the outputs"),
        (["y", "y"], {}, InvalidInput, "output 'y' is asked for more than once"),
        (["y"], {"binary_data": 1}, InvalidInput, "parameter binary_data is 1; expected true or"),
        (["y"], {"classification": 3}, UnsupportedFeature, "classification"),
        (["y"], {"shared_memory_region": "r"}, UnsupportedFeature, "shared memory"),
    ],
)
def test_outputs_that_there_are_none_of(
    outputs: list[str], parameters: dict[str, Any], kind: type[FarmError], text: str
) -> None:
    wanted = [RequestedOutput(name, parameters) for name in outputs]
    with pytest.raises(kind, match=text):
        call_of(asked(A, B, outputs=wanted), TWO)


def test_parameters_that_nobody_knows_are_accepted() -> None:
    parameters = {"content_type": "np", "triton_x": 7, "x": {"deep": [1]}, "y": None}
    call, _ = call_of(asked(A, B, parameters=parameters), TWO)
    assert call.config == "{}"


def test_models_that_cannot_be_asked() -> None:
    no_evaluate = ModelInfo("two", TWO.inputs, TWO.outputs, frozenset({Operation.GRADIENT}))
    with pytest.raises(UnsupportedFeature, match="does not offer inference"):
        call_of(asked(A, B), no_evaluate)
    complex_numbers = ModelInfo("c", (TensorInfo("x", (1,), "complex128"),), ())
    with pytest.raises(UnsupportedFeature, match="no datatype for tensors of complex128"):
        call_of(asked(tensor("x", (1,))), complex_numbers)


def test_models_that_stream() -> None:
    stream, evaluate = Operation.STREAM, Operation.EVALUATE
    only = ModelInfo("two", TWO.inputs, TWO.outputs, frozenset({stream}))
    both = ModelInfo("two", TWO.inputs, TWO.outputs, frozenset({stream, evaluate}))
    assert call_of(asked(A, B), only, streaming=True)[0].operation is stream
    assert call_of(asked(A, B), both, streaming=True)[0].operation is stream
    assert call_of(asked(A, B), both)[0].operation is evaluate
    assert call_of(asked(A, B), TWO, streaming=True)[0].operation is evaluate
    with pytest.raises(UnsupportedFeature, match="several answers to one request"):
        call_of(asked(A, B), only)


def test_the_config_is_a_parameter() -> None:
    parameters = {"farm_config": '{"b": 2, "a": [1]}'}
    assert config_of(parameters) == '{"a":[1],"b":2}'
    assert call_of(asked(A, B, parameters=parameters), TWO)[0].config == '{"a":[1],"b":2}'
    for wrong in ("[1]", "{", {"a": 1}, 3, "[" * 100_000):
        with pytest.raises(InvalidInput, match="parameter farm_config is not a JSON object"):
            config_of({"farm_config": wrong})


HINTS = Hints(client="ann", priority=5, deadline_s=2.0)


@pytest.mark.parametrize(
    ("parameters", "priority", "start_within_s"),
    [
        ({}, 5, None),
        ({"priority": 0, "timeout": 0}, 5, None),
        ({"priority": 1}, 99, None),
        ({"priority": 100}, 0, None),
        ({"priority": 2**64 - 1}, -100, None),
        ({"timeout": 1_500_000}, 5, 1.5),
    ],
)
def test_priority_and_timeout(
    parameters: dict[str, int], priority: int, start_within_s: float | None
) -> None:
    hints = hints_of_parameters(parameters, HINTS)
    assert hints == replace(HINTS, priority=priority, start_within_s=start_within_s)


def test_urgent_goes_before_less_urgent() -> None:
    levels = [hints_of_parameters({"priority": p}, Hints()).priority for p in (1, 2, 0, 150, 200)]
    assert levels == sorted(levels, reverse=True)
    assert len(set(levels)) == 5
    assert hints_of_parameters({"timeout": 1}, Hints()).start_within_s == 1e-6


@pytest.mark.parametrize("key", ["priority", "timeout"])
@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, [1], 2**64])
def test_priority_and_timeout_are_whole_numbers(key: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"parameter {key} is .*; expected a whole number"):
        hints_of_parameters({key: value}, Hints())


def test_shared_memory_is_refused() -> None:
    refuse_shared_memory({"binary_data_size": 3})
    with pytest.raises(UnsupportedFeature, match="shared memory is not offered here"):
        refuse_shared_memory({"shared_memory_region": "r"})


def test_there_is_one_version() -> None:
    check_version("m", "")
    check_version("m", "1")
    for version in ("2", "0", "one", "01"):
        with pytest.raises(ModelNotFound, match="model 'm' has no version"):
            check_version("m", version)


def test_every_error_has_its_status() -> None:
    assert set(ERRORS) == set(FarmError.kinds.values())
    assert all(400 <= status < 600 for status in ERRORS.values())
    assert {ERRORS[kind] for kind in (InvalidInput, ModelNotFound)} == {400, 404}


def test_a_config_may_have_a_million_characters() -> None:
    longest = '{"a":"' + "x" * (MOST_CONFIG - 8) + '"}'
    assert config_of({"farm_config": longest}) == longest
    with pytest.raises(InvalidInput, match=f"expected {MOST_CONFIG} at most"):
        config_of({"farm_config": longest + " "})


# Sequences


STATEFUL = replace(TWO, max_batch=1, sequences=SequenceLimits(2, 3.0))


@pytest.mark.parametrize("sequence", [7, "7", 2**64 - 1])
@pytest.mark.parametrize("flags", [{}, {"sequence_start": True}, {"sequence_end": True}])
def test_requests_of_a_sequence_have_a_step(sequence: int | str, flags: dict[str, bool]) -> None:
    parameters = {"sequence_id": sequence, **flags}
    found, _ = call_of(asked(A, B, parameters=parameters), STATEFUL)
    start, end = flags.get("sequence_start", False), flags.get("sequence_end", False)
    assert found.step == SequenceStep(sequence, start, end)


@pytest.mark.parametrize("parameters", [{}, {"sequence_id": 0}, {"sequence_id": ""}])
def test_a_stateful_model_needs_an_id(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="must specify a non-zero or non-empty correlation ID"):
        call_of(asked(A, B, parameters=parameters), STATEFUL)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"sequence_id": -1}, "parameter sequence_id is -1; expected a whole number from 1"),
        ({"sequence_id": 2**64}, "parameter sequence_id is 18446744073709551616; expected"),
        ({"sequence_id": 1.5}, "parameter sequence_id is a float; expected a whole number"),
        ({"sequence_id": True}, "parameter sequence_id is a bool"),
        ({"sequence_id": "x" * 129}, "parameter sequence_id is a text of 129 bytes"),
        ({"sequence_id": 1, "sequence_start": 1}, "parameter sequence_start is 1; expected true"),
        ({"sequence_id": 1, "sequence_end": "x"}, "parameter sequence_end is 'x'; expected true"),
    ],
)
def test_other_ids_and_flags_are_refused(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(text)):
        call_of(asked(A, B, parameters=parameters), STATEFUL)


def test_several_rows_are_no_step() -> None:
    text = "model 'two' must specify batch-size 1 due to requirements of sequence batcher; it has 5"
    with pytest.raises(InvalidInput, match=text):
        call_of(asked(AS, BS, parameters={"sequence_id": 7}), STATEFUL)


def test_a_single_row_keeps_its_step() -> None:
    call = Call("m", Operation.EVALUATE, (np.ones((1, 3)),), rows=1, step=SequenceStep(7))
    assert without_axis(call).step == SequenceStep(7)
