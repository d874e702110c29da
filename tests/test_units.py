"""Units and descriptions are short lines of printable text."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import pytest

import farm
from farm.call import ModelInfo, TensorInfo
from farm.errors import InvalidOutput
from farm.functions import served_function
from farm.model import info_of
from farm.units import LONGEST_DESCRIPTION, LONGEST_LABELS, LONGEST_UNIT, check_texts


@pytest.mark.parametrize("unit", ["", "Pa", "m s-2", "µm", "°C", "1", "x" * LONGEST_UNIT])
def test_units_in_use_are_accepted(unit: str) -> None:
    check_texts("E", unit, "", "")
    assert TensorInfo("E", (3,), unit=unit).unit == unit


@pytest.mark.parametrize(
    ("unit", "complaint"),
    [
        ("x" * (LONGEST_UNIT + 1), "unit of 'E' has 65 characters; expected at most 64"),
        ("m\n", "one line of printable characters"),
        ("\x1b[31mPa", "one line of printable characters"),
        (" Pa", "without spaces around"),
    ],
)
def test_other_units_are_refused(unit: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TensorInfo("E", (3,), unit=unit)


@pytest.mark.parametrize("unit", [None, 1, b"Pa", ["Pa"]])
def test_a_unit_is_a_text(unit: Any) -> None:
    with pytest.raises(TypeError, match="expected a text"):
        farm.tensor(3, unit=unit)
    with pytest.raises(TypeError, match="expected a text"):
        farm.tensor(3, description=unit)


def test_a_description_is_one_line_of_some_length() -> None:
    long = "x" * LONGEST_DESCRIPTION
    assert farm.tensor(3, description=long).description == long
    with pytest.raises(ValueError, match="description of '' has 1001 characters"):
        farm.tensor(3, description=f"{long}x")
    assert farm.tensor(3, description="\n  modulus\n  of a layer\n").description == (
        "modulus of a layer"
    )


@farm.model(
    inputs={
        "E": farm.tensor((3,), unit="Pa", description="Young's modulus of each layer"),
        "n": farm.tensor(dtype="int64"),
    },
    outputs={"u": farm.tensor(4, "float32", unit="m"), "mass": ()},
)
def beam(E: Any, n: Any) -> Any:
    return [E.sum() * [1.0] * 4, 0.0]


def texts(info: ModelInfo) -> list[tuple[str, tuple[int, ...], str, str, str]]:
    tensors = [*info.inputs, *info.outputs]
    return [(t.name, t.shape, t.dtype, t.unit, t.description) for t in tensors]


STATED = [
    ("E", (3,), "float64", "Pa", "Young's modulus of each layer"),
    ("n", (), "int64", "", ""),
    ("u", (4,), "float32", "m", ""),
    ("mass", (), "float64", "", ""),
]


def test_a_model_states_them_beside_the_shape() -> None:
    assert texts(info_of(beam, {})) == STATED


def test_a_function_states_them_in_its_annotations() -> None:
    def tip(
        load: Annotated[float, farm.tensor(unit="N")],
    ) -> Annotated[float, farm.tensor(unit="m", description="at the free end")]:
        return load

    assert texts(info_of(served_function(tip), {})) == [
        ("load", (), "float64", "N", ""),
        ("tip", (), "float64", "m", "at the free end"),
    ]


def test_they_travel_as_json_that_earlier_farms_read() -> None:
    info = info_of(beam, {})
    data = info.to_json()
    assert texts(ModelInfo.from_json(data)) == STATED
    assert data["inputs"][1] == {"name": "n", "shape": (), "dtype": "int64"}
    # A farm without units reads the three keys that it knows, and sends only these.
    for tensor in [*data["inputs"], *data["outputs"]]:
        tensor.pop("unit", None), tensor.pop("description", None)
    assert [(unit, text) for *_, unit, text in texts(ModelInfo.from_json(data))] == [("", "")] * 4


@pytest.mark.parametrize(
    ("key", "value", "error"), [("unit", 7, TypeError), ("unit", "m\n", ValueError)]
)
def test_a_hostile_peer_sends_no_other_text(key: str, value: Any, error: type[Exception]) -> None:
    data = info_of(beam, {}).to_json()
    data["inputs"][0][key] = value
    with pytest.raises(error):
        ModelInfo.from_json(data)


# Labels


class Labelled(farm.Model):
    inputs = {"x": 2}
    outputs = {"score": (2, 2), "open": (-1,), "other": 1}
    labels: Any = {"score": list("abcd"), "open": ["e"]}


def test_labels_belong_to_outputs() -> None:
    info = info_of(Labelled(), {})
    assert [t.labels for t in info.outputs] == [("a", "b", "c", "d"), ("e",), ()]
    assert info.inputs[0].labels == ()
    assert ModelInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
    assert "labels" not in info.outputs[2].to_json()


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"score": ["a", "b"]}, "labels of output 'score' are ['a', 'b'], 2; expected 4 texts"),
        ({"score": "abcd"}, "labels of output 'score' are 'abcd', 4; expected 4 texts"),
        ({"none": ["a"]}, "expected a dict from some of the outputs ['score', 'open', 'other']"),
        (["a"], "labels is ['a']; expected a dict"),
        ({"other": [1]}, "label 0 of 'other' is 1, a int; expected a text"),
        ({"other": ["x" * (LONGEST_LABELS + 1)]}, "characters; expected at most 524288"),
    ],
)
def test_labels_that_do_not_fit(labels: Any, text: str) -> None:
    model = Labelled()
    model.labels = labels
    with pytest.raises(InvalidOutput, match=re.escape(text)):
        info_of(model, {})
