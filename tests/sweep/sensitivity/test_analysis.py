"""Sensitivity of sweep files: which rows, outputs and methods; its order, texts, table and JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import farm
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import PointStatus
from farm.sweep.sensitivity.analysis import (
    Sensitivity,
    analyse,
    analyse_with_constants,
    with_interval,
)

RANGES = {"a": (0.0, 10.0), "b": farm.choice(1, 2, 4), "c": farm.normal(0, 1)}


def linear(a: float, b: float, c: float) -> dict[str, Any]:
    return {
        "y": 2 * a + b + 0 * c,
        "u": np.array([[a, b, c], [a, a, 1.0]]),
        "same": 5.0,
        "flag": float(a > 5),
    }


def fails_above_nine(a: float, b: float, c: float) -> dict[str, Any]:
    if a > 9:
        raise ValueError("a is too large")
    return linear(a, b, c)


def is_infinite_above_nine(a: float, b: float, c: float) -> float:
    return math.inf if a > 9 else a + b


def swept(
    path: Path, design: str, model: Callable[..., Any] = linear, ranges: Any = None, **more: Any
) -> Path:
    """Sweep a function in this process, and return the file."""
    with farm.sweep(
        model,
        RANGES if ranges is None else ranges,
        design=design,
        seed=3,
        out=path,
        show=False,
        **more,
    ):
        pass
    return path


@pytest.mark.parametrize(
    ("design", "method", "points"),
    [
        ("saltelli:16", "sobol", 128),
        *(("saltelli:16,first", "sobol", 80), ("morris:10", "morris", 40), ("ff", "ff", 8)),
        *(("sobol:64", "pawn", 64), ("lhs:64", "pawn", 64), ("grid:5", "pawn", 75)),
    ],
)
def test_the_method_fits_the_design(tmp_path: Path, design: str, method: str, points: int) -> None:
    (y,) = analyse(swept(tmp_path / "s.h5", design), output="y")
    assert y.method == method
    assert (y.points, y.left_out, y.parameters) == (points, 0, ("a", "b", "c"))
    assert y.values.argmax() == 0
    if method != "pawn":
        assert y.values[2] == pytest.approx(0, abs=1e-12)


def test_a_table_has_ranks_without_a_unit_cube(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = np.column_stack([rng.random(80) * 10, rng.integers(1, 3, 80), np.full(80, 7.0)])
    np.savetxt(tmp_path / "t.csv", rows, delimiter=",", header="a,b,c", comments="")
    path = swept(tmp_path / "s.h5", f"file:{tmp_path / 't.csv'}", ranges={})
    (y,) = analyse(path, output="y")
    assert y.ranked == [0, 1, 2]
    assert np.isnan(y.values[2])


def test_morris_effects_are_of_the_model_s_own_ranges(tmp_path: Path) -> None:
    (y,) = analyse(swept(tmp_path / "s.h5", "morris:10"), output="y")
    assert y.measure == "mu_star"
    assert y.values[0] == pytest.approx(20)
    # The step of 2/3 goes from 1 to 4, or from 2 to 4, times 3/2.
    assert 3 <= y.values[1] <= 4.5


def test_outputs_by_name(tmp_path: Path) -> None:
    path = swept(tmp_path / "s.h5", "saltelli:16")
    assert [each.output for each in analyse(path)] == ["y", "mean of u", "flag"]
    assert [each.output for each in analyse(path, output="u")] == ["mean of u"]
    assert [each.output for each in analyse(path, output="u[0,2]")] == ["u[0,2]"]
    assert [each.output for each in analyse(path, output="u[2]")] == ["u[0,2]"]
    assert [each.output for each in analyse(path, output="out1")] == ["mean of u"]
    every, constant = analyse_with_constants(path, output="u[:]")
    assert [each.output for each in every] == ["u[0,0]", "u[0,1]", "u[0,2]", "u[1,0]", "u[1,1]"]
    assert constant == ["u[1,2]"]
    assert [each.values.argmax() for each in every] == [0, 1, 2, 0, 0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"output": "v"}, "no output 'v'; the outputs are y, u, same, flag"),
        ({"output": "u[6]"}, "out of range"),
        ({"output": "same"}, "same: the same value in all rows, so no parameter"),
        ({"method": "fast"}, "method 'fast': expected auto, sobol, morris, ff, delta, pawn"),
        ({"method": "morris"}, "morris needs the points of a design such as morris:20; .*saltelli"),
        ({"method": "delta", "output": "flag"}, "output 'flag': the output has 2 different"),
    ],
)
def test_what_cannot_be_analysed_says_why(
    tmp_path: Path, options: dict[str, str], why: str
) -> None:
    path = swept(tmp_path / "s.h5", "saltelli:16")
    with pytest.raises(SweepError, match=why):
        analyse(path, **options)  # type: ignore[arg-type]  # texts only


def test_failed_points_are_refused_or_left_out(tmp_path: Path) -> None:
    path = swept(tmp_path / "s.h5", "saltelli:16", fails_above_nine)
    with h5py.File(path) as file:
        count = int(np.count_nonzero(file["status"][:] == PointStatus.FAILED))
        a_is_large = int(np.count_nonzero(file["theta"][:, 0] > 9))
    assert count == a_is_large > 0
    with pytest.raises(
        SweepError,
        match=rf"needs all 128 points, and {count} have no result for 'y' \({count} failed\); run "
        r"failed points again by farm sweep --resume --retry-failed, or use delta or pawn",
    ):
        analyse(path, output="y")
    (y,) = analyse(path, method="pawn", output="y")
    assert (y.points, y.left_out) == (128 - count, count)
    assert y.values.argmax() == 0


def test_numbers_that_are_not_finite_are_refused_or_left_out(tmp_path: Path) -> None:
    path = swept(tmp_path / "s.h5", "saltelli:16", is_infinite_above_nine)
    with pytest.raises(SweepError, match=r"\(\d+ with a number that is not finite\); use delta"):
        analyse(path)
    (y,) = analyse(path, method="pawn")
    assert y.points + y.left_out == 128
    assert y.left_out > 0


def test_an_incomplete_sweep_is_to_be_continued(tmp_path: Path) -> None:
    limits = {"max_failures": 0, "in_flight": 1, "workers": 1}
    path = swept(tmp_path / "s.h5", "saltelli:16", fails_above_nine, **limits)
    with h5py.File(path) as file:
        pending = int(np.count_nonzero(file["status"][:] == PointStatus.PENDING))
    assert pending > 0
    with pytest.raises(SweepError, match=rf"\({pending} pending.*continue the sweep: the same"):
        analyse(path, output="y")


def test_points_in_another_order_land_in_the_rows_of_the_design(tmp_path: Path) -> None:
    """With a cost, the points run longest first; the analysis gets them in the design's order."""
    plain = analyse(swept(tmp_path / "a.h5", "saltelli:16"), output="y")[0]
    mixed = analyse(swept(tmp_path / "b.h5", "saltelli:16", cost="a"), output="y")[0]
    assert plain.values.tolist() == mixed.values.tolist()


