"""Parameters and outputs as columns: values, categories, units, means, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import PointStatus
from farm.sweep.report import columns
from farm.sweep.report.columns import (
    LEAST_POINTS,
    MOST_OUTPUTS,
    MOST_POINTS,
    outputs_of,
    parameter_column,
    quantities_of,
    quantity_columns,
    shown_points,
    some_of,
)
from farm.sweep.space.category import Category
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


def test_many_whole_numbers_are_numbers() -> None:
    plan = plan_of("random:100", {"k": "int:1:1000"}, info=ONE)
    assert column_of(plan)["levels"] == []


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


def test_many_outputs_are_cut_but_not_the_wanted_one() -> None:
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
    assert [tensor.name for _, tensor in outputs_of(plan)] == ["y"]
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


def test_all_failed_points_stay_among_many() -> None:
    failures = range(0, 100_000, 50)
    shown = shown_points(known_with(100_000, failures=failures), 4)
    assert len(shown.points) == MOST_POINTS
    assert set(failures) <= set(shown.points.tolist())
    assert (np.diff(shown.points) > 0).all()
    assert shown.note == (
        "10,000 of 100,000 points are shown, drawn at random: all 2,000 that failed and 8,000 of "
        "98,000 that are done."
    )


def test_done_points_stay_among_very_many_failed_ones() -> None:
    shown = shown_points(known_with(50_000, failures=range(40_000)), 4)
    assert len(shown.points) == MOST_POINTS
    assert (shown.done_shown, shown.failed_shown) == (2_000, 8_000)
    assert "8,000 of 40,000 that failed and 2,000 of 10,000 that are done" in shown.note


@pytest.mark.parametrize(("columns", "count"), [(12, 10_000), (60, 2_000), (10_000, LEAST_POINTS)])
def test_wide_points_are_fewer(columns: int, count: int) -> None:
    assert len(shown_points(known_with(20_000), columns).points) == count


def test_without_done_points_all_room_is_for_failed_ones() -> None:
    shown = shown_points(known_with(30_000, failures=range(30_000)), 4)
    assert len(shown.points) == MOST_POINTS
    assert shown.note.startswith("10,000 of 30,000")


def test_every_level_of_a_grid_stays() -> None:
    """Every n-th of its points would leave most levels of the last parameter out."""
    shown = shown_points(known_with(100_000), 4)
    levels = np.bincount(shown.points % 100, minlength=100)
    assert levels.min() > 50


def test_the_same_sweep_shows_the_same_points() -> None:
    known = known_with(50_000, failures=range(0, 50_000, 7))
    assert np.array_equal(shown_points(known, 9).points, shown_points(known, 9).points)


def test_some_of_keeps_the_order() -> None:
    rng = np.random.default_rng(0)
    assert some_of(np.arange(5), 5, rng).tolist() == [0, 1, 2, 3, 4]
    kept = some_of(np.arange(100), 10, rng)
    assert len(kept) == 10
    assert (np.diff(kept) > 0).all()
