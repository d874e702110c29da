"""Comparing a sweep's plan with a request: every fact that gives rows their meaning counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.sweep.design.comparison import (
    MOST,
    check_same_model,
    check_same_plan,
    model_differences,
    plan_differences,
)
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import parse_design
from farm.sweep.design.prepare import SweepRequest
from farm.sweep.errors import SweepError
from farm.sweep.space.grammar import parse_distribution
from tests.sweep.samples import BEAM, plan_of

PATH = Path("s.h5")
VARIED = {"E": "1:2"}
SPACE: dict[str, Any] = {
    "where": ["load < 0.1*E[0]"],
    "when": {"n": "load > 0.5"},
    "correlations": {("E[0]", "load"): 0.7},
    "fixes": {"n": 3},
}
SPREADS = {"E": "1:2", "load": "log:1e-3:1", "n": "int:1:9"}


def request_of(
    design: str = "random:20", params: Mapping[str, str] | None = None, **more: Any
) -> SweepRequest:
    spreads = {"E": "1:2", "load": "log:1e-3:1"} if params is None else params
    return SweepRequest(
        parse_design(design),
        more.pop("seed", 7),
        {name: parse_distribution(text) for name, text in spreads.items()},
        **more,
    )


def of_another_process(plan: Plan) -> Plan:
    """Return the plan as it is read from a file."""
    return Plan.from_json(plan.to_json(), plan.theta, plan.unit, plan.cost)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"config": {"mesh": 2, "solver": {"tol": 1e-6, "name": "cg"}}},
        {"gradients": ["u[3]", "mass"]},
        {"seed_key": "seed"},
        {"fixes": {"mesh": 3}},
        {"params": SPREADS, **SPACE},
    ],
    ids=str,
)
def test_the_same_request_again_is_the_same_plan(options: dict[str, Any]) -> None:
    there = of_another_process(plan_of(**options))
    check_same_plan(PATH, there, request_of(**options))


def test_what_no_row_depends_on_does_not_count() -> None:
    there = plan_of(title="first", order="given", provenance={"argv": "farm sweep"})
    there = replace(there, cost=np.arange(20.0), cost_rule="load")
    check_same_plan(PATH, there, request_of(title="second", gzip=True, order="shuffled"))


@pytest.mark.parametrize(
    ("there", "asked", "difference"),
    [
        ({}, {"seed": 8}, "seed: 7 in the file, 8 here"),
        ({}, {"design": "random:21"}, "design: random:20 in the file, random:21 here"),
        ({"design": "lhs:9"}, {"design": "lhs:9,lloyd"}, "design: lhs:9 in the file, lhs:9,lloyd"),
        (
            {},
            {"params": {"E": "1:2", "load": "log:1e-3:2"}},
            "parameter load: log:0.001:1 in the file, log:0.001:2 here",
        ),
        (
            {"params": VARIED, "fixes": {"load": 3}},
            {"params": VARIED, "fixes": {"load": 4}},
            "fixed load: 3.0 in the file, 4.0 here",
        ),
        (
            {"params": VARIED, "fixes": {"load": 3}},
            {},
            "parameter load: none in the file, log:0.001:1 here",
        ),
        ({"params": VARIED, "fixes": {"load": 3}}, {}, "fixed load: 3.0 in the file, none here"),
        (
            {"params": {"load": "0:1"}, "fixes": {"E": [1, 2, 3]}},
            {"params": {"load": "0:1"}, "fixes": {"E": [1, 5, 3]}},
            "fixed E[1]: 2.0 in the file, 5.0 here",
        ),
        ({"config": {"mesh": 2}}, {"config": {"mesh": 3}}, "config mesh: 2 in the file, 3 here"),
        ({"config": {"mesh": 2}}, {}, "config mesh: 2 in the file, none here"),
        ({}, {"config": {"mesh": "2"}}, 'config mesh: none in the file, "2" here'),
        ({}, {"seed_key": "seed"}, "seed key: none in the file, seed here"),
        ({}, {"gradients": ["u[3]", "mass"]}, "gradients: none in the file, u[3], mass here"),
        (
            {},
            {"params": {"load": "log:1e-3:1", "E": "1:2"}},
            "order of the parameters: E[0], E[1], E[2], load in the file, load, E[0]",
        ),
        (
            {"params": SPREADS, **SPACE},
            {"params": SPREADS, **SPACE, "where": ["load < 0.2*E[0]"]},
            "constraints: load < 0.1*E[0] in the file, load < 0.2*E[0] here",
        ),
        (
            {"params": SPREADS, **SPACE},
            {"params": SPREADS, **SPACE, "when": {"n": "load > 0.4"}},
            "condition of n: load > 0.5 in the file, load > 0.4 here",
        ),
        (
            {"params": SPREADS, **SPACE},
            {"params": SPREADS, **SPACE, "correlations": {("E[0]", "load"): 0.5}},
            "correlations: E[0],load=0.7 in the file, E[0],load=0.5 here",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_plan_is_refused_with_both_sides(
    there: dict[str, Any], asked: dict[str, Any], difference: str
) -> None:
    with pytest.raises(SweepError) as caught:
        check_same_plan(PATH, of_another_process(plan_of(**there)), request_of(**asked))
    assert difference in str(caught.value)
    assert "replace it by overwrite=True, or give another out=" in str(caught.value)


def test_a_grid_of_other_points_with_one_seed_is_another_plan() -> None:
    levels = {"E": "1:2", "load": "1,2"}
    there = plan_of("grid:2", levels)
    check_same_plan(PATH, there, request_of("grid:2,2,2", params=levels))
    assert plan_differences(there, plan_of("grid:3", levels)) == [
        "design: grid:2 in the file, grid:3 here"
    ]


def test_a_table_is_its_rows_not_its_path(tmp_path: Path) -> None:
    def table(name: str, *loads: int) -> str:
        rows = "".join(f"1,2,3,{load}\n" for load in loads)
        (tmp_path / name).write_text("E[0],E[1],E[2],load\n" + rows)
        return f"file:{tmp_path / name}"

    there = plan_of(table("a.csv", 1, 2, 3), {})
    check_same_plan(PATH, there, request_of(table("b.csv", 1, 2, 3), params={}))
    changed = plan_of(table("a.csv", 1, 9, 3), {})
    assert plan_differences(there, changed) == [
        "point 1: [1, 2, 3, 2] in the file, [1, 2, 3, 9] here"
    ]
    longer = plan_of(table("a.csv", 1, 2, 3, 4), {})
    assert plan_differences(there, longer) == ["points: 3 in the file, 4 here"]
    (tmp_path / "a.csv").unlink()
    with pytest.raises(SweepError, match="holds a sweep of model 'beam', to which"):
        check_same_plan(PATH, there, request_of(f"file:{tmp_path / 'a.csv'}", params={}))


def test_other_versions_may_make_other_points_of_one_design() -> None:
    made_by = {"scipy_version": "1.0"}
    there = replace(plan_of(provenance=made_by), theta=plan_of().theta + 1.0)
    found = plan_differences(there, plan_of(provenance={"scipy_version": "2.0"}))
    assert [text.partition(":")[0] for text in found] == ["point 0", "scipy_version"]
    assert found[1] == "scipy_version: 1.0 in the file, 2.0 here"


def test_a_request_that_does_not_fit_the_model_of_the_file() -> None:
    with pytest.raises(SweepError, match=r"model 'beam', to which .* no value for load"):
        check_same_plan(PATH, plan_of(), request_of(params={"E": "1:2", "k": "0:1"}))


def test_a_long_list_and_long_values_are_cut() -> None:
    spreads = {f"k{i}": "0:1" for i in range(MOST + 2)}
    there = plan_of(params={"E": "1:2", "load": "1:2", **spreads})
    with pytest.raises(SweepError, match=r"k3: .*; 3 more differences\. To do this one"):
        check_same_plan(PATH, there, request_of())
    long = ",".join(map(str, range(200)))
    assert len(plan_differences(plan_of(), plan_of(config={"list": long}))[0]) < 200


TENSOR = (TensorInfo("E", (4,)),)


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (replace(BEAM, name="plate"), "model: beam in the file, plate here"),
        (replace(BEAM, inputs=TENSOR), "inputs of the model: E [3] float64, load [1] float64 in"),
        (replace(BEAM, outputs=TENSOR), "outputs of the model: u [4] float64, mass [1] float64 in"),
        (
            replace(BEAM, inputs=(TensorInfo("E", (3,), "float32"), BEAM.inputs[1])),
            "inputs of the model: E [3] float64, load [1] float64 in the file, E [3] float32",
        ),
    ],
    ids=["name", "inputs", "outputs", "dtype"],
)
def test_another_model_is_refused(now: ModelInfo, difference: str) -> None:
    check_same_model(PATH, plan_of(), BEAM)
    with pytest.raises(SweepError) as caught:
        check_same_model(PATH, plan_of(), now)
    assert difference in str(caught.value)


def test_versions_count_if_both_are_known_or_else_origins() -> None:
    first, second = (replace(BEAM, version=version) for version in ("file:1", "file:2"))
    assert model_differences(first, first) == model_differences(first, BEAM) == []
    (difference,) = model_differences(first, second)
    assert "a package that it imports or Python has changed): file:1 in the file" in difference
    assert model_differences(first, replace(BEAM, version="2"))[0].startswith(
        "version of the model: file:1 in the file, 2 here"
    )
    assert model_differences(BEAM, BEAM, ("/a.py", "/b.py")) == [
        "source of the model: /a.py in the file, /b.py here"
    ]
    known = replace(BEAM, version="1")
    assert model_differences(known, known, ("/a.py", "/b.py")) == []
    assert model_differences(BEAM, BEAM, ("/a.py", "")) == []
