"""The points, columns and fields of a report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from farm.call import Array, ModelInfo, TensorInfo
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import PointStatus
from farm.sweep.report import columns
from farm.sweep.report.columns import (
    LEAST_POINTS,
    MOST_ON_CURVE,
    MOST_ON_SIDE,
    MOST_OUTPUTS,
    MOST_POINTS,
    QUANTILES,
    field_of,
    is_field,
    parameter_column,
    quantities_of,
    quantity_columns,
    shown_points,
)
from farm.sweep.space.parameters import Category
from tests.sweep.report.reports import known_with, made, unpacked
from tests.sweep.samples import plan_of, values_of

ONE = ModelInfo("m", (TensorInfo("k", (1,)),), (TensorInfo("y", (1,)),))
ALL = np.arange(20)


def column_of(plan: Plan) -> dict[str, Any]:
    return parameter_column(plan, 0, np.arange(plan.size))


def test_numbers_are_as_in_the_file() -> None:
    plan = plan_of(params={"k": "log:1e-3:1"}, info=ONE)
    column = parameter_column(plan, 0, np.array([2, 5]))
    assert (column["name"], column["log"], column["levels"]) == ("k", True, [])
    assert unpacked(column["values"]).tolist() == plan.theta[[2, 5], 0].tolist()
    assert column_of(plan_of("random:100", {"k": "int:1:1000"}, info=ONE))["levels"] == []


@pytest.mark.parametrize(
    ("spread", "levels"),
    [("choice:4,1,2.5", ["1", "2.5", "4"]), ("int:-1:2", ["-1", "0", "1", "2"])],
)
def test_few_whole_numbers_and_choices_are_categories(spread: str, levels: list[str]) -> None:
    plan = plan_of("random:100", {"k": spread}, info=ONE)
    column = column_of(plan)
    assert column["levels"] == levels
    assert [float(levels[int(k)]) for k in unpacked(column["values"])] == plan.theta[:, 0].tolist()


def test_words_are_categories_even_those_that_no_point_has() -> None:
    plan = plan_of("random:8", {"k": "choice:0,2"}, info=ONE)
    spread = Category(("euler", "rk4", "bdf"))
    column = column_of(replace(plan, parameters=(replace(plan.parameters[0], spread=spread),)))
    assert column["levels"] == ["euler", "rk4", "bdf"]
    assert unpacked(column["values"]).tolist() == plan.theta[:, 0].tolist()


@pytest.mark.parametrize("spread", ["0:1", "choice:1,2"])
def test_a_parameter_may_have_no_value_at_a_point(spread: str) -> None:
    plan = plan_of("random:8", {"k": spread}, info=ONE)
    theta = plan.theta.copy()
    theta[3] = np.nan
    values = unpacked(column_of(replace(plan, theta=theta))["values"])
    assert np.flatnonzero(np.isnan(values)).tolist() == [3]


def test_units_are_those_of_the_input_if_there_is_one() -> None:
    load = TensorInfo("k", (1,), unit="N", description="at the tip")
    with_units = ModelInfo("one", inputs=(load,), outputs=ONE.outputs)
    column = column_of(plan_of("random:2", {"k": "0:1"}, info=with_units))
    assert (column["unit"], column["description"]) == ("N", "at the tip")
    plan = plan_of("random:2", {"k": "0:1", "mesh": "1:2"}, info=with_units)
    key = parameter_column(plan, 1, np.arange(plan.size))
    assert (key["unit"], key["description"]) == ("", "")


def test_entries_of_small_outputs_and_means_of_all_are_columns(tmp_path: Path) -> None:
    plan = plan_of()
    quantities, first = quantities_of(plan, None)
    assert [q.name for q in quantities] == ["mean of u", "u[0]", "u[1]", "u[2]", "u[3]", "mass"]
    assert first == 0
    made(tmp_path / "s.h5", plan)
    done = ALL != 7
    with h5py.File(tmp_path / "s.h5") as file:
        found = quantity_columns(file, quantities, ALL, done)
    values = {c["name"]: unpacked(c["values"]) for c in found}
    rows = np.array([values_of(plan, point) for point in range(20)])
    rows[7] = np.nan
    assert np.array_equal(values["u[2]"], rows[:, 2], equal_nan=True)
    assert np.array_equal(values["mass"], rows[:, 4], equal_nan=True)
    assert values["mean of u"] == pytest.approx(rows[:, :4].mean(axis=1), nan_ok=True)


def test_large_outputs_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()
    made(tmp_path / "s.h5", plan)
    monkeypatch.setattr(columns, "READ_BYTES", 3 * 8 * 4)
    quantities, _ = quantities_of(plan, "u[3]")
    with h5py.File(tmp_path / "s.h5") as file:
        found = quantity_columns(file, quantities, ALL, ALL > 3)
    values = unpacked(found[4]["values"])
    expected = [values_of(plan, point)[3] if point > 3 else np.nan for point in range(20)]
    assert np.array_equal(values, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("u", "mean of u"),
        ("u[3]", "u[3]"),
        ("mass", "mass"),
        ("mass[0]", "mass"),
        (None, "mean of u"),
    ],
)
def test_the_output_wanted_is_the_first(wanted: str | None, name: str) -> None:
    quantities, first = quantities_of(plan_of(), wanted)
    assert quantities[first].name == name


def test_an_entry_of_a_large_output_is_added() -> None:
    info = ModelInfo("m", ONE.inputs, (TensorInfo("y", (1,)), TensorInfo("u", (5, 8))))
    plan = plan_of(params={"k": "0:1"}, info=info)
    quantities, first = quantities_of(plan, "u[39]")
    assert [q.name for q in quantities] == ["u[39]", "y", "mean of u"]
    assert (first, quantities[0].entry) == (0, 39)
    info = ModelInfo("m", ONE.inputs, tuple(TensorInfo(f"y{k}", (1,)) for k in range(60)))
    plan = plan_of(params={"k": "0:1"}, info=info)
    quantities, first = quantities_of(plan, "y59")
    assert len(quantities) == MOST_OUTPUTS
    assert quantities[first].name == "y59"


@pytest.mark.parametrize("wanted", ["v", "u[4]", "u[x]", "u[-1]", ""])
def test_an_output_that_is_not_there_is_told(wanted: str) -> None:
    with pytest.raises(SweepError, match="output"):
        quantities_of(plan_of(), wanted)


def test_outputs_without_entries_are_left_out() -> None:
    info = ModelInfo("m", ONE.inputs, (TensorInfo("none", (0,)), TensorInfo("y", (1,))))
    plan = plan_of(params={"k": "0:1"}, info=info)
    assert [tensor.name for _, tensor in plan.outputs] == ["y"]
    assert [q.name for q in quantities_of(plan, None)[0]] == ["y"]


@pytest.mark.filterwarnings("error")
def test_the_mean_of_numbers_that_are_not_finite_is_not_finite(tmp_path: Path) -> None:
    plan = plan_of("random:2")
    rows = [np.array([np.inf, -np.inf, 1.0, 2.0, 5.0]), np.array([np.nan, 1e308, 1e308, 2.0, 5.0])]
    made(tmp_path / "s.h5", plan, lambda point: {"values": rows[point]})
    quantities, _ = quantities_of(plan, None)
    with h5py.File(tmp_path / "s.h5") as file:
        found = quantity_columns(file, quantities, np.arange(2), np.ones(2, dtype=bool))
    assert not np.isfinite(unpacked(found[0]["values"])).any()


def test_few_points_are_all_shown_but_pending_ones() -> None:
    known = known_with(20, failures=[3])
    known.status[:2] = PointStatus.PENDING
    shown = shown_points(known, 5)
    assert shown.points.tolist() == list(range(2, 20))
    assert shown.note == ""


def test_failed_points_stay_among_many_and_done_ones_among_failed_ones() -> None:
    failures = range(0, 100_000, 50)
    shown = shown_points(known_with(100_000, failures=failures), 4)
    assert len(shown.points) == MOST_POINTS
    assert set(failures) <= set(shown.points.tolist())
    assert (np.diff(shown.points) > 0).all()
    assert shown.note == (
        "10,000 of 100,000 points are shown, drawn at random: all 2,000 that failed and 8,000 of "
        "98,000 that are done."
    )
    shown = shown_points(known_with(50_000, failures=range(40_000)), 4)
    assert len(shown.points) == MOST_POINTS
    assert (shown.done_shown, shown.failed_shown) == (2_000, 8_000)
    assert "8,000 of 40,000 that failed and 2,000 of 10,000 that are done" in shown.note


@pytest.mark.parametrize(("columns", "count"), [(12, 10_000), (60, 2_000), (10_000, LEAST_POINTS)])
def test_wide_points_are_fewer(columns: int, count: int) -> None:
    assert len(shown_points(known_with(20_000), columns).points) == count


def test_every_level_of_a_grid_stays() -> None:
    """Every n-th of its points would leave most levels of the last parameter out."""
    shown = shown_points(known_with(100_000), 4)
    levels = np.bincount(shown.points % 100, minlength=100)
    assert levels.min() > 50
    known = known_with(50_000, failures=range(0, 50_000, 7))
    assert np.array_equal(shown_points(known, 9).points, shown_points(known, 9).points)


SIZE = 30
RNG = np.random.default_rng(3)


def field(
    folder: Path, shape: tuple[int, ...], values: Array, *, share: int = 10**6, done: Any = None
) -> dict[str, Any]:
    """Return the field of an output whose values at the points are the rows of `values`."""
    info = ModelInfo("m", (TensorInfo("k", (1,)),), (TensorInfo("u", shape),))
    plan = plan_of(f"random:{SIZE}", {"k": "0:1"}, info=info)

    def outcome(point: int) -> Mapping[str, Any]:
        return {"values": values[point].ravel()}

    made(folder / "s.h5", plan, outcome)
    (pair,) = plan.outputs
    done = np.ones(SIZE, dtype=bool) if done is None else done
    with h5py.File(folder / "s.h5") as file:
        return field_of(file, *pair, np.arange(SIZE), done, share=share)


def test_a_curve_has_the_values_of_points_and_quantiles_over_them(tmp_path: Path) -> None:
    values = RNG.random((SIZE, 12))
    done = np.arange(SIZE) % 3 > 0
    found = field(tmp_path, (12,), values, done=done)
    assert unpacked(found["places"]).tolist() == np.flatnonzero(done).tolist()
    shown = unpacked(found["values"]).reshape(-1, 12)
    assert shown == pytest.approx(values[done], rel=1e-6)
    bands = unpacked(found["bands"]).reshape(5, 12)
    assert bands == pytest.approx(np.quantile(values[done], QUANTILES, axis=0))
    assert (found["rows"], found["shape"]) == (20, [12])


def test_a_long_curve_is_thinned_with_both_ends(tmp_path: Path) -> None:
    values = RNG.random((SIZE, 3000))
    found = field(tmp_path, (3000,), values)
    entries = unpacked(found["entries"])
    assert len(entries) == MOST_ON_CURVE
    assert (entries[0], entries[-1]) == (0, 2999)
    shown = unpacked(found["values"]).reshape(-1, len(entries))
    assert shown == pytest.approx(values[:, entries], rel=1e-6)


def test_an_image_has_mean_and_standard_deviation(tmp_path: Path) -> None:
    values = RNG.random((SIZE, 5, 7))
    found = field(tmp_path, (5, 1, 7), values)
    assert (found["shape"], found["reduced"]) == ([5, 7], [5, 7])
    assert unpacked(found["mean"]) == pytest.approx(values.mean(axis=0).ravel())
    assert unpacked(found["sd"]) == pytest.approx(values.std(axis=0).ravel())
    assert unpacked(found["values"]) == pytest.approx(values.ravel(), rel=1e-6)


@pytest.mark.parametrize("side", [50, 96, 131])
def test_a_large_image_has_the_means_of_blocks(tmp_path: Path, side: int) -> None:
    values = RNG.random((SIZE, side, 4))
    found = field(tmp_path, (side, 4), values)
    high, wide = found["reduced"]
    assert (high, wide) == (MOST_ON_SIDE, 4)
    starts = [k * side // high for k in range(high + 1)]  # as the page's `starts`
    blocks = [values[:, a:b].mean(axis=1) for a, b in itertools.pairwise(starts)]
    expected = np.stack(blocks, axis=1)
    assert unpacked(found["values"]).reshape(expected.shape) == pytest.approx(expected, rel=1e-6)


def test_what_is_shown_and_what_is_read_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = field(tmp_path, (12,), RNG.random((SIZE, 12)), share=12 * 4)
    places = unpacked(found["places"])
    assert len(places) == 4
    assert len(unpacked(found["values"])) == 48
    assert found["rows"] == SIZE, "quantiles are of all"
    monkeypatch.setattr(columns, "MOST_BYTES", 8 * 12 * 10)
    (tmp_path / "s.h5").unlink()
    assert field(tmp_path, (12,), RNG.random((SIZE, 12)))["rows"] == 10


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_numbers_that_are_not_finite_are_left_out_of_quantiles(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    values = RNG.random((SIZE, *shape))
    flat = values.reshape(SIZE, -1)
    flat[:, 0] = np.nan
    flat[1, 1], flat[2, 1] = np.inf, -np.inf
    found = field(tmp_path, shape, values)
    name = "bands" if len(shape) == 1 else "mean"
    numbers = unpacked(found[name]).reshape(-1, 6)
    assert np.isnan(numbers[:, 0]).all()
    assert np.isfinite(numbers[:, 1:]).all()
    (tmp_path / "s.h5").unlink()
    none = field(tmp_path, shape, values, done=np.zeros(SIZE, dtype=bool))
    assert (none["rows"], len(unpacked(none["places"]))) == (0, 0)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1,), False), ((4,), True), ((1, 4), True), ((3, 4), True), ((2, 3, 4), False), ((), False)],
)
def test_one_or_two_axes_make_a_field(shape: tuple[int, ...], expected: bool) -> None:
    info = ModelInfo("m", (TensorInfo("k", (1,)),), (TensorInfo("u", shape),))
    (pair,) = plan_of(params={"k": "0:1"}, info=info).outputs
    assert is_field(*pair) is expected
