"""The names of expressions, conditions and constraints of a space."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.sweep.design.plan import Plan, plan_from_text
from farm.sweep.errors import SweepError
from farm.sweep.order.costs import expression_costs
from farm.sweep.space import space as space_module
from farm.sweep.space.space import Scope, condition, parse_when, parsed
from tests.sweep.samples import plan_of

PARAMS = {"E": "1:2", "load": "0:1", "solver": "choice:euler,rk,bdf", "order": "int:1:5"}
WHEN = {"order": 'solver != "euler"'}
TEXTS = ModelInfo(
    "t", (TensorInfo("name", (2,), "bytes"), TensorInfo("k", (1,))), (TensorInfo("y", (1,)),)
)


@pytest.mark.parametrize("rows", [1, 3, 4096])
def test_each_name_has_its_values(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_module, "AT_ONCE", rows)
    plan = plan_of("grid:2", {"k": "0:1", "name[0]": "a,b"}, info=TEXTS,
                   fixes={"name[1]": "c", "mode": "fast", "n": 3})  # fmt: skip
    scope = Scope(plan)
    assert scope.names == ["name", "k", "in0", "in1", "mode", "n"]
    for text, expected in (
        ("k + n", [3, 3, 4, 4]),
        ("in1", [0, 0, 1, 1]),
        ('mode == "fast" and k < 1', [1, 1, 0, 0]),
    ):
        found = scope.numbers(parsed(text, "x"), plan.theta)
        assert found.tolist() == expected
    assert scope.values("name", plan.theta).tolist() == [["a", "b", "a", "b"], ["c"] * 4]
    scope.check(parsed('name == "c"', "x"), "x")
    with pytest.raises(SweepError, match="'name' is never 'd'; its words are a, b, c"):
        scope.check(parsed('name == "d"', "x"), "x")


def test_a_condition_is_true_or_false() -> None:
    for text in ("a < 1", "not a", "a and b", "0 < a < 1"):
        assert condition(text, "where").text == text
    for text in ("a", "-a", "a + 1", "max(a)"):
        with pytest.raises(SweepError, match="expected a comparison"):
            condition(text, "where")


def test_costs_are_of_numbers_that_all_points_have() -> None:
    plan = plan_of("sobol:8", PARAMS)
    assert Scope(plan, texts=False).names == ["E", "load", "in0", "in1", "order"]
    assert np.all(expression_costs("order", plan) >= 1)
    plan = plan_of("sobol:8", PARAMS, when=WHEN)
    with pytest.raises(SweepError, match="it needs order, which some points do not have"):
        expression_costs("order", plan)
    with pytest.raises(SweepError, match="no parameter 'solver'"):
        expression_costs("solver", plan)
    plan = plan_of("sobol:8", PARAMS, when=WHEN, fixes={"order": 9})
    costs = expression_costs("order", plan)
    assert costs.tolist() == [plan.config_of(k)["order"] for k in range(8)]


def named(plan: Plan, name: str) -> Any:
    return plan.theta[:, [p.name for p in plan.parameters].index(name)]


def test_an_inactive_key_is_left_out_of_the_config() -> None:
    plan = plan_of("sobol:32", PARAMS, when=WHEN)
    assert np.array_equal(np.isnan(named(plan, "order")), named(plan, "solver") == 0)
    for point in range(plan.size):
        config = plan.config_of(point)
        assert config["solver"] in ("euler", "rk", "bdf")
        assert ("order" in config) == (config["solver"] != "euler")
        assert type(config.get("order", 1)) is int
        assert json.loads(plan.calls(point)[0].config) == config
    assert plan.values_of(int(np.argmin(named(plan, "solver"))))["order"] is None


def test_a_fixed_value_is_the_one_where_it_is_inactive() -> None:
    plan = plan_of("sobol:32", PARAMS, when={"order": 'solver == "rk"', "load": "order > 2"},
                   fixes={"order": 9, "load": 7})  # fmt: skip
    loads = [plan.inputs_of(k)[1][0] for k in range(plan.size)]
    for k in range(plan.size):
        config = plan.config_of(k)
        active = config["solver"] == "rk"
        assert (config["order"] == 9) == (not active)
        # A condition on an inactive parameter is false, whatever its fixed value is.
        assert (loads[k] == 7) == (not active or config["order"] <= 2)


def test_conditions_depend_on_each_other_in_any_order() -> None:
    params = {**PARAMS, "tol": "log:1e-9:1e-3"}
    plan = plan_of("random:64", params, when={"order": "tol < 1e-6", "tol": 'solver == "bdf"'})
    assert np.array_equal(np.isnan(named(plan, "tol")), named(plan, "solver") != 2)
    assert np.array_equal(np.isnan(named(plan, "order")), ~(named(plan, "tol") < 1e-6))


def test_a_constraint_on_an_inactive_parameter_does_not_count() -> None:
    plan = plan_of("random:100", PARAMS, when=WHEN, where=["order > 2"])
    orders = named(plan, "order")
    assert np.all((orders > 2) | np.isnan(orders))
    assert np.any(np.isnan(orders))


def test_words_go_to_inputs_of_texts() -> None:
    plan = plan_of(
        "grid:2", {"k": "0:1", "name[0]": "a,bä"}, info=TEXTS, fixes={"name[1]": "fixed"},
    )  # fmt: skip
    inputs = [plan.inputs_of(k) for k in range(4)]
    assert [list(i[0]) for i in inputs] == [
        [b"a", b"fixed"], ["bä".encode(), b"fixed"], [b"a", b"fixed"], ["bä".encode(), b"fixed"]
    ]  # fmt: skip
    assert inputs[0][0].dtype == object
    again = plan_from_text(json.dumps(plan.to_json()), plan.theta, plan.unit)
    assert list(again.inputs_of(1)[0]) == ["bä".encode(), b"fixed"]


@pytest.mark.parametrize(
    ("params", "fixes", "complaint"),
    [
        ({"k": "a,b", "name": "a,b"}, {}, "'k' is an input of numbers .* words such as 'a'"),
        ({"k": "0:1", "name": "0:1"}, {}, "'name' is an input of texts: expected words"),
        ({"k": "0:1"}, {"name": 3}, "expected 2 texts, or one for all, got 3"),
    ],
)
def test_words_and_numbers_are_not_mixed_up(
    params: dict[str, str], fixes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SweepError, match=complaint):
        plan_of("random:4", params, info=TEXTS, fixes=fixes)


def test_the_plan_reads_back() -> None:
    plan = plan_of(
        "sobol:8", PARAMS, when=WHEN, where=["load < E[0]"], correlations={("load", "E[0]"): 0.5}
    )
    again = plan_from_text(json.dumps(plan.to_json()), plan.theta, plan.unit)
    assert again.to_json() == plan.to_json()
    assert (again.when, again.where, again.correlations) == (
        plan.when, plan.where, plan.correlations
    )  # fmt: skip
    assert [again.config_of(k) for k in range(8)] == [plan.config_of(k) for k in range(8)]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"when": {"x": "load > 1"}}, "no parameter 'x'"),
        ({"when": {"order": "x > 1"}}, "no parameter 'x'; expected one of E, load"),
        ({"when": {"order": 'solver == "rk4"'}}, "'solver' is never 'rk4'; its words are euler"),
        ({"when": {"order": "load"}}, "expected a comparison, such as load > 0"),
        ({"when": {"order": "order > 1"}}, "in a circle"),
        ({"when": {"load": 'solver == "rk"'}}, "'load' is an input.*fix={'load': value}"),
        ({"when": {"order": 'load == "rk"'}}, "'load', a number, with a text"),
        ({"where": ["load <"]}, "is not an expression"),
        ({"where": ["1 < 2"]}, "names no parameter"),
        ({"where": ["E < 1"]}, "gives 3 numbers for each point"),
        ({"where": ["load > 1.5"]}, "only 0 of the first 1.* points of random satisfy load > 1.5"),
    ],
)
def test_rules_that_do_not_fit_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SweepError, match=complaint):
        plan_of("random:4", PARAMS, **options)


def test_a_condition_has_a_name_and_an_expression() -> None:
    assert parse_when(' order: solver == "a:b"') == ("order", 'solver == "a:b"')
    with pytest.raises(SweepError, match="expected NAME: CONDITION"):
        parse_when("order")
