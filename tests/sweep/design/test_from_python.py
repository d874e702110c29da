"""Ranges, numbers and DataFrames of a Python program as the points of a sweep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from farm.sweep.design.from_python import request_of
from farm.sweep.design.points import Design
from farm.sweep.errors import SweepError
from farm.sweep.space.parameters import Uniform


@pytest.mark.parametrize("number", [3, 2.5, np.float32(2.5), np.int64(3)])
def test_a_number_is_held_fixed(number: Any) -> None:
    found = request_of({"x": (0, 1), "y": number}, {"z": [1, 2]}, "random", 8)
    assert found.spreads == {"x": Uniform(0, 1)}
    assert found.fixes == {"y": number, "z": [1, 2]}
    assert found.design == Design("random", (8,))
    assert found.table is None


def test_a_data_frame_has_the_points() -> None:
    frame = pd.DataFrame({"x": [0.5, 1.5], "n": [1, 2]}, index=["a", "b"])
    found = request_of(frame, {"y": 1}, "sobol", None)
    assert found.points() is not None
    assert found.table is not None
    assert found.table.names == ("x", "n")
    assert found.table.rows.tolist() == [[0.5, 1.0], [1.5, 2.0]]
    assert (found.spreads, found.fixes, str(found.design)) == ({}, {"y": 1}, "file:DataFrame")


@pytest.mark.parametrize(
    ("parameters", "more", "complaint"),
    [
        ({"x": 1}, {"fix": {"x": 2}}, "'x' is both a parameter and fixed"),
        ({"x": (0, 1)}, {}, "the design 'sobol' needs a number of points, such as n=256"),
        ({"x": True}, {"n": 8}, "parameter 'x': True is a bool; expected"),
        ({"x": (1, 0)}, {"n": 8}, "parameter 'x': 1:0: expected two finite numbers, the lower"),
        ([(0, 1)], {}, "parameters is a list; expected a dict"),
        (pd.DataFrame({"x": [1.0]}), {"n": 3}, "give no design and no n"),
        (pd.DataFrame({"x": [1.0]}), {"design": "lhs"}, "give no design and no n"),
        ({"x": (0, 1)}, {"n": 8, "when": "x > 0"}, "when is a str; expected a dict"),
        ({"x": (0, 1)}, {"n": 8, "correlation": [1]}, "correlation is a list; expected a dict"),
        ({"x": (0, 1)}, {"n": 8, "where": [1]}, "1 is a int; expected a text"),
        (pd.DataFrame({"x": ["a", 1]}), {}, "column 'x' of the DataFrame"),
    ],
)
def test_what_is_no_set_of_points(parameters: Any, more: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"fix": {}, "design": "sobol", "n": None, **more}
    with pytest.raises(SweepError) as error:
        request_of(parameters, asked.pop("fix"), asked.pop("design"), asked.pop("n"), **asked)
    assert complaint in str(error.value)