def test_a_design_with_other_points_is_refused(tmp_path: Path) -> None:
    path = swept(tmp_path / "s.h5", "saltelli:16")
    with h5py.File(path, "r+") as file:
        file["provenance"].attrs["plan"] = (
            file["provenance"].attrs["plan"].replace("saltelli:16", "saltelli:32")
        )
    with pytest.raises(SweepError, match=r"needs all 256 points .* the sweep has 128; use delta"):
        analyse(path, output="y")


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


def test_repr_is_the_ranking() -> None:
    assert repr(FOUND) == (
        "<Sensitivity of y by sobol, ST: c 0.751, a 0.25 ± 0.012, b does not vary; 64 points>"
    )
    names = tuple(f"x{j}" for j in range(9))
    numbers = np.arange(9.0)
    found = Sensitivity("y", "pawn", names, "PAWN median", numbers, numbers * NAN, {}, 64, 0)
    assert "x3 3, and 3 more; 64 points" in repr(found)
    assert with_interval(0.5567, 0.0423) == "0.557 ± 0.042"
    assert with_interval(0.5567, NAN) == "0.557"
    assert FOUND.ranked == [2, 0, 1]


def test_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = FOUND.to_pandas()
    assert frame.index.tolist() == ["c", "a", "b"]
    assert frame.index.name == "parameter"
    assert frame.columns.tolist() == ["ST", "ST_conf", "S1"]
    assert frame["S1"].tolist() == [0.6, 0.2, 0.0]
    assert frame.attrs == {"output": "y", "method": "sobol", "points": 64, "left_out": 2}
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
