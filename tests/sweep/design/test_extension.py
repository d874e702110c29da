"""Longer plans: sequences that continue, and further designs after the first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.sweep.design.extension import appended_plan, further_seed, longer_plan
from farm.sweep.design.plan import DesignPart, Plan
from farm.sweep.design.points import parse_design, sample
from farm.sweep.errors import SweepError
from farm.sweep.space.parameters import Category
from tests.sweep.samples import plan_of

SPACE = {"E": "1:2", "load": "log:1e-3:1", "solver": "choice:euler,rk", "order": "int:1:5"}
RULES: dict[str, Any] = {
    "when": {"order": 'solver == "rk"'},
    "where": ["load < E[0] / 3"],
    "correlations": {("E[0]", "load"): 0.5},
}


def appended(plan: Plan, design: str, **more: Any) -> Plan:
    return appended_plan(plan, parse_design(design), **more).plan


@given(st.sampled_from(["sobol", "halton", "random"]), st.integers(1, 40), st.integers(1, 40))
def test_a_longer_plan_is_the_plan_of_that_length(kind: str, count: int, more: int) -> None:
    plan = longer_plan(plan_of(f"{kind}:{count}", SPACE, **RULES), count + more)
    whole = plan_of(f"{kind}:{count + more}", SPACE, **RULES)
    assert plan.theta_hash == whole.theta_hash
    assert plan.unit is not None
    assert whole.unit is not None
    assert np.array_equal(plan.unit, whole.unit)


@pytest.mark.parametrize(
    ("text", "size", "longer"),
    [
        ("saltelli:8", 64, "saltelli:32"),
        ("saltelli:8,first", 40, "saltelli:32,first"),
        ("morris:5", 20, "morris:20"),
        ("morris:5,8", 20, "morris:20,8"),
    ],
)
def test_blocks_continue(text: str, size: int, longer: str) -> None:
    plan = plan_of(
        text, {"E[0]": "1:2", "E[1]": "normal:0:1", "load": "int:1:9"}, fixes={"E[2]": 1}
    )
    more = longer_plan(plan, 4 * size)
    assert str(more.design) == longer
    assert more.unit is not None
    assert plan.unit is not None
    assert np.array_equal(more.unit[:size], plan.unit)
    fresh = replace(plan, design=parse_design(longer))
    assert np.array_equal(
        more.unit, sample(fresh.design, [p.spread for p in plan.parameters if p.spread], 7)
    )


@pytest.mark.parametrize(
    ("text", "count", "why"),
    [
        ("lhs:8", 100, "slices"),
        ("grid:2", 100, "a finer one"),
        ("saltelli:8", 83, "10 points for each base point, so 83 points do not fit; 80 or 90 do"),
        ("morris:5", 28, "5 points for each trajectory, so 28 points do not fit; 25 or 30 do"),
        ("morris:5", 25, "the sweep has 25 points; expected more, got 25"),
        ("sobol:8", 8, "expected more, got 8"),
        ("ff", 16, "ff cannot be continued: a two-level design has a fixed number of points"),
    ],
)
def test_what_cannot_be_extended_says_why(text: str, count: int, why: str) -> None:
    with pytest.raises(SweepError, match=why):
        longer_plan(plan_of(text), count)


def test_a_sequence_of_other_versions_is_not_continued() -> None:
    plan = plan_of("sobol:8")
    assert plan.unit is not None
    unit = plan.unit.copy()
    unit[3, 1] += 1e-3
    with pytest.raises(SweepError, match="other versions"):
        longer_plan(replace(plan, unit=unit), 16)


@given(st.lists(st.sampled_from(["sobol:4", "random:3", "lhs:5", "grid:2", "halton:2"]), min_size=2,
                max_size=4))  # fmt: skip
def test_designs_follow_each_other(designs: list[str]) -> None:
    first = plan = plan_of(designs[0])
    for design in designs[1:]:
        before = plan
        if design == "grid:2" and design in {str(part.design) for part in plan.all_parts}:
            with pytest.raises(SweepError, match="already"):
                appended(plan, design)
            continue
        plan = appended(plan, design)
        assert np.array_equal(plan.theta[: before.size], before.theta)
        assert str(plan.parts[-1].design) == design
    assert sum(part.size for part in plan.all_parts) == plan.size
    assert plan.all_parts[0] == DesignPart(first.design, first.seed, first.size)
    assert plan.unit is not None
    assert len(plan.unit) == plan.size
    assert len({row.tobytes() for row in plan.theta}) == plan.size


def test_a_further_design_has_a_seed_of_its_own_that_follows_from_the_first() -> None:
    plan = plan_of("random:5")
    once, twice = appended(plan, "random:5"), appended(appended(plan, "random:5"), "random:5")
    assert once.theta_hash == appended(plan, "random:5").theta_hash
    assert len(np.unique(twice.theta, axis=0)) == 15
    assert [part.seed for part in twice.parts] == [7, further_seed(plan), further_seed(once)]
    assert appended(plan, "random:5", seed=3).parts[1].seed == 3


def test_the_last_design_goes_on() -> None:
    plan = appended(plan_of("lhs:6"), "sobol:4")
    longer = longer_plan(plan, 14)
    assert longer.parts == (plan.parts[0], replace(plan.parts[1], design=parse_design("sobol:8"),
                                                   size=8))  # fmt: skip
    assert np.array_equal(longer.theta[:10], plan.theta)
    assert longer.theta_hash == appended(plan_of("lhs:6"), "sobol:8").theta_hash


def test_a_finer_grid_adds_the_combinations_that_are_not_there() -> None:
    params = {"E": "1:2", "load": "choice:1,2"}
    plan = plan_of("grid:2", params, fixes={"E[1]": 1, "E[2]": 1})
    longer, note = appended_plan(plan, parse_design("grid:3"))
    assert note == "2 of 6 points are added, 4 are there already"
    assert longer.theta[4:].tolist() == [[1.5, 1], [1.5, 2]]
    with pytest.raises(SweepError, match="all 6 points of grid:3 are in this sweep already"):
        appended_plan(longer, parse_design("grid:3"))


def test_a_further_design_keeps_to_the_rules_of_the_space() -> None:
    plan = appended(plan_of("sobol:16", SPACE, **RULES), "random:50")
    assert np.all(plan.theta[:, 3] < plan.theta[:, 0] / 3)
    assert np.array_equal(np.isnan(plan.theta[:, 5]), plan.theta[:, 4] == 0)


def test_a_table_after_a_table(tmp_path: Path) -> None:
    one = {"E[1]": 1, "E[2]": 1}
    (tmp_path / "a.csv").write_text("load,solver,E[0]\n1,rk,2\n")
    (tmp_path / "b.csv").write_text("solver,E[0],load\nbdf,3,4\nrk,2,1\n")
    plan = plan_of(f"file:{tmp_path}/a.csv", {}, fixes=one)
    longer, note = appended_plan(plan, parse_design(f"file:{tmp_path}/b.csv"))
    assert note == "1 of 2 points are added, 1 are there already"
    assert longer.theta.tolist() == [[1, 0, 2], [4, 1, 3]]
    assert longer.parameters[1].spread == Category(("rk", "bdf"))
    assert longer.config_of(1) == {"solver": "bdf"}
    assert longer.unit is None
    with pytest.raises(SweepError, match="come from a table"):
        appended_plan(longer, parse_design("random:4"))


def test_a_table_after_a_design_has_no_positions(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(
        "E[0],E[1],E[2],load,solver,order\n2,2,2,0.5,rk,3\n9,9,9,1,rk,\n"
    )
    plan = plan_of("sobol:4", SPACE, **RULES)
    with pytest.raises(SweepError, match="row 1 has no order"):
        appended(plan, f"file:{tmp_path}/b.csv")
    (tmp_path / "b.csv").write_text(
        "E[0],E[1],E[2],load,solver,order\n2,2,2,0.5,rk,3\n9,9,9,1,euler,\n2,2,2,9,rk,3\n"
    )
    longer = appended(plan, f"file:{tmp_path}/b.csv")
    np.testing.assert_array_equal(longer.theta[4:], [[2, 2, 2, 0.5, 1, 3], [9, 9, 9, 1, 0, np.nan]])
    assert longer.unit is not None
    assert np.all(np.isnan(longer.unit[4:]))


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("E[0],load\n1,2\n", "expected those of this sweep: E"),
        ("E[0],E[1],E[2],load,solver,order\n1,1,1,1,bdf,1\n", "'bdf'; expected one of euler, rk"),
        ("E[0],E[1],E[2],load,solver,order\n1,1,1,1,1,1\n", "has numbers, in this sweep it has w"),
        ("E[0],E[1],E[2],load,solver,order\n1,1,1,1,rk,1.5\n", "'order' is 1.5 in row 0"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, table: str, complaint: str) -> None:
    (tmp_path / "b.csv").write_text(table)
    with pytest.raises(SweepError, match=complaint):
        appended(plan_of("sobol:4", SPACE), f"file:{tmp_path}/b.csv")


def test_repeated_rows_are_kept_if_each_point_has_a_seed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("E[0],E[1],E[2],load\n1,1,1,1\n1,1,1,1\n")
    design = f"file:{tmp_path}/a.csv"
    assert appended(plan_of(design, {}, seed_key="seed"), design).size == 4
    with pytest.raises(SweepError, match="already"):
        appended(plan_of(design, {}), design)
