"""Costs of a plan: evaluated, from an earlier sweep, from the model, or as numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.sweep.design.cost import CostRule, parse_cost
from farm.sweep.design.extension import longer_plan
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.order.given import (
    MODEL,
    NUMBERS,
    extended,
    timed,
    with_costs,
    with_model_costs,
    with_numbers,
)
from tests.sweep.samples import BEAM, done, failed, plan_of

NEW = plan_of("random:30", seed=2)


def earlier(path: Path, plan: Plan, points: int | None = None) -> CostRule:
    store = Store.create(path, plan)
    for point in range(plan.size if points is None else points):
        store.add(done(plan, point, t_run=float(1.0 + 10.0 * plan.theta[point, 0])))
    store.add(failed(0))
    store.close(COMPLETE, {})
    return parse_cost(f"sweep:{path}")


def test_an_expression_is_evaluated() -> None:
    plan = with_costs(NEW, parse_cost("load * 2"))
    assert plan.cost is not None
    assert plan.cost == pytest.approx(2 * NEW.theta[:, 3])
    assert plan.cost_rule == "load * 2"


def test_a_column_is_in_the_plan_already() -> None:
    plan = replace(NEW, cost=np.ones(30), cost_rule="column:c")
    assert with_costs(plan, CostRule("column", "c")) is plan


def test_run_times_of_an_earlier_sweep(tmp_path: Path) -> None:
    """Its parameters may be in another order, and their ranges different."""
    old = plan_of("random:400", {"load": "log:1e-4:1", "E": "0.9:2.1"}, seed=1)
    store = Store.create(tmp_path / "old.h5", old)
    for point in range(old.size):
        store.add(done(old, point, t_run=float(np.exp(2 * old.theta[point, 1]))))
    store.close(COMPLETE, {})
    plan = with_costs(NEW, parse_cost(f"sweep:{tmp_path}/old.h5"))
    assert plan.cost is not None
    assert np.corrcoef(plan.cost, np.exp(2 * NEW.theta[:, 0]))[0, 1] > 0.8


def test_a_sweep_that_still_runs_is_read(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "old.h5", NEW)
    for point in range(6):
        store.add(done(NEW, point))
    assert with_costs(NEW, parse_cost(f"sweep:{tmp_path}/old.h5")).cost is not None
    store.abandon()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"info": replace(BEAM, name="plate")}, "it has the model plate, this sweep has beam"),
        ({"config": {"a": 1}}, "it has the config {'a': 1}, this sweep has {}"),
        ({"params": {"E": "1:2"}, "fixes": {"load": 1}}, "it has the parameters ['E[0]', "),
        (
            {"params": {"E[0]": "1:2", "load": "1:2"}, "fixes": {"E": 4}},
            "it has the parameters ['E[0]', 'load'], this sweep has",
        ),
    ],
)
def test_an_earlier_sweep_of_something_else_is_refused(
    tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    rule = earlier(tmp_path / "old.h5", plan_of("random:20", **options))
    with pytest.raises(SweepError, match="cost='sweep:") as error:
        with_costs(NEW, rule)
    assert complaint in str(error.value)


def test_other_fixed_values_are_another_sweep(tmp_path: Path) -> None:
    plans = [plan_of("random:20", {"E": "1:2"}, fixes={"load": load}) for load in (1, 2)]
    rule = earlier(tmp_path / "old.h5", plans[0])
    assert with_costs(plans[0], rule).cost is not None
    with pytest.raises(SweepError, match=r"the fixed values .*\[1\.0\]\], this sweep has"):
        with_costs(plans[1], rule)


def test_an_earlier_sweep_needs_some_run_times(tmp_path: Path) -> None:
    rule = earlier(tmp_path / "old.h5", NEW, points=5)
    with pytest.raises(SweepError, match="4 finished points with a run time; expected 5 or more"):
        with_costs(NEW, rule)
    with pytest.raises(SweepError, match="does not exist"):
        with_costs(NEW, parse_cost("sweep:nowhere.h5"))


def test_numbers_are_checked() -> None:
    assert with_numbers(NEW, range(30)).cost_rule == NUMBERS
    with pytest.raises(SweepError, match=r"expected \(30,\)"):
        with_numbers(NEW, range(29))


def test_a_model_s_method_gets_what_evaluate_gets() -> None:
    seen: list[tuple[farm.Inputs, farm.Config]] = []

    def cost(inputs: farm.Inputs, config: farm.Config) -> float:
        seen.append((inputs, config))
        return float(inputs["load"][0] * config["mesh"] + inputs[0].sum())

    plan = plan_of("random:9", {"E": "1:2", "load": "1:2", "mesh": "int:1:4"})
    made = with_model_costs(plan, cost)
    assert made.cost_rule == MODEL
    expected = plan.theta[:, 3] * plan.theta[:, 4] + plan.theta[:, :3].sum(axis=1)
    assert made.cost == pytest.approx(expected)
    assert seen[0][0]["E"].shape == (3,)


def test_a_method_that_fails_is_one_line() -> None:
    with pytest.raises(SweepError, match=r"failed at point 0: KeyError: 'mesh'; correct it") as e:
        with_model_costs(NEW, lambda inputs, config: config["mesh"])
    assert "\n" not in str(e.value)
    with pytest.raises(SweepError, match="point 0 is -1; expected a finite number, 0 or more"):
        with_model_costs(NEW, lambda inputs, config: -1.0)


@pytest.mark.parametrize("rule", [NUMBERS, MODEL, "sweep:old.h5"])
def test_an_extended_sweep_drops_costs_that_it_cannot_evaluate(rule: str) -> None:
    plan = extended(longer_plan(replace(NEW, cost=np.ones(30), cost_rule=rule), 40))
    assert (plan.cost, plan.cost_rule) == (None, "")


def test_an_extended_sweep_evaluates_its_expression_again() -> None:
    plan = extended(longer_plan(with_costs(NEW, parse_cost("load")), 40))
    assert plan.cost == pytest.approx(plan.theta[:, 3])
    assert extended(longer_plan(NEW, 40)).cost is None


def test_points_without_a_run_time_are_not_counted(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.h5", NEW)
    store.add(done(NEW, 3))
    store.add(done(NEW, 4, t_run=float("nan")))
    store.add(done(NEW, 5, t_run=0.0))
    store.add(failed(6, t_run=1.0))
    assert timed(store.known).tolist() == [3]
    store.abandon()
