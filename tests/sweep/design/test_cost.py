"""Costs from text: the grammar, arithmetic over all points, and one-line errors."""

from __future__ import annotations

import numpy as np
import pytest

from farm.sweep.design.cost import CostRule, checked_costs, expression_costs, parse_cost
from farm.sweep.errors import SweepError
from farm.sweep.space import scope
from tests.sweep.samples import plan_of


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (" n**3 ", CostRule("expression", "n**3")),
        ("sum(x[0:2])", CostRule("expression", "sum(x[0:2])")),
        ("column: hours", CostRule("column", "hours")),
        ("sweep:a b/old.h5", CostRule("sweep", "a b/old.h5")),
    ],
)
def test_grammar(text: str, rule: CostRule) -> None:
    assert parse_cost(text) == rule
    assert parse_cost(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("n**", "it is not an expression"),
        ("column:", "expected column:NAME"),
        ("__import__('os')", "expected numbers and names"),
        ("open(n)", "which is not offered"),
        ("old.h5", "which is not offered"),
    ],
)
def test_mistakes_of_grammar(text: str, complaint: str) -> None:
    with pytest.raises(SweepError, match="cost") as error:
        parse_cost(text)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_an_expression_has_a_value_for_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "AT_ONCE", 7)
    plan = plan_of("random:20", {"E[0]": "1:2", "load": "1:9", "mesh": "int:1:5"},
                   fixes={"E": 3.0, "order": 2, "solver": "lu"})  # fmt: skip
    of = {p.name: plan.theta[:, j] for j, p in enumerate(plan.parameters)}
    for text, expected in (
        ("load", of["load"]),
        ("in1 ** 2", of["load"] ** 2),
        ("load[0] * mesh ** order", of["load"] * of["mesh"] ** 2),
        ("E[0] + E[1] + in0[2]", of["E[0]"] + 6.0),
        ("max(E)", np.full(20, 3.0)),
        ("1", np.ones(20)),
    ):
        assert expression_costs(text, plan) == pytest.approx(expected), text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("n * load", "no parameter 'n'; expected one of E, load, in0, in1, mesh, order"),
        ("solver", "no parameter 'solver'"),
        ("E", "gives 3 numbers for each point; expected one"),
        ("-load", "the cost of point 0 is -"),
        ("1 / (mesh - mesh)", "the cost of point 0 is inf; expected a finite number, 0 or more"),
    ],
)
def test_costs_are_finite_and_not_negative(text: str, complaint: str) -> None:
    plan = plan_of(
        "random:4",
        {"E": "1:2", "load": "1:9", "mesh": "int:1:5"},
        fixes={"order": 2, "solver": "x"},
    )
    with pytest.raises(SweepError) as error:
        expression_costs(text, plan)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("costs", "complaint"),
    [
        ([1, 2], r"cost has the shape \(2,\); expected \(3,\), a number for each point"),
        (3.0, r"shape \(\)"),
        ([1, float("nan"), 2], "point 1 is nan"),
        (["a", 1, 2], "expected a number for each point"),
    ],
)
def test_one_number_for_each_point(costs: object, complaint: str) -> None:
    with pytest.raises(SweepError, match=complaint):
        checked_costs(costs, 3, "cost")  # type: ignore[arg-type]  # users pass anything


def test_zero_is_a_cost() -> None:
    assert checked_costs([0, 1, 2], 3, "cost").tolist() == [0.0, 1.0, 2.0]
