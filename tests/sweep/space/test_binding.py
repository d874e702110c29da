"""Names on the command line: the entry or config key that each means, and refused names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, Operation, TensorInfo
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import bind, entry_name, open_entries, wanted_gradients
from farm.sweep.space.grammar import choice
from farm.sweep.space.parameters import Distribution, Integer, Uniform
from tests.sweep.samples import BEAM

U = Uniform(0, 1)
PLATE = ModelInfo("plate", (TensorInfo("k", (1,)), TensorInfo("x", (2, 3))), (TensorInfo("y", ()),))


def where(info: ModelInfo, spreads: dict[str, Distribution | None], fixes: dict[str, Any]) -> Any:
    return [(p.name, p.input, p.entry) for p in bind(info, spreads, fixes, {}).parameters]


def test_a_plain_name_is_every_entry_and_an_index_one_of_them() -> None:
    assert where(BEAM, {"load": U, "E": U}, {}) == [
        ("load", 1, 0),
        ("E[0]", 0, 0),
        ("E[1]", 0, 1),
        ("E[2]", 0, 2),
    ]
    by_two = {f"x[{i},{j}]": U for i in range(2) for j in range(3)}
    by_one = {f"x[{k}]": U for k in range(6)}
    assert where(PLATE, {"k": U, **by_two}, {}) == where(PLATE, {"k": U, **by_one}, {})


def test_names_by_position() -> None:
    assert where(BEAM, {"in1": U, "in0[2]": U}, {"in0": 1.0}) == [("load", 1, 0), ("E[2]", 0, 2)]
    info = ModelInfo("m", (TensorInfo("in1", (1,)), TensorInfo("b", (1,))), ())
    assert where(info, {"in1": U, "b": U}, {})[0] == ("in1", 0, 0)


def test_an_entry_wins_over_the_whole() -> None:
    binding = bind(BEAM, {"E": U}, {"E[1]": 5.0, "load": 2}, {})
    assert [p.name for p in binding.parameters] == ["E[0]", "E[2]"]
    assert np.array_equal(binding.fixed[0], [np.nan, 5.0, np.nan], equal_nan=True)
    assert binding.fixed[1].tolist() == [2.0]
    assert bind(BEAM, {"load": U}, {"E": 4}, {}).fixed[0].tolist() == [4, 4, 4]
    assert bind(BEAM, {"load": U}, {"E": [1, 2, 3]}, {}).fixed[0].tolist() == [1, 2, 3]


def test_other_names_are_config_keys() -> None:
    binding = bind(BEAM, {"E": U, "mesh": Integer(1, 4)}, {"load": 1, "solver": "cg"}, {"a": 1})
    assert binding.parameters[-1].name == "mesh"
    assert binding.parameters[-1].input is None
    assert binding.config == {"a": 1, "solver": "cg"}


@pytest.mark.parametrize(
    ("spread", "whole"), [(U, False), (Integer(1, 2), True), (choice(1, 2), True), (None, False)]
)
def test_whole_numbers_are_marked(spread: Distribution | None, whole: bool) -> None:
    binding = bind(BEAM, {"E": spread, "load": U}, {}, {})
    assert binding.parameters[0].whole is whole
    assert not bind(BEAM, {"E": choice(1, 2.5), "load": U}, {}, {}).parameters[0].whole


@pytest.mark.parametrize(
    ("spreads", "fixes", "complaint"),
    [
        ({"E": U}, {}, "no value for load"),
        ({"load": U}, {}, r"no value for E\[0\], E\[1\], E\[2\]: give a range or a number"),
        ({"loat": U, "E": U}, {}, "loat went to its config"),
        ({"load": U, "E[0]": U}, {}, r"no value for E\[1\]"),
        ({"E": U, "load": U}, {"load": 1}, "both a parameter and fixed"),
        ({"E": U, "in0": U, "load": U}, {}, r"'E' and 'in0' both set E\[0\]"),
        ({"E[1]": U, "E": U, "load": U}, {"in0[1]": 1}, r"both set E\[1\]"),
        ({"E[3]": U, "E": U, "load": U}, {}, "out of range"),
        ({"E[0,1]": U, "E": U, "load": U}, {}, "out of range"),
        ({"E": U}, {"load": "stiff"}, "expected a finite number, got 'stiff'"),
        ({"E": U}, {"load": [1, 2]}, "expected a finite number"),
        ({"load": U}, {"E": [1, 2]}, "expected 3 finite numbers, or one for all"),
        ({"load": U}, {"E": float("inf")}, "finite"),
    ],
)
def test_mistakes_say_what_is_wrong(
    spreads: dict[str, Distribution | None], fixes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SweepError, match=complaint):
        bind(BEAM, spreads, fixes, {})


def test_many_missing_entries_are_counted() -> None:
    info = ModelInfo("m", (TensorInfo("x", (100,)),), ())
    with pytest.raises(SweepError, match="and 95 more"):
        bind(info, {"y": U}, {}, {})


def test_open_entries_are_those_not_fixed() -> None:
    assert open_entries(BEAM, []) == ["E[0]", "E[1]", "E[2]", "load"]
    assert open_entries(BEAM, ["E[1]", "load", "mesh"]) == ["E[0]", "E[2]"]
    assert entry_name(TensorInfo("k", ()), 0) == "k"
    assert entry_name(TensorInfo("k", (1, 1)), 0) == "k"
    assert entry_name(TensorInfo("x", (2, 3)), 4) == "x[1,1]"


def test_gradients_of_outputs_and_entries() -> None:
    assert wanted_gradients(BEAM, []) == ()
    assert wanted_gradients(BEAM, ["mass"]) == ((1, 0),)
    assert wanted_gradients(BEAM, ["u[3]", "out0[1]"]) == ((0, 3), (0, 1))
    assert wanted_gradients(BEAM, ["u", "u[1]"]) == ((0, 0), (0, 1), (0, 2), (0, 3))
    with pytest.raises(SweepError, match="the outputs are u, mass"):
        wanted_gradients(BEAM, ["v"])
    without = ModelInfo("m", BEAM.inputs, BEAM.outputs, frozenset({Operation.EVALUATE}))
    with pytest.raises(SweepError, match="does not offer gradients"):
        wanted_gradients(without, ["u"])
    assert wanted_gradients(without, []) == ()
