"""Names in expressions about points: inputs, config keys, words and texts."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.sweep.design.cost import expression_costs
from farm.sweep.errors import SweepError
from farm.sweep.space import scope as scope_module
from farm.sweep.space.scope import Scope, condition, parsed
from tests.sweep.samples import plan_of

PARAMS = {"E": "1:2", "load": "0:1", "solver": "choice:euler,rk,bdf", "order": "int:1:5"}
WHEN = {"order": 'solver != "euler"'}
TEXTS = ModelInfo(
    "t", (TensorInfo("name", (2,), "bytes"), TensorInfo("k", (1,))), (TensorInfo("y", (1,)),)
)


@pytest.mark.parametrize("rows", [1, 3, 4096])
def test_each_name_has_its_values(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_module, "AT_ONCE", rows)
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


def test_costs_and_texts_stay_apart() -> None:
    plan = plan_of("sobol:8", PARAMS)
    assert Scope(plan, texts=False).names == ["E", "load", "in0", "in1", "order"]
    assert np.all(expression_costs("order", plan) >= 1)


def test_a_cost_needs_what_all_points_have() -> None:
    plan = plan_of("sobol:8", PARAMS, when=WHEN)
    with pytest.raises(SweepError, match="it needs order, which some points do not have"):
        expression_costs("order", plan)
    with pytest.raises(SweepError, match="no parameter 'solver'"):
        expression_costs("solver", plan)
    plan = plan_of("sobol:8", PARAMS, when=WHEN, fixes={"order": 9})
    costs = expression_costs("order", plan)
    assert costs.tolist() == [plan.config_of(k)["order"] for k in range(8)]
