"""The result of an analysis: its order, texts, table and JSON."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from farm.sweep.errors import SweepError
from farm.sweep.sensitivity.ranking import Sensitivity, with_interval

NAN = float("nan")
FOUND = Sensitivity(
    output="y",
    method="sobol",
    parameters=("a", "b", "c"),
    measure="ST",
    values=np.array([0.25, NAN, 0.7512]),
    confidence=np.array([0.0123, NAN, NAN]),
    others={
        "S1": np.array([0.2, 0.0, 0.6]),
        "S2": np.array([[NAN, 0.1, 0.2], [0.1, NAN, 0.3], [0.2, 0.3, NAN]]),
    },
    points=64,
    left_out=2,
)


def test_the_largest_comes_first_and_what_does_not_vary_last() -> None:
    assert FOUND.ranked == [2, 0, 1]


def test_repr_is_the_ranking() -> None:
    assert repr(FOUND) == (
        "<Sensitivity of y by sobol, ST: c 0.751, a 0.25 ± 0.012, b does not vary; 64 points>"
    )


def test_repr_of_many_parameters_is_short() -> None:
    names = tuple(f"x{j}" for j in range(9))
    numbers = np.arange(9.0)
    found = Sensitivity("y", "pawn", names, "PAWN median", numbers, numbers * NAN, {}, 64, 0)
    assert "x3 3, and 3 more; 64 points" in repr(found)


def test_pandas() -> None:
    frame = FOUND.to_pandas()
    assert frame.index.tolist() == ["c", "a", "b"]
    assert frame.index.name == "parameter"
    assert frame.columns.tolist() == ["ST", "ST_conf", "S1"]
    assert frame["S1"].tolist() == [0.6, 0.2, 0.0]
    assert frame.attrs == {"output": "y", "method": "sobol", "points": 64, "left_out": 2}


def test_pandas_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SweepError, match=r'pip install "modelfarm\[pandas\]"'):
        FOUND.to_pandas()


def test_json_has_all_numbers() -> None:
    data = json.loads(json.dumps(FOUND.to_json(), allow_nan=False))
    assert data["parameters"][0] == {"name": "c", "value": 0.7512, "confidence": None, "S1": 0.6}
    assert data["pairs"] == [
        {"names": ["c", "a"], "S2": 0.2},
        {"names": ["c", "b"], "S2": 0.3},
        {"names": ["a", "b"], "S2": 0.1},
    ]
    assert (data["output"], data["points"], data["left_out"]) == ("y", 64, 2)


def test_intervals() -> None:
    assert with_interval(0.5567, 0.0423) == "0.557 ± 0.042"
    assert with_interval(0.5567, NAN) == "0.557"
