"""KServe requests as calls: names, types, ranks, outputs, parameters, errors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.call import Hints, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.json_numbers import MOST_CONFIG
from farm.errors import FarmError, InvalidInput, ModelNotFound, UnsupportedFeature
from farm.model import check_call
from farm.protocols.kserve.request import (
    ERRORS,
    IN_REGION,
    InferInput,
    InferRequest,
    OutputForm,
    RequestedOutput,
    Wish,
    WishedOutput,
    call_of,
    config_of,
    hints_of_parameters,
    presented,
    takes_long,
    uses_regions,
)
from farm.protocols.kserve.shared_memory.places import Place
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
    call, _ = call_of(asked(B, A), TWO)
    assert (call.model, call.operation, call.rows) == ("two", Operation.EVALUATE, None)
    assert (call.inputs[0] is A.array, call.inputs[1] is B.array) == (True, True)
    call, _ = call_of(asked(AS, BS), TWO)
    assert call.rows == 5
    assert [x.shape for x in call.inputs] == [(5, 3), (5, 2, 2)]


def test_a_row_alone_needs_no_axis() -> None:
    texts = np.array([b"a"], object)
    info = ModelInfo("m", (TensorInfo("a", (3,)), TensorInfo("t", (), "bytes")), ())
    request = asked(tensor("a", (1, 3)), InferInput("t", "BYTES", (1,), texts))
    row, wish = call_of(request, info)
    assert (row.model, row.operation, row.rows) == ("m", Operation.EVALUATE, None)
    assert [x.shape for x in row.inputs] == [(3,), ()]
    assert row.inputs[1].item() == b"a"
    assert wish.lead == (1,)
    assert call_of(asked(AS, BS), TWO)[1].lead == ()


@pytest.mark.parametrize(
    ("shape", "info", "rows"),
    [
        ((7, 2), OPEN, None),
        ((3, 7, 2), OPEN, 3),
        ((0, 0, 2), OPEN, 0),
        ((0, 5, 2), OPEN, 0),
        ((), SCALAR, None),
        ((4,), SCALAR, 4),
    ],
)
def test_open_sizes_and_scalars(shape: tuple[int, ...], info: ModelInfo, rows: int | None) -> None:
    assert call_of(asked(tensor("x", shape)), info)[0].rows == rows
    assert call_of(asked(), EMPTY)[0].rows is None
    with pytest.raises(InvalidInput, match="the inputs hold no values"):
        call_of(asked(tensor("x", (10**12, 0, 2))), OPEN)  # a million million rows of nothing


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
    ],
)
def test_inputs_that_do_not_fit(inputs: list[InferInput], text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        call_of(asked(*inputs), TWO)
    assert text in caught.value.message


@pytest.mark.parametrize(("shape", "rows"), [((1, 0), None), ((3, 0), 3)])
def test_rows_without_entries_fit_a_size_that_varies(
    shape: tuple[int, ...], rows: int | None
) -> None:
    info = ModelInfo(
        "m", (TensorInfo("x", (-1,)),), (TensorInfo("y", (-1,)),), frozenset({Operation.EVALUATE})
    )
    call, _ = call_of(asked(tensor("x", shape)), info)
    assert call.rows == rows
    assert call.inputs[0].shape == (shape if rows else (0,))
    check_call(call, info)


@pytest.mark.parametrize("name", ["sequence_id", "sequence_start", "sequence_end"])
def test_sequences_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedFeature, match=f"parameter {name} is .*sequences"):
        call_of(asked(A, B, parameters={name: True if name != "sequence_id" else 7}), TWO)
    with pytest.raises(UnsupportedFeature, match=f"parameter {name} is "):
        call_of(asked(A, B, parameters={name: "a"}), TWO)
    for none in (0, "", False):
        call_of(asked(A, B, parameters={name: none}), TWO)


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
        (["y"], {"classification": "3"}, InvalidInput, "classification of output 'y' is '3'"),
        (["z"], {"classification": 3}, InvalidInput, "output 'z' is BOOL: classification is for"),
        (["y"], {"shared_memory_region": "r"}, InvalidInput, "without shared_memory_byte_size"),
    ],
)
def test_outputs_that_there_are_none_of(
    outputs: list[str], parameters: dict[str, Any], kind: type[FarmError], text: str
) -> None:
    wanted = [RequestedOutput(name, parameters) for name in outputs]
    with pytest.raises(kind, match=text):
        call_of(asked(A, B, outputs=wanted), TWO)


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


def test_the_config_is_a_parameter_and_others_are_accepted() -> None:
    parameters = {"farm_config": '{"b": 2, "a": [1]}', "triton_x": 7, "x": {"deep": [1]}, "y": None}
    assert call_of(asked(A, B, parameters=parameters), TWO)[0].config == '{"a":[1],"b":2}'
    for wrong in ("[1]", "{", {"a": 1}, 3, "[" * 100_000):
        with pytest.raises(InvalidInput, match="parameter farm_config is not a JSON object"):
            config_of({"farm_config": wrong})
    longest = '{"a":"' + "x" * (MOST_CONFIG - 8) + '"}'
    assert config_of({"farm_config": longest}) == longest
    with pytest.raises(InvalidInput, match=f"expected {MOST_CONFIG} at most"):
        config_of({"farm_config": longest + " "})


HINTS = Hints(client="ann", priority=5, deadline_s=2.0)


@pytest.mark.parametrize(
    ("parameters", "priority", "start_within_s"),
    [
        ({}, 5, None),
        ({"priority": 0, "timeout": 0}, 5, None),
        ({"priority": 1}, 99, None),
        ({"priority": 2}, 98, None),
        ({"priority": 100}, 0, None),
        ({"priority": 150}, -50, None),
        ({"priority": 2**64 - 1}, -100, None),
        ({"timeout": 1_500_000}, 5, 1.5),
        ({"timeout": 1}, 5, 1e-6),
    ],
)
def test_priority_and_timeout(
    parameters: dict[str, int], priority: int, start_within_s: float | None
) -> None:
    hints = hints_of_parameters(parameters, HINTS)
    assert hints == replace(HINTS, priority=priority, start_within_s=start_within_s)


@pytest.mark.parametrize("key", ["priority", "timeout"])
@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, [1], 2**64])
def test_priority_and_timeout_are_whole_numbers(key: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"parameter {key} is .*; expected a whole number"):
        hints_of_parameters({key: value}, Hints())


IN_R = {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 24}


def test_tensors_in_shared_memory_are_seen() -> None:
    plain = InferInput("a", "FP64", (3,), np.zeros(3), {"binary_data_size": 24})
    placed = plain._replace(array=IN_REGION, parameters=IN_R)
    assert not uses_regions(InferRequest("two", [plain], outputs=[RequestedOutput("y")]))
    assert uses_regions(InferRequest("two", [plain, placed]))
    assert uses_regions(InferRequest("two", [plain], outputs=[RequestedOutput("y", IN_R)]))
    with pytest.raises(UnsupportedFeature, match="input 'a' is in shared memory"):
        call_of(asked(placed, B), TWO)  # it was not read


def test_an_output_may_have_a_place() -> None:
    outputs = [RequestedOutput("z"), RequestedOutput("y", IN_R)]
    _, wish = call_of(asked(A, B, outputs=outputs), TWO)
    assert [output.place for output in wish.outputs] == [None, Place("r", 8, 24)]
    both = [RequestedOutput("y", {**IN_R, "binary_data": True})]
    said = "can't set both 'shared_memory_region' and 'binary_data'"
    with pytest.raises(InvalidInput, match=said):
        call_of(asked(A, B, outputs=both), TWO)


LONE = ModelInfo("lone", (TensorInfo("x", (3,)),), (TensorInfo("y", (), "bytes"),))
ROW = ModelInfo("row", (TensorInfo("a", (1,)), TensorInfo("t", (), "bytes")), ())


@pytest.mark.parametrize("content_type", ["np", "str"])
def test_the_only_input_of_mlservers_requests_has_any_name(content_type: str) -> None:
    request = asked(tensor("input-1", (5, 3)), parameters={"content_type": content_type})
    call, wish = call_of(request, LONE)
    assert call.rows == 5
    assert wish.content_type == content_type
    with pytest.raises(InvalidInput, match="there is no input 'input-1'"):
        call_of(asked(tensor("input-1", (5, 3))), LONE)
    with pytest.raises(InvalidInput, match="input 'b' is missing"):
        call_of(asked(A, parameters={"content_type": content_type}), TWO)


@pytest.mark.parametrize(
    ("given", "content_type", "text"),
    [
        (tensor("x", (3,)), "pd", r"'x' has shape \[3\]; expected a column, \[-1, 3\]"),
        (tensor("q", (3,)), "pd", "there is no input 'q'"),
        (tensor("x", (3,)), "base64", r"content_type of the request is .*np, pd, str$"),
        (tensor("x", (3,)), "csv", r"content_type of the request is .*np, pd, str$"),
        (tensor("x", (3,)), 3, r"content_type of the request is .*np, pd, str$"),
    ],
)
def test_content_types_that_do_not_fit(given: InferInput, content_type: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        call_of(asked(given, parameters={"content_type": content_type}), LONE)


@pytest.mark.parametrize("sizes", [((5,), (5,)), ((5, 1), (5, 1)), ((5,), (5, 1))])
def test_columns_of_a_table_are_rows(sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    of_a, of_t = sizes
    texts = InferInput("t", "BYTES", of_t, np.full(of_t, b"a", object))
    call, wish = call_of(asked(texts, tensor("a", of_a), parameters={"content_type": "pd"}), ROW)
    assert call.rows == 5
    assert [x.shape for x in call.inputs] == [(5, 1), (5,)]
    assert wish.content_type == "pd"
    each = [t._replace(parameters={"content_type": "pd"}) for t in (tensor("a", of_a), texts)]
    call, wish = call_of(asked(*each), ROW)
    assert [x.shape for x in call.inputs] == [(5, 1), (5,)]
    assert wish.content_type == ""


def test_classes_and_content_types_of_outputs() -> None:
    labels = ("a", "b", "c")
    numbers = replace(LONE, outputs=(TensorInfo("y", (3,), labels=labels),))

    def wished(info: ModelInfo, **parameters: Any) -> WishedOutput:
        output = RequestedOutput("y", parameters)
        (found,) = call_of(asked(tensor("x", (3,)), outputs=[output]), info)[1].outputs
        return found

    found = wished(numbers, classification=2, content_type="str")
    assert (found.datatype, found.form) == ("BYTES", OutputForm("str", 2, 1, labels))
    found = wished(numbers, classification=0)
    assert (found.datatype, found.form) == ("FP64", None)
    assert wished(numbers, content_type="np").form == OutputForm("np", 0, 1, ())
    assert wished(LONE, content_type="base64").form == OutputForm("base64", 0, 0, ())
    assert wished(LONE, content_type=None).form is None
    with pytest.raises(InvalidInput, match="content_type of output 'y' is 'b64'; expected one of"):
        wished(LONE, content_type="b64")
    with pytest.raises(InvalidInput, match="which is for BYTES; it is FP64"):
        wished(numbers, content_type="str")


def test_the_answer_has_the_name_and_version_that_were_asked_for() -> None:
    def wish(asked_for: str, served_as: str) -> tuple[str, str]:
        request = InferRequest(asked_for, [A, B])
        call, wish = call_of(request, replace(TWO, name=served_as))
        assert call.model == served_as
        return wish.model, wish.version

    assert wish("two", "two") == ("two", "1")
    assert wish("two", "two/12") == ("two", "12")
    assert wish("two/12", "two/12") == ("two/12", "1")


def test_every_error_has_its_status() -> None:
    assert set(ERRORS) == set(FarmError.kinds.values())
    assert all(400 <= status < 600 for status in ERRORS.values())
    assert {ERRORS[kind] for kind in (InvalidInput, ModelNotFound)} == {400, 404}


# Sequences


STATEFUL = replace(TWO, max_batch=1, sequences=SequenceLimits(2, 3.0))


@pytest.mark.parametrize("sequence", [7, "7", 2**64 - 1])
@pytest.mark.parametrize("flags", [{}, {"sequence_start": True}, {"sequence_end": True}])
def test_requests_of_a_sequence_have_a_step(sequence: int | str, flags: dict[str, bool]) -> None:
    parameters = {"sequence_id": sequence, **flags}
    found, _ = call_of(asked(A, B, parameters=parameters), STATEFUL)
    start, end = flags.get("sequence_start", False), flags.get("sequence_end", False)
    assert found.step == SequenceStep(sequence, start, end)


NO_ID = "must specify a non-zero or non-empty correlation ID"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, NO_ID),
        ({"sequence_id": 0}, NO_ID),
        ({"sequence_id": ""}, NO_ID),
        ({"sequence_id": -1}, "parameter sequence_id is -1; expected a whole number from 1"),
        ({"sequence_id": 2**64}, "parameter sequence_id is 18446744073709551616; expected"),
        ({"sequence_id": 1.5}, "parameter sequence_id is a float; expected a whole number"),
        ({"sequence_id": True}, "parameter sequence_id is a bool"),
        ({"sequence_id": "x" * 129}, "parameter sequence_id is a text of 129 bytes"),
        ({"sequence_id": 1, "sequence_start": 1}, "parameter sequence_start is 1; expected true"),
        ({"sequence_id": 1, "sequence_end": "x"}, "parameter sequence_end is 'x'; expected true"),
    ],
)
def test_other_ids_and_flags_and_several_rows_are_refused(
    parameters: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(text)):
        call_of(asked(A, B, parameters=parameters), STATEFUL)
    text = "model 'two' must specify batch-size 1 due to requirements of sequence batcher; it has 5"
    with pytest.raises(InvalidInput, match=text):
        call_of(asked(AS, BS, parameters={"sequence_id": 7}), STATEFUL)


# Forms of answers


def output(form: OutputForm | None, datatype: str = "BYTES") -> WishedOutput:
    return WishedOutput(0, "y", datatype, False, form=form)


def test_answers_in_a_form() -> None:
    numbers, texts = np.arange(3.0), np.array([b"\xff", b"a"], object)
    assert presented(numbers, output(None, "FP64")) is numbers
    assert presented(texts, output(OutputForm("base64"))).tolist() == [b"/w==", b"YQ=="]
    with pytest.raises(InvalidInput, match="output 'y' holds at position 0"):
        presented(texts, output(OutputForm("str")))
    form = OutputForm("base64", 1, 1, ("a", "b"))  # classes come before the content type
    classes = presented(np.array([[1, 2], [4, 3]]), output(form))
    assert classes.tolist() == [[b"MjoxOmI="], [b"NDowOmE="]]


def test_raw_copies_are_quick_and_text_is_not() -> None:
    result = Result((np.zeros(100_000),))
    plain, formed = output(None, "FP64"), output(OutputForm("np"), "FP64")
    assert not takes_long(Wish("m", None, [plain]), result, raw=True)
    assert takes_long(Wish("m", None, [plain]), result, raw=False)
    assert takes_long(Wish("m", None, [plain, formed]), result, raw=True)


@pytest.mark.parametrize(
    ("shape", "classes", "is_long"),
    [
        ((3000, 4), 1, False),
        ((3000, 4), 2, True),
        ((3000, 4), 2**63, True),
        ((3,), 2**63, False),
        ((5000,), 4096, False),
        ((5000,), 4097, True),
    ],
)
def test_many_classes_take_long(shape: tuple[int, ...], classes: int, is_long: bool) -> None:
    wish = Wish("m", None, [output(OutputForm("", classes, 1))])
    assert takes_long(wish, Result((np.zeros(shape),)), raw=True) is is_long
