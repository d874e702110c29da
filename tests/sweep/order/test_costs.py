"""The costs of points: expressions, numbers, an earlier sweep, the model, and workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import Array, Call, Hints, ModelInfo, Operation, Result
from farm.errors import FarmError, InvalidOutput, ModelFailed, Unavailable, WorkerLost
from farm.sweep.design.extension import longer_plan
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.store import COMPLETE
from farm.sweep.order.costs import (
    MODEL,
    NUMBERS,
    OPEN_CALLS,
    ROWS_A_CALL,
    CostRule,
    checked_costs,
    expression_costs,
    extended,
    parse_cost,
    timed,
    with_asked_costs,
    with_costs,
    with_model_costs,
    with_numbers,
)
from farm.sweep.run.evaluator import Threads
from farm.sweep.space import space
from tests.sweep.samples import BEAM, done, failed, plan_of, stored


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
    monkeypatch.setattr(space, "AT_ONCE", 7)
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
    assert checked_costs([0, 1, 2], 3, "cost").tolist() == [0.0, 1.0, 2.0]


NEW = plan_of("random:30", seed=2)


def earlier(path: Path, plan: Plan, run_s: Array) -> CostRule:
    """Make a sweep whose first points have these run times, but the first, which failed."""
    rows = [done(plan, point, t_run=time_s) for point, time_s in enumerate(run_s.tolist())]
    stored(path, plan, *rows, failed(0), state=COMPLETE)
    return parse_cost(f"sweep:{path}")


def test_an_expression_is_evaluated_and_numbers_are_checked() -> None:
    plan = with_costs(NEW, parse_cost("load * 2"))
    assert plan.cost is not None
    assert plan.cost == pytest.approx(2 * NEW.theta[:, 3])
    assert plan.cost_rule == "load * 2"
    assert with_numbers(NEW, range(30)).cost_rule == NUMBERS
    with pytest.raises(SweepError, match=r"expected \(30,\)"):
        with_numbers(NEW, range(29))


def test_run_times_of_an_earlier_sweep(tmp_path: Path) -> None:
    """Its parameters may be in another order, and their ranges different."""
    old = plan_of("random:400", {"load": "log:1e-4:1", "E": "0.9:2.1"}, seed=1)
    plan = with_costs(NEW, earlier(tmp_path / "old.h5", old, np.exp(2 * old.theta[:, 1])))
    assert plan.cost is not None
    assert np.corrcoef(plan.cost, np.exp(2 * NEW.theta[:, 0]))[0, 1] > 0.8


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
    rule = earlier(tmp_path / "old.h5", plan_of("random:20", **options), np.ones(20))
    with pytest.raises(SweepError, match="cost='sweep:") as error:
        with_costs(NEW, rule)
    assert complaint in str(error.value)


def test_other_fixed_values_are_another_sweep(tmp_path: Path) -> None:
    plans = [plan_of("random:20", {"E": "1:2"}, fixes={"load": load}) for load in (1, 2)]
    rule = earlier(tmp_path / "old.h5", plans[0], np.arange(1.0, 21.0))
    assert with_costs(plans[0], rule).cost is not None
    with pytest.raises(SweepError, match=r"the fixed values .*\[1\.0\]\], this sweep has"):
        with_costs(plans[1], rule)


def test_an_earlier_sweep_needs_some_run_times(tmp_path: Path) -> None:
    rule = earlier(tmp_path / "old.h5", NEW, np.ones(5))
    with pytest.raises(SweepError, match="4 finished points with a run time; expected 5 or more"):
        with_costs(NEW, rule)
    with pytest.raises(SweepError, match="does not exist"):
        with_costs(NEW, parse_cost("sweep:nowhere.h5"))


def test_a_model_s_method_gets_what_evaluate_gets_and_may_fail() -> None:
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


def test_points_without_a_run_time_are_not_counted() -> None:
    known = PointColumns.nothing(NEW.size)
    known.add(done(NEW, 3))
    known.add(done(NEW, 4, t_run=float("nan")))
    known.add(done(NEW, 5, t_run=0.0))
    known.add(failed(6, t_run=1.0))
    assert timed(known).tolist() == [3]


ASKED = replace(BEAM, operations=BEAM.operations | {Operation.COST})
HINTS = Hints("sweep-7", 3, chain="")


class Asked:
    """A farm that answers with the load of each row, or with what it was made with."""

    def __init__(self, answer: Array | FarmError | None = None, *, silent_after: int = 10**9):
        self.calls: list[tuple[Call, Hints]] = []
        self.futures: list[Future[Result]] = []
        self._answer = answer
        self._silent_after = silent_after

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        return ASKED

    def submit(self, call: Call, hints: Hints = HINTS) -> Future[Result]:
        self.calls.append((call, hints))
        future: Future[Result] = Future()
        self.futures.append(future)
        if isinstance(self._answer, FarmError):
            future.set_exception(self._answer)
        elif len(self.calls) <= self._silent_after:
            answer = call.inputs[1] if self._answer is None else self._answer
            future.set_result(Result((answer,)))
        return future


class Refuses(Asked):
    """A farm that accepts no call."""

    def submit(self, call: Call, hints: Hints = HINTS) -> Future[Result]:
        raise Unavailable("gone")


class Costly(farm.Model):
    inputs = {"E": 3, "load": 1}
    outputs = {"u": 4}

    def cost(self, inputs: farm.Inputs, config: farm.Config) -> float:
        return float(inputs["load"][0] * config.get("mesh", 1) + inputs["E"].sum())

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        return np.zeros(4)


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads({"beam": Costly()}, workers=2)
    yield made
    made.close()


def plan(points: int, **options: Any) -> Plan:
    return plan_of(f"random:{points}", info=ASKED, **options)


def test_each_point_has_the_cost_that_its_model_says(threads: Threads) -> None:
    """Points of one config share a call; the costs come back to where the points are."""
    params = {"E": "1:2", "load": "1:2", "mesh": "int:1:4"}
    made = plan_of("random:40", params, info=threads.describe("beam"))
    costs = with_asked_costs(made, threads, HINTS)
    expected = made.theta[:, 3] * made.theta[:, 4] + made.theta[:, :3].sum(axis=1)
    assert costs.cost == pytest.approx(expected)
    assert costs.cost_rule == MODEL


def test_one_caller_asks_in_calls_of_many_rows() -> None:
    asked = Asked()
    made = plan(2 * ROWS_A_CALL + 1)
    costs = with_asked_costs(made, asked, HINTS).cost
    assert costs is not None
    assert np.array_equal(costs, made.theta[:, 3])
    assert [call.rows for call, _ in asked.calls] == [ROWS_A_CALL, ROWS_A_CALL, 1]
    assert {hints for _, hints in asked.calls} == {HINTS}
    assert {call.operation for call, _ in asked.calls} == {Operation.COST}
    assert {call.config for call, _ in asked.calls} == {"{}"}


def test_a_call_of_large_points_fits_into_a_message() -> None:
    info = replace(ASKED, inputs=(replace(BEAM.inputs[0], shape=(2**18,)), BEAM.inputs[1]))
    made = plan_of("random:2", {"load": "1:2"}, info=info, fixes={"E": 1.0})
    asked = Asked()
    with_asked_costs(made, asked, HINTS)
    assert [call.rows for call, _ in asked.calls] == [1] * 2


def test_a_model_without_costs_and_other_orders_are_not_asked() -> None:
    asked = Asked()
    for made in (plan_of(info=BEAM), plan(20, order="given"), plan(20, order="shuffled")):
        assert with_asked_costs(made, asked, HINTS) is made
    assert not asked.calls


def test_busy_workers_are_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Open calls are few, and cancelled."""
    made = plan(5 * OPEN_CALLS, seed_key="seed")
    asked = Asked(silent_after=3)
    with caplog.at_level(logging.WARNING):
        assert with_asked_costs(made, asked, HINTS, silent_s=0.01) is made
    assert len(asked.calls) == OPEN_CALLS + 3
    assert all(future.cancelled() for future in asked.futures[3:])
    (record,) = caplog.records
    assert f"may be busy, have told 3 of {made.size} in time" in record.getMessage()
    assert with_asked_costs(made, Asked(), HINTS, patience_s=0.0) is made, "all together"


@pytest.mark.parametrize("asked", [Asked(WorkerLost("died")), Refuses()])
def test_calls_that_are_lost_leave_the_plan(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    made = plan(20)
    assert with_asked_costs(made, asked, HINTS) is made
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (ModelFailed("KeyError: 'mesh'"), "KeyError: 'mesh'; correct it"),
        (InvalidOutput("it is -1"), "it is -1; correct it"),
        (np.zeros(20), r"have the shapes \[\(20,\)\], expected \[\(20, 1\)\]"),
        (np.full((20, 1), -1.0), "point 0 is -1; expected a finite number, 0 or more"),
    ],
)
def test_a_method_that_fails_is_a_mistake(answer: Array | FarmError, complaint: str) -> None:
    with pytest.raises(SweepError, match=complaint):
        with_asked_costs(plan(20), Asked(answer), HINTS)
