"""The state derived from events: changes of strategy, pending points, and modelled trials."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.definition import (
    Acquisition,
    Config,
    Generator,
    Outcome,
    OutcomeKind,
    Parameter,
    Strategy,
    Surrogate,
)
from farm.experiment.state.events import Asked, Failed, Finished, Released, Told
from farm.experiment.state.experiment import MAX_PENDING, PENDING_LIMIT_S, Experiment

SOBOL = Generator("SobolGenerator", "SobolGenerator")
MANUAL = Generator("ManualGenerator", "ManualGenerator", {"points": "[[1, 2], [3, 4], [5, 6]]"})
OPTIMISED = Generator(
    "OptimizeAcqfGenerator",
    "OptimizeAcqfGenerator",
    acquisition=Acquisition("qUpperConfidenceBound", "qUpperConfidenceBound"),
)
MODEL = Surrogate("GPRegressionModel", "GPRegressionModel")
LAST = Strategy("last", SOBOL)


def config(*strategies: Strategy, binary: bool = False) -> Config:
    kind = OutcomeKind.BINARY if binary else OutcomeKind.CONTINUOUS
    return Config(
        text="",
        parameters=(Parameter("x", upper=100.0), Parameter("y", upper=100.0)),
        outcomes=(Outcome("outcome_1", kind),),
        strategies=strategies,
    )


class Driven:
    """An experiment, and methods that apply events to it."""

    def __init__(self, *strategies: Strategy, binary: bool = False) -> None:
        self.experiment = Experiment(0, config(*strategies, binary=binary))
        self.now = 0.0

    def ask(self, count: int = 1, *, post_range: float | None = None, **more: Any) -> int:
        """Ask for points; return the strategy that generates them."""
        work = self.experiment.generate(count, filler=more.get("filler", False))
        first = self.experiment.asked
        points = np.arange(first, first + count)[:, None, None] * np.ones((1, 2))
        self.apply(
            Asked(
                experiment=0,
                time=self.now,
                points=points,
                ids=tuple(range(first, first + count)),
                strategy=work.strategy,
                post_range=post_range,
                **more,
            )
        )
        return work.strategy

    def tell(self, *outcomes: float, model_data: bool = True) -> None:
        points = np.full((len(outcomes), 1, 2), 50.0)
        self.told(points, outcomes, (None,) * len(outcomes), model_data)

    def told(
        self, points: Array, outcomes: Any, ids: tuple[int | None, ...], model_data: bool = True
    ) -> None:
        y = np.array(outcomes, dtype=float).reshape(-1, 1)
        self.apply(
            Told(
                experiment=0,
                time=self.now,
                points=points,
                outcomes=y,
                ids=ids,
                model_data=model_data,
            )
        )

    def finish(self) -> None:
        index = self.experiment.strategy_index
        self.apply(Finished(experiment=0, time=self.now, strategy=index))

    def apply(self, event: Any) -> None:
        self.experiment.apply(event)
        self.experiment.check()

    def met(self) -> bool:
        """Whether the current strategy's rules are met: the next ask uses the next strategy."""
        return self.experiment.generate(1).strategy > self.experiment.strategy_index

    def finished(self) -> bool:
        return self.experiment.finished


# End of a strategy

