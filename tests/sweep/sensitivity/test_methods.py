"""The methods of SALib against values that are known in closed form."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

from farm.call import Array
from farm.errors import UnsupportedFeature
from farm.sweep.design.points import parse_design, sample
from farm.sweep.errors import SweepError
from farm.sweep.sensitivity import methods
from farm.sweep.sensitivity.methods import AnalysedRows, MethodMeasures
from farm.sweep.space.parameters import Distribution, Uniform

RANDOM = parse_design("random:9")
WIDTHS = 2.0
"""A measure may be this many half widths of its 95 % interval off: 3.9 standard deviations."""


def table_of(text: str, parameters: int, seed: int = 1) -> AnalysedRows:
    """Return a table with the points of a design over [0, 1], without outputs."""
    design = parse_design(text)
    lines: list[Distribution] = [Uniform(0, 1)] * parameters
    return AnalysedRows(sample(design, lines, seed), np.empty(0), design, seed)


def with_output(table: AnalysedRows, output: Array) -> AnalysedRows:
    return replace(table, output=output)


def test_sobol_of_the_g_function() -> None:
    """Total indices of Sobol's g-function: V_i prod(1 + V_j, j != i) / V."""
    a = np.array([0.0, 1.0, 4.5, 9.0])
    table = table_of("saltelli:512,first", 4)
    output = np.prod((np.abs(4 * table.coordinates - 2) + a) / (1 + a), axis=1)
    found = methods.sobol(with_output(table, output))
    partial = 1 / (3 * (1 + a) ** 2)
    total = np.prod(1 + partial) - 1
    exact = partial * np.prod(1 + partial) / (1 + partial) / total
    assert found.measure == "ST"
    assert (np.abs(found.values - exact) < WIDTHS * found.confidence).all()
    assert (found.confidence < [0.2, 0.1, 0.05, 0.02]).all()
    first = np.abs(found.others["S1"] - partial / total)
    assert (first < WIDTHS * found.others["S1_conf"]).all()
    assert "S2" not in found.others


def test_sobol_has_pairs_on_both_sides_of_the_diagonal() -> None:
    """The product of two centred parameters is all interaction: S2 is 1, S1 is 0."""
    table = table_of("saltelli:256", 3)
    x = table.coordinates - 0.5
    found = methods.sobol(with_output(table, x[:, 0] * x[:, 1]))
    second, half = found.others["S2"], found.others["S2_conf"]
    assert second[0, 1] == second[1, 0]
    assert abs(second[0, 1] - 1) < WIDTHS * half[0, 1]
    assert abs(second[0, 2]) <= WIDTHS * half[0, 2]
    assert np.isnan(np.diag(second)).all()
    assert found.values[2] == 0


def test_effects_of_a_linear_function_are_exact() -> None:
    for text in ("morris:10", "morris:10,8"):
        table = table_of(text, 3)
        found = methods.morris(with_output(table, table.coordinates @ [20.0, -10.0, 0.0]))
        assert found.values == pytest.approx([20, 10, 0], abs=1e-9)
        assert found.others["mu"] == pytest.approx([20, -10, 0], abs=1e-9)
        assert found.others["sigma"] == pytest.approx([0, 0, 0], abs=1e-9)
    table = table_of("ff", 3)
    found = methods.factorial(with_output(table, table.coordinates @ [20.0, -10.0, 0.0] + 5))
    assert found.others["ME"] == pytest.approx([10, -5, 0], abs=1e-9)
    assert found.values == pytest.approx([10, 5, 0], abs=1e-9)
    assert np.isnan(found.confidence).all()


def test_pawn_of_one_parameter_is_exact() -> None:
    """Slice s of 10 selects outputs from s/10 to (s+1)/10: its distance is the larger rest."""
    table = table_of("sobol:1000", 2)
    found = methods.pawn(with_output(table, table.coordinates[:, 0] ** 3))
    distances = [max(s / 10, 1 - (s + 1) / 10) for s in range(10)]
    tolerance = 2 / 1000 + 1 / 100  # a row more or less in a slice of 100
    assert found.values[0] == pytest.approx(np.median(distances), abs=tolerance)
    assert found.others["maximum"][0] == pytest.approx(0.9, abs=tolerance)
    assert found.values[1] <= found.others["dummy"][1] < 0.2


