"""Values survive JSON unchanged, bad JSON is refused, and equal configs have one text."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from farm.call import (
    Call,
    Derivative,
    Hints,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
    WorkerInfo,
    canonical_config,
    halves,
    joined,
    named,
    numpy_dtype,
)

INFO = ModelInfo(
    name="beam",
    inputs=(TensorInfo("E", (3,)), TensorInfo("load", (), "float32")),
    outputs=(TensorInfo("w", (4, 2)),),
    operations=frozenset({Operation.EVALUATE, Operation.GRADIENT}),
    max_batch=64,
    repeatable=False,
    description="bends",
    copies=False,
)
WORKER = WorkerInfo("n1/7-ab", (INFO,), slots=2, host="n1", pid=7, ends_at=1.5, labels={"a": "b"})


def through_json(data: Any) -> Any:
    return json.loads(json.dumps(data))


def test_infos_come_back_from_json_as_they_were() -> None:
    assert ModelInfo.from_json(through_json(INFO.to_json())) == INFO
    assert WorkerInfo.from_json(through_json(WORKER.to_json())) == WORKER


def test_a_farm_offers_both_where_it_has_each() -> None:
    evaluate, gradient, both = (
        Operation.EVALUATE,
        Operation.GRADIENT,
        Operation.VALUE_AND_GRADIENT,
    )
    for has, offers in (
        ({evaluate, gradient}, {evaluate, gradient, both}),
        ({evaluate}, {evaluate}),
        ({gradient}, {gradient}),
        ({both}, {both}),
        (set(Operation), set(Operation)),
    ):
        info = dataclasses.replace(INFO, operations=frozenset(has))
        assert {operation for operation in Operation if info.offers(operation)} == offers


def test_both_halves_make_the_whole() -> None:
    wrt = Derivative(1, 2, sens=np.ones(3))
    call = Call("m", Operation.VALUE_AND_GRADIENT, (np.ones(2),), '{"a":1}', wrt)
    value, gradient = halves(call)
    assert (value.operation, value.derivative) == (Operation.EVALUATE, None)
    assert (gradient.operation, gradient.derivative) == (Operation.GRADIENT, wrt)
    assert (value.model, value.inputs, value.config) == (call.model, call.inputs, call.config)
    one, two = np.ones(1), np.ones(2)
    whole = joined(
        Result((one,), 0.5, worker="a", queue_time_s=0.1),
        Result((two,), 0.25, worker="b", queue_time_s=0.2, copied=True),
    )
    assert whole.outputs == (one, two)
    assert (whole.run_time_s, whole.queue_time_s, whole.copied) == (0.75, 0.2, True)
    assert whole.worker == "2 workers"
    assert joined(Result((one,), worker="a"), Result((two,), worker="a")).worker == "a"


def test_what_may_be_left_out() -> None:
    of_earlier_release = {k: v for k, v in through_json(INFO.to_json()).items() if k != "copies"}
    assert ModelInfo.from_json(of_earlier_release).copies
    data = {"name": "w", "models": [], "slots": 1}
    assert WorkerInfo.from_json(data) == WorkerInfo("w", ())


def test_an_operation_of_a_later_farm_is_ignored() -> None:
    data = INFO.to_json()
    data["operations"] = [*data["operations"], "guess"]
    assert ModelInfo.from_json(through_json(data)) == INFO


@pytest.mark.parametrize(
    "change",
    [
        {"name": 7},
        {"inputs": [{"name": "E", "shape": [-2], "dtype": "float64"}]},
        {"inputs": [{"name": "E", "shape": [True], "dtype": "float64"}]},
        {"inputs": [{"name": "E", "shape": [3], "dtype": "object"}]},
        {"inputs": [{"name": "E", "shape": [3], "dtype": "no such"}]},
        {"inputs": [{"shape": [3], "dtype": "float64"}]},
        {"outputs": None},
        {"operations": [7]},
        {"max_batch": 0},
        {"max_batch": 1.5},
    ],
)
def test_an_info_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        ModelInfo.from_json(INFO.to_json() | change)


@pytest.mark.parametrize("change", [{"slots": 0}, {"pid": -1}, {"labels": {"a": 1}}, {"name": b""}])
def test_a_worker_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        WorkerInfo.from_json(WORKER.to_json() | change)


def test_values_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        INFO.name = "other"  # type: ignore[misc]  # that it fails is the test
    # The type checker alone holds calls and results to be frozen: it needs the comments here.
    Call("beam", Operation.EVALUATE).model = "other"  # type: ignore[misc]
    Result(()).run_time_s = 1.0  # type: ignore[misc]


def test_size_of_a_tensor() -> None:
    assert [t.size for t in (*INFO.inputs, *INFO.outputs)] == [3, 1, 8]
    assert [t.varies for t in (*INFO.inputs, *INFO.outputs)] == [False, False, False]
    varying = TensorInfo("text", (-1, 4), "bytes")
    assert varying.varies
    assert varying.size == -1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("float16", np.float16), ("bool", np.bool_), ("bytes", object), ("bfloat16", bfloat16)],
)
def test_names_of_dtypes(name: str, expected: type) -> None:
    assert numpy_dtype(name) == np.dtype(expected)
    assert (
        TensorInfo("x", (), name)
        == ModelInfo.from_json(
            through_json(ModelInfo("m", (TensorInfo("x", (), name),), ()).to_json())
        ).inputs[0]
    )


@pytest.mark.parametrize("name", ["object", "S4", "datetime64", "no such"])
def test_what_names_no_dtype_is_refused(name: str) -> None:
    with pytest.raises(TypeError):
        numpy_dtype(name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON))
def test_equal_configs_have_one_text(config: dict[str, Any]) -> None:
    text = canonical_config(config)
    shuffled = dict(reversed(config.items()))
    assert canonical_config(shuffled) == text
    assert json.loads(text) == config
    assert canonical_config(json.loads(text)) == text


@pytest.mark.parametrize("config", [None, {}])
def test_the_empty_config(config: Any) -> None:
    assert canonical_config(config) == "{}"


def test_numbers_of_numpy_count_as_numbers() -> None:
    config = {"n": np.int64(3), "x": np.float32(0.5), "v": np.arange(2)}
    assert canonical_config(config) == '{"n":3,"v":[0,1],"x":0.5}'


@pytest.mark.parametrize("config", [[], "", 0, [1], "{}", {"a": object()}, {"a": {1, 2}}])
def test_a_config_that_is_no_json_object(config: Any) -> None:
    with pytest.raises(TypeError, match="config"):
        canonical_config(config)


def test_a_client_of_whom_only_the_name_is_known() -> None:
    assert named("ada") == Hints(client="ada")
    assert named("ada") is named("ada")