FIRST, SECOND = Strategy("first", SOBOL), Strategy("second", SOBOL)
RULES: dict[str, tuple[tuple[Strategy, ...], str]] = {
    "a strategy without rules ends with the first data": (
        (FIRST, LAST),
        "ask 10; unmet; unmodelled 1; tell nan; unmet; tell 1; met",
    ),
    "asks in flight do not end a strategy, but asks and any data do": (
        (replace(FIRST, min_asks=6), LAST),
        "ask 6; unmet; tell 1; met",
    ),
    "min_asks are the strategy's own, and tells are of all": (
        (replace(FIRST, min_asks=3), replace(SECOND, min_asks=2, min_total_tells=5), LAST),
        "ask 3; tell 1 2 3; ask 1; in 1; tell 4 5; unmet; ask 1; in 1; met",
    ),
    "max_asks end a strategy, whatever else it waits for": (
        (replace(FIRST, min_asks=2, max_asks=4, min_total_tells=100), LAST),
        "ask 4; unmet; tell 1; met",
    ),
    "a list ends a strategy when it is used up": (
        (Strategy("a", MANUAL, min_asks=100, min_total_outcome_occurrences=7), LAST),
        "ask 2; tell 1; unmet; ask 1; met",
    ),
    "fillers are not of the list": (
        (Strategy("a", MANUAL), LAST),
        "ask 2; fill 2; tell 1; unmet; ask 1; met",
    ),
    "other rules do not end a list early": (
        (Strategy("a", MANUAL), LAST),
        "ask 2; tell 1 2; unmet",
    ),
    "ones and zeros are counted over the whole experiment": (
        (replace(FIRST, min_asks=1, min_total_outcome_occurrences=2), LAST),
        "ask 1; tell 1 1 1 0; unmet; unmodelled 0; unmet; tell 0; met",
    ),
    "the range of the surrogate ends a strategy": (
        (Strategy("a", OPTIMISED, MODEL, min_post_range=0.5), LAST),
        "ask 1; tell 1; unmet; range 0.25; unmet; range 0.5; in 0; met",
    ),
    "a strategy that runs for ever ends by request only": (
        (replace(FIRST, run_indefinitely=True, max_asks=1), LAST),
        "ask 5; tell 1; unmet; finish; met",
    ),
    "a request ends a strategy without data; one that comes late does nothing": (
        (replace(FIRST, min_asks=5), SECOND, LAST),
        "finish; in 0; ask 1; in 1; ask 1; in 1; late; ask 1; in 1",
    ),
    "a change is one step an ask, and the last strategy stays": (
        (FIRST, SECOND, LAST),
        "ask 1; tell 1; ask 1; in 1; ask 1; in 2; ask 2; in 2; finished",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_of_strategies(rule: str) -> None:
    strategies, script = RULES[rule]
    driven = Driven(*strategies, binary=any(s.min_total_outcome_occurrences for s in strategies))
    for step in script.split("; "):
        word, *rest = step.split()
        numbers = [float(number) for number in rest]
        match word:
            case "ask" | "fill":
                driven.ask(int(numbers[0]), filler=word == "fill")
            case "range":
                driven.ask(post_range=numbers[0])
            case "tell" | "unmodelled":
                driven.tell(*numbers, model_data=word == "tell")
            case "finish":
                driven.finish()
            case "late":
                driven.apply(Finished(experiment=0, time=0.0, strategy=0))
            case "in":
                assert driven.experiment.strategy_index == numbers[0], step
            case "met" | "unmet":
                assert driven.met() == (word == "met"), step
            case "finished":
                assert driven.finished()


def test_an_experiment_is_finished_in_its_last_strategy_alone() -> None:
    driven = Driven(Strategy("a", SOBOL), Strategy("b", SOBOL, min_total_tells=25))
    driven.ask()
    driven.tell(*range(24))
    assert not driven.finished()
    assert driven.ask() == 1
    assert not driven.finished()
    driven.tell(25.0)
    assert driven.finished()
    # As in an answer, whose points are counted before they are recorded.
    other = Driven(Strategy("a", SOBOL), Strategy("b", SOBOL, min_asks=2))
    other.tell(1.0)
    assert [other.experiment.finished_after(1, n) for n in (0, 1, 2)] == [False, False, True]
    assert not other.experiment.finished_after(0, 5)
    alone = Driven(Strategy("first", OPTIMISED, MODEL, min_post_range=0.5))
    alone.tell(1.0)
    assert [alone.experiment.finished_after(0, 1, span) for span in (0.25, 0.5)] == [False, True]


# Pending points


def test_a_change_of_strategy_releases_what_clients_asked_for() -> None:
    driven = Driven(Strategy("a", SOBOL, min_asks=3), Strategy("b", OPTIMISED, MODEL))
    driven.ask(2)
    driven.ask(1, run=True)
    driven.tell(1.0)
    work = driven.experiment.generate(1)
    assert work.strategy == 1
    assert work.pending.tolist() == [[[2.0, 2.0]]], "the closed loop is about to tell its own"
    driven.ask()
    assert list(driven.experiment.pending) == [2, 3]
    assert driven.experiment.generate(1).pending[:, 0, 0].tolist() == [2.0, 3.0]
    assert driven.experiment.generate(1, without=(3,)).pending[:, 0, 0].tolist() == [2.0]


def test_points_leave_when_told_failed_or_released() -> None:
    driven = Driven(LAST)
    driven.ask(5)
    points = np.array([[[3.0, 3.0]], [[9.0, 9.0]]])
    assert driven.experiment.match(points) == (3, None)
    driven.told(points, [1, 2], (3, None))
    driven.apply(Failed(experiment=0, time=0.0, ids=(1,), error="it broke", attempts=3))
    driven.apply(Released(experiment=0, time=0.0, ids=(0, 1, 77)))
    assert list(driven.experiment.pending) == [2, 4]
    snapshot = driven.experiment.snapshot()
    assert (snapshot.asked, snapshot.told, snapshot.failed, snapshot.pending) == (5, 2, 1, 2)


def test_points_are_matched_exactly_first_and_within_rounding_then() -> None:
    driven = Driven(LAST)
    driven.ask(4)
    near = 1.0 + 1e-7
    points = np.array([[[near, near]], [[1.0, 1.0]], [[near, near]], [[3.0, 3.0]], [[0.5, 0.5]]])
    # If the near point went first, it would take the match of the equal one.
    assert driven.experiment.match(points) == (None, 1, None, 3, None)
    assert driven.experiment.match(points[:1]) == (1,)
    assert driven.experiment.match(points[:0]) == ()
    assert Driven(LAST).experiment.match(points[:2]) == (None, None)


def test_what_is_pending_for_long_expires_unless_the_loop_has_it() -> None:
    driven = Driven(LAST)
    driven.ask(2)
    driven.ask(1, run=True)
    driven.now = 10.0
    driven.ask()
    assert driven.experiment.expired(PENDING_LIMIT_S) == ()
    assert driven.experiment.expired(PENDING_LIMIT_S + 5.0) == (0, 1)
    assert driven.experiment.expired(PENDING_LIMIT_S + 11.0) == (0, 1, 3)


def test_of_very_many_points_the_oldest_are_forgotten() -> None:
    driven = Driven(LAST)
    driven.ask(MAX_PENDING)
    driven.ask(5)
    assert len(driven.experiment.pending) == MAX_PENDING
    assert min(driven.experiment.pending) == 5


# Points still wanted


def test_as_many_points_are_wanted_as_the_rules_ask_for() -> None:
    driven = Driven(Strategy("a", SOBOL, min_asks=4, min_total_tells=6, max_asks=5), LAST)
    assert driven.experiment.still_wanted() == 5, "six tells are wanted, five asks allowed"
    driven.ask(2, run=True)
    assert driven.experiment.still_wanted() == 3, "two are in evaluation"
    driven.tell(1, 2, 3)
    assert driven.experiment.still_wanted() == 2, "two asks are left"
    driven.ask(2)
    assert driven.experiment.still_wanted() == 1, "one has no outcome yet"
    driven.tell(4)
    assert driven.experiment.still_wanted() is None, "later points are of the next strategy"
    driven.finish()
    assert driven.experiment.still_wanted() is None


def test_of_a_list_what_is_left_of_it_is_wanted() -> None:
    for strategies, after in (((Strategy("a", MANUAL),), 0), ((Strategy("a", MANUAL), LAST), None)):
        driven = Driven(*strategies)
        assert driven.experiment.still_wanted() == 3
        driven.ask(2)
        driven.ask(1, filler=True)
        assert driven.experiment.still_wanted() == 1
        driven.ask(1)
        assert driven.experiment.still_wanted() == after


def test_of_the_last_strategy_nothing_is_wanted_once_all_is_on_its_way() -> None:
    driven = Driven(Strategy("a", SOBOL, min_asks=2), binary=True)
    driven.ask(2, run=True)
    assert driven.experiment.still_wanted() == 0
    driven.told(np.zeros((1, 1, 2)), [1.0], (0,))
    assert driven.finished()
    assert driven.experiment.still_wanted() == 0
    spread = Driven(Strategy("a", SOBOL, min_asks=1, min_total_outcome_occurrences=1), binary=True)
    spread.ask(1, run=True)
    spread.tell(1.0)
    assert spread.experiment.still_wanted() is None, "the number of points until a zero is unknown"
    for_ever = Driven(Strategy("a", SOBOL, run_indefinitely=True))
    assert for_ever.experiment.still_wanted() is None


# Modelled trials


def test_a_surrogate_is_fitted_again_after_so_many_trials() -> None:
    model = Strategy("model", OPTIMISED, MODEL, refit_every=3)
    driven = Driven(Strategy("first", SOBOL, min_asks=1), model)
    assert driven.experiment.data(1).fit_to == 0
    driven.ask()
    driven.tell(*range(5))
    assert driven.experiment.data(1).fit_to == 5, "as at its start"
    driven.ask()
    fitted = []
    for outcome in range(7):
        fitted.append(driven.experiment.data(1).fit_to)
        driven.tell(float(outcome))
    assert fitted == [5, 5, 5, 8, 8, 8, 11]
    always = Driven(Strategy("model", OPTIMISED, MODEL))
    always.tell(1.0, 2.0, 3.0)
    assert always.experiment.data(0).fit_to == 3
    first = Driven(model)
    first.tell(1.0)
    assert first.experiment.data(0).fit_to == 1
    first.tell(1.0, 2.0)
    assert first.experiment.data(0).fit_to == 3


def test_only_the_last_trials_are_modelled_where_the_strategy_says_so() -> None:
    driven = Driven(Strategy("model", OPTIMISED, MODEL, keep_most_recent=3, refit_every=10))
    driven.tell(1.0, 2.0)
    assert driven.experiment.data(0).y.tolist() == [[1.0], [2.0]]
    driven.tell(3.0, math.nan, 4.0)
    data = driven.experiment.data(0)
    assert data.y.tolist() == [[2.0], [3.0], [4.0]]
    assert data.fit_to == 3


def test_queries_are_for_the_strategy_with_a_model_that_is_next() -> None:
    model, plain = Strategy("model", OPTIMISED, MODEL), Strategy("plain", SOBOL)
    assert Driven(plain).experiment.with_surrogate() is None
    assert Driven(plain, model, model).experiment.with_surrogate() == 1
    assert Driven(model, model).experiment.with_surrogate() == 0
    driven = Driven(model, replace(plain, name="end"))
    driven.finish()
    driven.ask()
    assert driven.experiment.with_surrogate() == 0


# Sequences


def test_sequences_go_on_and_fillers_have_their_own() -> None:
    driven = Driven(Strategy("a", SOBOL, min_asks=6), LAST)
    driven.ask(3)
    driven.ask(2, filler=True)
    driven.ask(1)
    assert driven.experiment.generate(1).asked == 4
    filler = driven.experiment.generate(1, filler=True)
    assert (filler.asked, filler.filler) == (2, True)
    driven.tell(1.0)
    assert driven.ask() == 1, "fillers are asks of the strategy too"
    assert driven.experiment.generate(1).asked == 1
    assert driven.experiment.generate(1, filler=True).asked == 2


def test_fillers_that_come_as_their_strategy_was_left_do_not_bring_it_back() -> None:
    driven = Driven(Strategy("a", SOBOL, min_asks=1), Strategy("b", SOBOL, min_asks=3))
    driven.ask()
    driven.tell(1.0)
    assert driven.ask() == 1
    late = Asked(
        experiment=0,
        time=0.0,
        points=np.zeros((2, 1, 2)),
        ids=(2, 3),
        strategy=0,
        filler=True,
        post_range=9.0,
    )
    driven.apply(late)
    assert driven.experiment.strategy_index == 1
    assert driven.experiment.asked == 4
    assert driven.experiment.generate(1).asked == 1
    assert driven.experiment.generate(1, filler=True).asked == 2
    assert not driven.finished()
    driven.ask(2)
    assert driven.finished()


def test_events_of_others_are_refused() -> None:
    driven = Driven(LAST)
    with pytest.raises(InvalidInput, match="an event of experiment 3, not 0"):
        driven.experiment.apply(Finished(experiment=3, time=0.0, strategy=0))