def test_pawn_sees_every_value_of_a_list() -> None:
    """Only the last of three values changes the output: a third of all slices is far from all."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 3, 900).astype(float)
    output = np.where(x == 2, 1.0, 0.0)
    found = methods.pawn(AnalysedRows(x[:, None], output, RANDOM, 0))
    assert found.others["maximum"][0] == pytest.approx(2 / 3, abs=0.05)
    assert found.values[0] == pytest.approx(1 / 3, abs=0.05)


def test_ties_of_a_grid_do_not_lend_influence() -> None:
    """In a grid, rows with one value of b are in the order of a, which alone has influence."""
    table = table_of("grid:50,4", 2)
    found = methods.pawn(with_output(table, table.coordinates[:, 0]))
    assert found.values[1] <= found.others["dummy"][1] < found.values[0]


@pytest.mark.slow
def test_delta_tells_influence_from_none() -> None:
    rng = np.random.default_rng(3)
    x = rng.random((150, 2))
    found = methods.delta(AnalysedRows(x, x[:, 0] ** 2, RANDOM, 1))
    assert found.measure == "delta"
    assert found.values[0] - found.confidence[0] > found.values[1] + found.confidence[1]
    assert abs(found.others["S1"][0] - 1) < 0.2
    assert set(found.others) == {"S1", "S1_conf"}


def test_a_column_that_does_not_vary_has_no_measure() -> None:
    rng = np.random.default_rng(3)
    x = np.column_stack([np.full(60, 7.0), rng.random(60)])
    for method in (methods.delta, methods.pawn):
        found = method(AnalysedRows(x, x[:, 1] ** 2, RANDOM, 0))
        assert np.isnan(found.values).tolist() == [True, False]


def test_points_without_a_value_of_a_parameter_are_a_slice_of_their_own() -> None:
    rng = np.random.default_rng(3)
    x = rng.random((200, 2))
    x[x[:, 0] < 0.5, 0] = np.nan
    found = methods.pawn(AnalysedRows(x, np.isnan(x[:, 0]).astype(float), RANDOM, 0))
    assert found.values[0] > found.others["dummy"][0] >= found.values[1]


def test_delta_refuses_an_output_without_a_density() -> None:
    rng = np.random.default_rng(3)
    x = rng.random((80, 2))
    with pytest.raises(SweepError, match=r"2 different values in 80 rows.*use pawn"):
        methods.delta(AnalysedRows(x, (x[:, 0] > 0.5).astype(float), RANDOM, 0))


@pytest.mark.parametrize("name", ["sobol", "morris", "delta", "pawn"])
def test_too_few_points_are_refused(name: str) -> None:
    tables = {"sobol": "saltelli:7", "morris": "morris:3", "delta": "lhs:49", "pawn": "lhs:49"}
    table = table_of(tables[name], 2)
    numbers = {"sobol": "7 base points .* least 8", "morris": "3 trajectories .* least 4"}
    with pytest.raises(SweepError, match=numbers.get(name, "49 rows .* at least 50")):
        getattr(methods, name)(with_output(table, table.coordinates[:, 0]))


FEWEST = {
    "sobol": "saltelli:8",
    "morris": "morris:4",
    "factorial": "ff",
    "delta": "lhs:50",
    "pawn": "lhs:50",
}


@pytest.mark.parametrize("name", FEWEST)
@pytest.mark.parametrize("seed", [0, 7])
def test_the_fewest_points_suffice_and_the_process_stays_as_it_was(name: str, seed: int) -> None:
    table = table_of(FEWEST[name], 2, seed)
    table = with_output(table, table.coordinates @ [1.0, 0.2] + table.coordinates[:, 0] ** 2)
    np.random.seed(5)
    before, form, filters = np.random.get_state(), warnings.formatwarning, warnings.filters[:]
    first: MethodMeasures = getattr(methods, name)(table)
    assert str(np.random.get_state()) == str(before)
    assert warnings.formatwarning is form
    assert warnings.filters == filters
    np.random.seed(6)  # no measure depends on it
    again: MethodMeasures = getattr(methods, name)(table)
    assert first.values.tolist() == again.values.tolist()
    assert first.confidence.tobytes() == again.confidence.tobytes()
    assert np.isfinite(first.values).all()
    assert first.values.argmax() == 0


def test_a_missing_salib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "SALib.analyze", None)
    table = table_of("lhs:50", 2)
    with pytest.raises(UnsupportedFeature, match=r'pip install "modelfarm\[sensitivity\]"'):
        methods.pawn(with_output(table, table.coordinates[:, 0]))
