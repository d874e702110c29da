"""Descriptions of models, and checks of calls and answers against them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import farm
from farm.call import Call, Derivative, ModelInfo, Operation, TensorInfo, numpy_dtype
from farm.dtypes import casts
from farm.errors import InvalidInput, InvalidOutput, UnsupportedFeature
from farm.functions import check_form
from farm.model import (
    Model,
    as_declared,
    check_call,
    check_outputs,
    info_of,
    inputs_for,
    operations_of,
)
from farm.sequences import SequenceLimits
from tests.test_dtypes import FIT, UNFIT

EVALUATE = Operation.EVALUATE
EVERYTHING = frozenset(set(Operation) - {Operation.DESCRIBE})
INFO = ModelInfo(
    "plate",
    inputs=(TensorInfo("x", (2, 3)), TensorInfo("n", (2,), "int64")),
    outputs=(TensorInfo("y", (4,)), TensorInfo("z", (1,))),
    operations=EVERYTHING,
    max_batch=8,
)
X, N = np.arange(6.0), np.array([1, 2])


def call(*inputs: Any, rows: int | None = None, **derivative: Any) -> Call:
    wrt = Derivative(**derivative) if derivative else None
    return Call("plate", EVALUATE, tuple(np.asarray(x) for x in inputs), derivative=wrt, rows=rows)


# Descriptions of models


class Plate(farm.Model):
    """A plate."""

    inputs = {"x": (2, 3), "n": TensorInfo("", (2,), "int64")}
    outputs = {"y": 4}
    max_batch = 8

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        return inputs["x"].sum() * np.ones(4)

    def gradient(self, *arguments: Any) -> Any:
        return np.zeros(6)


def test_info_of_a_class() -> None:
    info = info_of(Plate(), {})
    assert info.name == "Plate"
    assert info.inputs == INFO.inputs
    assert info.outputs == (TensorInfo("y", (4,)),)
    assert info.operations == {EVALUATE, Operation.GRADIENT}
    assert (info.max_batch, info.repeatable, info.copies) == (8, True, True)
    assert info_of(Plate(), {}, name="other").name == "other"


def test_a_model_offers_what_it_defines_or_says() -> None:
    class Said(Plate):
        operations = frozenset({EVALUATE})

    assert operations_of(farm.Model()) == frozenset()
    assert operations_of(Said()) == {EVALUATE}


def test_models_and_functions_may_forbid_copies_of_slow_calls() -> None:
    class Alone(Plate):
        copies = False

    @farm.model(inputs={"x": 1}, outputs={"y": 1}, copies=False)
    def alone(x: Any) -> Any:
        return x

    assert not info_of(Alone(), {}).copies
    assert not info_of(alone, {}).copies


def test_sizes_may_depend_on_the_config() -> None:
    class Meshed(Plate):
        def describe(self, config: farm.Config) -> Any:
            return {"x": config.get("mesh", 1)}, {"y": 1}

    assert info_of(Meshed(), {"mesh": 5}).inputs == (TensorInfo("x", (5,)),)


@pytest.mark.parametrize(
    ("described", "complaint"),
    [
        (7, "expected a pair"),
        (({"x": 1},), "expected a pair"),
        (([("x", 1)], {}), "expected a dict"),
        (({"x": farm.TensorInfo("", (1,), "object")}, {}), "'object'"),
        (({"x": "three"}, {}), "whole numbers"),
    ],
)
def test_a_description_that_makes_no_sense(described: Any, complaint: str) -> None:
    class Odd(Plate):
        def describe(self, config: farm.Config) -> Any:
            return described

    with pytest.raises(InvalidOutput, match=complaint):
        info_of(Odd(), {})


def test_a_model_shows_its_inputs_and_outputs() -> None:
    class Beam(farm.Model):
        inputs = {"E": 3, "load": ()}
        outputs = {"u": TensorInfo("u", (2, 2)), "mass": [1, 2]}

    assert repr(Beam()) == "<Beam Beam: E [3], load [] -> u [2, 2], mass [1, 2]>"


def test_inputs_by_name_and_by_position() -> None:
    inputs: Any = farm.Inputs(a=X, b=N)
    assert inputs["b"] is N
    assert inputs[1] is N
    with pytest.raises(KeyError, match="'c' is not an input"):
        inputs["c"]


# Calls against models


@pytest.mark.parametrize(
    "right",
    [
        call(X, N),
        call(X.reshape(2, 3), N),
        call(np.arange(6), N),  # integers are numbers
        call(X.astype("float32"), N),
        call(np.zeros((5, 6)), np.zeros((5, 2), int), rows=5),
        call(np.zeros((5, 2, 3)), np.zeros((5, 2), int), rows=5),
    ],
)
def test_a_call_that_fits(right: Call) -> None:
    check_call(right, INFO)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (call(X), "expects 2 input vectors, got 1"),
        (call(X, N, N), "expects 2 input vectors, got 3"),
        (call(X[:5], N), r"input 0 \('x'\) has length 5, .* expects 6"),
        (call(X, np.array([], int)), r"input 1 \('n'\) has length 0, .* expects 2"),
        (call(X.reshape(3, 2), N), r"shape \(3, 2\), .* expects \(2, 3\)"),
        (call(np.zeros((4, 6)), np.zeros((5, 2), int), rows=5), r"expects \(5, 2, 3\)"),
        (call(np.zeros((6, 5)), np.zeros((5, 2), int), rows=5), r"expects \(5, 2, 3\)"),
        (call(np.zeros(30), np.zeros((5, 2), int), rows=5), r"expects \(5, 2, 3\)"),
        (call(X, N + 0.5), "is float64, .* expects int64"),
        (call(X.astype(complex), N), "is complex128, .* expects float64"),
        (call(X.astype(str), N), "expects float64"),
        (call(X.astype(object), N), "is object, .* expects float64"),
    ],
)
def test_a_call_that_does_not_fit(wrong: Call, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        check_call(wrong, INFO)


def derivative(operation: Operation, **wrt: Any) -> Call:
    return Call("plate", operation, (X, N), derivative=Derivative(**wrt))


GRADIENT, JACOBIAN, HESSIAN, BOTH = (
    Operation.GRADIENT,
    Operation.APPLY_JACOBIAN,
    Operation.APPLY_HESSIAN,
    Operation.VALUE_AND_GRADIENT,
)


@pytest.mark.parametrize(
    "right",
    [
        derivative(GRADIENT, out_wrt=0, in_wrt=1, sens=np.zeros(4)),
        derivative(BOTH, out_wrt=0, in_wrt=1, sens=np.zeros(4)),
        derivative(JACOBIAN, out_wrt=1, in_wrt=0, vec=np.zeros(6)),
        derivative(HESSIAN, out_wrt=1, in_wrt=0, in_wrt2=1, sens=np.zeros(1), vec=np.zeros(2)),
    ],
)
def test_a_derivative_that_fits(right: Call) -> None:
    check_call(right, INFO)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (derivative(GRADIENT, out_wrt=2, in_wrt=0, sens=np.zeros(1)), "outWrt is 2, .* 0 to 1"),
        (derivative(GRADIENT, out_wrt=-1, in_wrt=0, sens=np.zeros(1)), "outWrt is -1"),
        (derivative(GRADIENT, out_wrt=0, in_wrt=2, sens=np.zeros(4)), "inWrt is 2"),
        (derivative(GRADIENT, out_wrt=0, in_wrt=0, sens=np.zeros(1)), "sens has length 1, .* 4"),
        (derivative(GRADIENT, out_wrt=0, in_wrt=0), "sens has length 0"),
        (derivative(BOTH, out_wrt=0, in_wrt=0, vec=X), "sens has length 0, expected 4"),
        (derivative(BOTH, out_wrt=0, in_wrt=2, sens=np.zeros(4)), "inWrt is 2"),
        (Call("plate", BOTH, (X, N)), "value_and_gradient needs its indices"),
        (derivative(JACOBIAN, out_wrt=0, in_wrt=1, vec=np.zeros(6)), "vec has length 6, .* 2"),
        (
            derivative(HESSIAN, out_wrt=0, in_wrt=2, sens=np.zeros(4), vec=np.zeros(6)),
            "inWrt1 is 2",
        ),
        (
            derivative(HESSIAN, out_wrt=0, in_wrt=0, in_wrt2=2, sens=np.zeros(4), vec=X),
            "inWrt2 is 2",
        ),
        (
            derivative(HESSIAN, out_wrt=0, in_wrt=0, in_wrt2=1, sens=np.zeros(4), vec=X),
            "vec has length 6, expected 2",
        ),
        (Call("plate", GRADIENT, (X, N)), "needs its indices"),
    ],
)
def test_a_derivative_that_does_not_fit(wrong: Call, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        check_call(wrong, INFO)


def test_an_operation_that_is_not_offered_comes_before_all_other_mistakes() -> None:
    with pytest.raises(UnsupportedFeature, match="does not offer gradient; it offers evaluate"):
        check_call(Call("Plate", GRADIENT), ModelInfo("Plate", (), ()))


def test_what_the_model_gets_is_its_own() -> None:
    inputs = inputs_for(call(X.astype("float32"), N), INFO)
    assert inputs["x"].shape == (2, 3)
    assert inputs["x"].dtype == "float64"
    inputs["n"][:] = 7
    assert N.tolist() == [1, 2]
    assert inputs_for(call(np.zeros((5, 6)), np.zeros((5, 2), int), rows=5), INFO)["x"].shape == (
        5,
        2,
        3,
    )


# Answers against models


Y, Z = np.arange(4.0), np.array([9.0])


@pytest.mark.parametrize(
    "value",
    [{"z": Z, "y": Y}, [Y, Z], (Y, Z), (Y.tolist(), [9.0]), (Y, 9.0), (Y.astype(int), Z)],
)
def test_an_answer_by_name_or_in_order(value: Any) -> None:
    y, z = check_outputs(value, INFO)
    assert (y.tolist(), z.tolist()) == ([0.0, 1.0, 2.0, 3.0], [9.0])
    assert y.dtype == z.dtype == np.float64


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, "returned None, declares 2 outputs"),
        (Y, "returned a ndarray of 4"),
        ([Y], "returned a list of 1"),
        ({"y": Y}, "returned outputs .'y'., declares"),
        ({"y": Y, "z": Z, "w": Z}, "declares"),
        ([Y[:3], Z], r"output 'y' .* has shape \(3,\), expected \(4,\)"),
        ([Y.reshape(2, 2), Z], r"has shape \(2, 2\), expected \(4,\)"),
        ([Y.astype(complex), Z], "is complex128"),
        ([["a"] * 4, Z], "expected numbers"),
        ([[[1], [2, 3]], Z], "is not an array"),
        ([[None] * 4, Z], "holds None"),
        ([["a"] * 4, Z], "is text"),
        ([None, Z], "is None, as of .* `return`, expected numbers"),
        ([[True] * 4, Z], "is bool"),
        ([[{}] * 4, Z], "holds a dict"),
    ],
)
def test_an_answer_that_does_not_fit(value: Any, complaint: str) -> None:
    with pytest.raises(InvalidOutput, match=complaint):
        check_outputs(value, INFO)


ONE = ModelInfo("one", (), (TensorInfo("y", (3,)),))
SCALAR = ModelInfo("scalar", (), (TensorInfo("y", (1,)),))


@pytest.mark.parametrize("value", [[1, 2, 3], [[1, 2, 3]], np.array([1, 2, 3]), {"y": (1, 2, 3)}])
def test_a_single_output_may_stand_alone(value: Any) -> None:
    assert check_outputs(value, ONE)[0].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("value", [3, 3.0, [3.0], [[3.0]], np.float64(3), np.array([[3.0]])[0]])
def test_a_single_number(value: Any) -> None:
    assert check_outputs(value, SCALAR)[0].tolist() == [3.0]


@pytest.mark.parametrize("value", [3.0, np.float64(3.0), np.array(3.0), [np.array(3.0)]])
def test_an_output_without_dimensions_stays_so(value: Any) -> None:
    info = ModelInfo("m", (), (TensorInfo("total", ()),))
    assert check_outputs(value, info)[0].shape == ()


def test_rows_have_a_leading_axis() -> None:
    (y,) = check_outputs(np.zeros((5, 3)), ONE, rows=5)
    assert y.shape == (5, 3)
    with pytest.raises(InvalidOutput, match=r"shape \(4, 3\), expected \(5, 3\)"):
        check_outputs(np.zeros((4, 3)), ONE, rows=5)


def test_nan_is_an_answer() -> None:
    assert np.isnan(check_outputs([np.nan, 1.0, 2.0], ONE)[0][0])


VARYING = ModelInfo(
    "varying",
    (TensorInfo("x", (-1, 2)), TensorInfo("text", (1,), "bytes")),
    (TensorInfo("y", (-1,), "float32"), TensorInfo("label", (-1,), "bytes")),
    frozenset({Operation.EVALUATE}),
    max_batch=4,
)
TEXT = np.array([b"a\0"], object)


def asked(x: Any, text: Any = TEXT, rows: int | None = None) -> Call:
    return Call("varying", Operation.EVALUATE, (np.array(x), np.asarray(text)), rows=rows)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (asked(np.ones((3, 2))), (3, 2)),
        (asked(np.ones(6)), (3, 2)),
        (asked(np.ones((0, 2))), (0, 2)),
        (asked(np.ones((5, 3, 2)), np.full((5, 1), b""), rows=5), (5, 3, 2)),
        (asked(np.ones((5, 6)), np.full((5, 1), b"").astype(object), rows=5), (5, 3, 2)),
    ],
)
def test_sizes_that_vary_come_with_the_call(call: Call, shape: tuple[int, ...]) -> None:
    texts = call.inputs[1].astype(object)
    call = Call(call.model, call.operation, (call.inputs[0], texts), rows=call.rows)
    check_call(call, VARYING)
    inputs = inputs_for(call, VARYING)
    assert inputs["x"].shape == shape
    assert inputs["text"].dtype == object
    assert as_declared(call, VARYING).inputs[0].shape == shape


@pytest.mark.parametrize(
    "call",
    [
        asked(np.ones((3, 3))),
        asked(np.ones(5)),
        asked(np.ones((2, 3, 2))),
        asked(np.ones((3, 2)), np.array([1.0])),
        asked(np.full((3, 2), b"1", object)),
        asked(np.ones((2, 3)), np.full((2, 1), b"", object), rows=2),
        asked(np.ones((2, 3, 2)), np.full((2, 1), b"", object), rows=3),
        asked(np.ones((0, 3)), np.full((0, 1), b"", object), rows=0),
    ],
)
def test_what_does_not_fit_sizes_that_vary(call: Call) -> None:
    with pytest.raises(InvalidInput):
        check_call(call, VARYING)


def test_a_flat_array_for_two_sizes_that_vary_leaves_a_doubt() -> None:
    info = ModelInfo("m", (TensorInfo("x", (-1, -1)),), ())
    check_call(Call("m", Operation.EVALUATE, (np.ones((2, 3)),)), info)
    with pytest.raises(InvalidInput, match=r"expects \(-1, -1\)"):
        check_call(Call("m", Operation.EVALUATE, (np.ones(6),)), info)


def test_outputs_of_sizes_that_vary_and_texts() -> None:
    y, label = check_outputs({"y": np.ones(3), "label": ["é", b"\xff"]}, VARYING)
    assert y.dtype == np.float32
    assert y.shape == (3,)
    assert label.tolist() == ["é".encode(), b"\xff"]
    (y, label) = check_outputs((np.ones((2, 3)), [["a"], ["b"]]), VARYING, rows=2)
    assert (y.shape, label.tolist()) == ((2, 3), [[b"a"], [b"b"]])
    with pytest.raises(InvalidOutput, match="holds a int, expected bytes or text"):
        check_outputs((np.ones(3), [1]), VARYING)
    with pytest.raises(InvalidOutput, match=r"has shape \(2, 2\), expected \(-1,\)"):
        check_outputs((np.ones((2, 2)), ["a"]), VARYING)


@pytest.mark.parametrize(
    ("given", "declared", "fits"),
    [
        (np.float64, "bfloat16", True),
        (np.int64, "bfloat16", True),
        (np.bool_, "bfloat16", False),
        (object, "bfloat16", False),
        (bfloat16, "bfloat16", True),
        (np.float64, "float16", True),
        (np.float64, "int64", False),
        (object, "float64", False),
        (np.float64, "bytes", False),
    ],
)
def test_types_that_are_taken_for_others(given: Any, declared: str, fits: bool) -> None:
    assert casts(np.dtype(given), numpy_dtype(declared)) == fits
    if fits:
        info = ModelInfo("m", (TensorInfo("x", (2,), declared),), ())
        call = Call("m", Operation.EVALUATE, (np.ones(2, given),))
        check_call(call, info)
        assert inputs_for(call, info)["x"].dtype == numpy_dtype(declared)


@pytest.mark.parametrize(("given", "declared", "entry"), UNFIT)
def test_no_number_is_changed_in_silence(given: Any, declared: str, entry: str) -> None:
    given = np.asarray(given)
    tensor = TensorInfo("t", given.shape, declared)
    info = ModelInfo("m", (tensor,), (tensor,))
    with pytest.raises(InvalidOutput, match=re.escape(f"holds {entry}, which its type {declared}")):
        check_outputs(given, info)
    with pytest.raises(InvalidOutput, match="cannot hold"):
        check_outputs({"t": np.stack([given, given])}, info, rows=2)
    call = Call("m", Operation.EVALUATE, (given,))
    with pytest.raises(InvalidInput, match=re.escape(f"holds {entry}, which the type {declared}")):
        check_call(call, info)


@pytest.mark.parametrize(("given", "declared"), FIT)
def test_numbers_that_fit_pass(given: Any, declared: str) -> None:
    plain = given if isinstance(given, list) and given else np.asarray(given, declared)
    tensor = TensorInfo("t", (len(given),), declared)
    info = ModelInfo("m", (tensor,), (tensor,))
    (output,) = check_outputs(plain, info)
    assert output.dtype == numpy_dtype(declared)
    with np.errstate(over="ignore"):
        expected = np.asarray(given).astype(declared)
    assert np.array_equal(output, expected, equal_nan=output.dtype.kind == "f")


@pytest.mark.parametrize("given", [[np.nan], [1.0, np.nan], [1.5], [None], ["1"], [2**70], [1j]])
@pytest.mark.parametrize("declared", ["int32", "uint8"])
def test_what_is_no_whole_number_is_no_whole_output(given: list[Any], declared: str) -> None:
    tensor = TensorInfo("t", (len(given),), declared)
    with pytest.raises(InvalidOutput, match=f"expected numbers of type {declared}"):
        check_outputs(given, ModelInfo("m", (), (tensor,)))


def test_a_model_with_a_stream_offers_it() -> None:
    class Chat(farm.Model):
        def stream(self, inputs: farm.Inputs, config: farm.Config) -> Any:
            yield 1.0

    assert operations_of(Chat()) == {Operation.STREAM}


def test_a_method_cost_is_an_operation() -> None:
    class Priced(farm.Model):
        def cost(self, inputs: farm.Inputs, config: farm.Config) -> float:
            return 1.0

    class Plain(farm.Model):
        cost = 1.0

    assert operations_of(Priced()) == {Operation.COST}
    assert operations_of(Plain()) == frozenset()


# Models with a state


class Stateful(farm.Model):
    inputs, outputs = {"x": 1}, {"y": 1}
    stateful = True

    def evaluate(  # type: ignore[override]  # a stateful model has a third argument
        self, inputs: farm.Inputs, config: farm.Config, sequence: farm.Sequence
    ) -> Any:
        return inputs["x"]


def test_a_stateful_model_runs_no_call_twice() -> None:
    info = info_of(Stateful(), {})
    assert info.sequences == SequenceLimits(64, 60.0)
    assert not info.repeatable
    assert not info.copies
    model = Stateful()
    model.max_sequences, model.sequence_idle_s = 2, 1
    assert info_of(model, {}).sequences == SequenceLimits(2, 1.0)


class Derived(Stateful):
    def gradient(self, *arguments: Any) -> Any: ...


class Batched(Stateful):
    max_batch = 4


class Stateless(farm.Model):
    inputs, outputs = {"x": 1}, {"y": 1}
    stateful = True

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any: ...


class Crowded(Stateful):
    max_sequences = 0


class Hasty(Stateful):
    sequence_idle_s = 0.0


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Derived, "it is stateful and offers evaluate, gradient; expected evaluate alone"),
        (Batched, "it is stateful and has max_batch = 4; expected 1"),
        (Stateless, "expected evaluate(self, inputs, config, sequence)"),
        (Crowded, "0 sequences a worker; expected a whole number, 1 or more"),
        (Hasty, "an idle time of 0.0 s; expected a number above 0"),
    ],
)
def test_models_that_cannot_have_a_state_are_refused(model: type[farm.Model], text: str) -> None:
    with pytest.raises(InvalidOutput, match=re.escape(text)):
        info_of(model(), {})


@pytest.mark.parametrize("nested", [[3.5], [[3.5]], [[[3.5]]]], ids=str)
def test_an_array_is_read_as_the_list_of_its_rows(nested: Any) -> None:
    found: list[Any] = []
    for value in (nested, np.array(nested)):
        try:
            found.append(check_outputs(value, SCALAR)[0].tolist())
        except InvalidOutput as error:
            found.append(error.message)
    assert found[0] == found[1]


class Misspelt(Model):
    inputs = {"E": 1}
    outputs = {"y": 1}

    def evalute(self, inputs: Any, config: Any) -> Any: ...


class Narrow(Misspelt):
    def evaluate(self, x: Any) -> Any:  # type: ignore[override]  # that is the mistake
        return x


class Narrower(Narrow):
    stateful = True


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (Model, r"class Model extends .* no evaluate\(self, inputs, config\)$"),
        (Misspelt, r"defines no evaluate\(self, inputs, config\) \(it defines evalute: rename it"),
        (Narrow, r"takes \(x: .*expected evaluate\(self, inputs, config\), .* inputs\['E'\]"),
        (Narrower, r"expected evaluate\(self, inputs, config, sequence\)"),
    ],
)
def test_a_class_without_the_right_evaluate_is_told_the_form(
    model: type[Model], complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        check_form(model())
