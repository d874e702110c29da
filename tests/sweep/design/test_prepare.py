"""From a request to a plan: the model's description, tables that fit, invalid requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from farm.call import ModelInfo, Operation, TensorInfo
from farm.sweep.design.points import parse_design
from farm.sweep.design.prepare import SweepRequest, check_model, make_plan
from farm.sweep.errors import SweepError
from farm.sweep.space.grammar import parse_distribution
from tests.sweep.samples import BEAM, plan_of


def table(tmp_path: Path, text: str) -> str:
    (tmp_path / "points.csv").write_text(text)
    return f"file:{tmp_path}/points.csv"


def test_columns_go_to_their_names_or_to_the_open_entries_in_order(tmp_path: Path) -> None:
    design = table(tmp_path, "load,mesh,E[0]\n1,2,0.5\n3,4,0.25\n")
    plan = plan_of(design, {}, fixes={"E[1]": 8, "E[2]": 9})
    assert [p.name for p in plan.parameters] == ["load", "mesh", "E[0]"]
    assert plan.unit is None
    (call,) = plan.calls(1)
    assert call.inputs[0].tolist() == [0.25, 8, 9]
    assert call.inputs[1].tolist() == [3]
    assert call.config == '{"mesh":4}'
    plan = plan_of(table(tmp_path, "1,2,3,4\n5,6,7,8.5\n"), {})
    assert [p.name for p in plan.parameters] == ["E[0]", "E[1]", "E[2]", "load"]
    assert plan.inputs_of(1)[1].tolist() == [8.5]


@pytest.mark.parametrize(
    ("text", "params", "complaint"),
    [
        ("1,2\n3,4\n", {}, "2 columns without names, the model 4 entries"),
        ("E,load\n3,4\n", {}, "each column of a table must name one entry"),
        ("1,2,3,4\n", {"load": "0:1"}, "but not parameters"),
        ("E[0],load\n3,4\n", {}, r"no value for E\[1\]"),
    ],
)
def test_tables_that_do_not_fit(
    tmp_path: Path, text: str, params: dict[str, str], complaint: str
) -> None:
    with pytest.raises(SweepError, match=complaint):
        plan_of(table(tmp_path, text), params)


def test_outputs_are_those_of_the_points_config() -> None:
    asked: list[dict[str, Any]] = []

    def describe(config: Mapping[str, Any]) -> ModelInfo:
        asked.append(dict(config))
        return ModelInfo("m", (TensorInfo("k", (1,)),), (TensorInfo("y", (config.get("n", 1),)),))

    request = SweepRequest(
        parse_design("random:3"), 0, {"k": parse_distribution("0:1")}, {"n": 5}, {"base": 1}
    )
    plan = make_plan(request, describe)
    assert plan.info.outputs[0].size == 5
    assert asked == [{"base": 1}, {"base": 1, "n": 5}]


def test_inputs_must_not_depend_on_a_config_that_is_not_given_as_config() -> None:
    def describe(config: Mapping[str, Any]) -> ModelInfo:
        return ModelInfo("m", (TensorInfo("k", (config.get("n", 1),)),), (TensorInfo("y", (1,)),))

    request = SweepRequest(parse_design("random:3"), 0, {"k": parse_distribution("0:1")}, {"n": 5})
    with pytest.raises(SweepError, match="with config="):
        make_plan(request, describe)
    spreads = {"k": parse_distribution("0:1")}
    plan = make_plan(SweepRequest(parse_design("random:3"), 0, spreads, config={"n": 5}), describe)
    assert len(plan.parameters) == 5


def test_whole_inputs_need_whole_numbers(tmp_path: Path) -> None:
    info = ModelInfo("m", (TensorInfo("n", (1,), "int64"),), (TensorInfo("y", (1,)),))
    for text in ("int:1:5", "choice:1,2"):
        assert plan_of("random:3", {"n": text}, info=info).size == 3
    with pytest.raises(SweepError, match="whole numbers"):
        plan_of("random:3", {"n": "0:1"}, info=info)
    with pytest.raises(SweepError, match="whole numbers"):
        plan_of(table(tmp_path, "n\n1.5\n"), {}, info=info)


def test_a_model_without_evaluate_cannot_be_swept() -> None:
    info = ModelInfo("m", BEAM.inputs, BEAM.outputs, frozenset({Operation.GRADIENT}))
    with pytest.raises(SweepError, match="it offers gradient"):
        plan_of(info=info)
    with pytest.raises(SweepError, match="seed_key 'mesh'"):
        plan_of(params={"E": "0:1", "load": "0:1", "mesh": "1:2"}, seed_key="mesh")


def test_title_is_model_and_design_unless_given() -> None:
    assert plan_of().title == "beam random:20"
    assert plan_of(title="mine").title == "mine"
    assert plan_of().run_id != plan_of().run_id


def test_a_model_that_has_changed_is_told() -> None:
    plan = plan_of()
    check_model(plan, BEAM)
    changed = ModelInfo("beam", BEAM.inputs, (TensorInfo("u", (5,)), BEAM.outputs[1]))
    with pytest.raises(SweepError, match=r"outputs u \[5\].*planned for u \[4\], mass \[1\]"):
        check_model(plan, changed)
    with pytest.raises(SweepError, match=r"inputs E \[3\], the sweep was planned for"):
        check_model(plan, ModelInfo("beam", BEAM.inputs[:1], BEAM.outputs))


@pytest.mark.parametrize(
    ("tensor", "output", "complaint"),
    [
        (TensorInfo("t", (1,), "bytes"), True, "'t' of model 'm' has texts"),
        (TensorInfo("t", (-1, 2)), True, "'t' of model 'm' has sizes that vary"),
        (TensorInfo("t", (-1, 2)), False, "'t' of model 'm' has sizes that vary"),
    ],
)
def test_what_no_column_can_hold_cannot_be_swept(
    tensor: TensorInfo, complaint: str, output: bool
) -> None:
    fine = TensorInfo("x", (1,))
    info = ModelInfo("m", (fine,), (tensor,)) if output else ModelInfo("m", (tensor,), (fine,))
    with pytest.raises(SweepError, match=complaint):
        plan_of(info=info)


def test_a_column_of_a_table_is_the_cost(tmp_path: Path) -> None:
    design = table(tmp_path, "hours,load,E[0],E[1],E[2]\n3,1,2,2,2\n0.5,3,4,4,4\n")
    plan = plan_of(design, {}, cost_column="hours")
    assert [p.name for p in plan.parameters] == ["load", "E[0]", "E[1]", "E[2]"]
    assert plan.cost is not None
    assert (plan.cost.tolist(), plan.cost_rule) == ([3.0, 0.5], "column:hours")
    assert plan.calls(1)[0].config == "{}"
    assert plan.inputs_of(1)[1].tolist() == [3]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("load,E\n1,2\n", "no such column in table .*; it has load, E"),
        ("1,2,3,4\n", "no such column in table .*; it has no names"),
        ("hours,load,E[0],E[1],E[2]\n-1,1,2,2,2\n", "the cost of point 0 is -1; expected"),
    ],
)
def test_a_column_of_costs_must_be_there(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(SweepError, match=complaint):
        plan_of(table(tmp_path, text), {}, cost_column="hours")


def test_a_column_needs_a_table() -> None:
    with pytest.raises(SweepError, match="of a design file:FILE; the design is random:20"):
        plan_of(cost_column="hours")
