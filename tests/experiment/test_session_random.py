"""Random conversations of clients and the closed loop, against a plain model of the rules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farm.errors import InvalidInput
from farm.experiment.session import asked_event
from farm.experiment.state.events import Failed, RunPhase, RunState, Told
from farm.experiment.state.experiment import PENDING_LIMIT_S
from farm.experiment.work import Generated
from tests.experiment.talk import Fake, replayed, state

MACHINE = """
[common]
parnames = [x1, x2]
outcome_types = [{kind}]
strategy_names = [sobol, manual, opt, random]
lb = [0, 0]
ub = [10, 10]
[sobol]
generator = SobolGenerator
min_asks = {min_asks}
min_total_tells = {min_tells}
min_total_outcome_occurrences = {occurrences}
[manual]
generator = ManualGenerator
[ManualGenerator]
points = [[1, 2], [1, 2], [3, 4], [5, 6]]
[opt]
generator = OptimizeAcqfGenerator
model = {model}
acqf = {acqf}
max_asks = 5
min_asks = 3
refit_every = 2
[random]
generator = RandomGenerator
min_asks = 2
"""


class Conversations(RuleBasedStateMachine):
    """Clients send messages in any order; a second implementation of the rules checks them."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = Fake()
        self.given: list[dict[str, Any]] = []
        self.index, self.asks, self.ended = 0, 0, False
        self.ones = self.zeros = self.data = self.trials = 0
        self.asked = self.fillers = 0
        self.binary, self.limits = False, (0, 0, 0)

    @precondition(lambda self: not self.talk.server.experiments)
    @rule(
        binary=st.booleans(),
        min_asks=st.integers(0, 4),
        min_tells=st.integers(0, 4),
        occurrences=st.integers(0, 2),
    )
    def set_up(self, binary: bool, min_asks: int, min_tells: int, occurrences: int) -> None:
        text = MACHINE.format(
            kind="binary" if binary else "continuous",
            model="GPClassificationModel" if binary else "GPRegressionModel",
            acqf="MCLevelSetEstimation" if binary else "qLogNoisyExpectedImprovement",
            min_asks=min_asks,
            min_tells=min_tells,
            occurrences=occurrences if binary else 0,
        )
        self.binary = binary
        self.limits = min_asks, min_tells, occurrences if binary else 0
        assert self.talk.setup(text) == 0

    ready = precondition(lambda self: bool(self.talk.server.experiments))

    def met(self) -> bool:
        if self.ended:
            return True
        if not self.data:
            return False
        min_asks, min_tells, occurrences = self.limits
        if self.index == 0:
            few = self.binary and min(self.ones, self.zeros) < occurrences
            return self.asks >= min_asks and self.data >= min_tells and not few
        if self.index == 1:
            return self.asks - self.fillers >= 4
        if self.index == 2:
            balanced = not self.binary or min(self.ones, self.zeros) >= 1
            return self.asks >= 5 or (self.asks >= 3 and balanced)
        return self.asks >= 2 and (not self.binary or min(self.ones, self.zeros) >= 1)

    def advance(self) -> None:
        if self.met() and self.index < 3:
            self.index, self.asks, self.fillers, self.ended = self.index + 1, 0, 0, False

    @ready
    @rule(count=st.integers(0, 3))
    def ask(self, count: int) -> None:
        if count:
            self.advance()
        expected = min(count, 4 - self.asks + self.fillers) if self.index == 1 else count
        before, index = self.talk.current.asked, self.talk.current.strategy_index
        answer = self.talk.say("ask", {"num_points": count})
        assert answer["num_points"] == expected
        if self.index != index:
            ours = set(self.talk.current.pending) - set(self.talk.current.loop.evaluating)
            assert ours == set(range(before, before + expected)), "older ones are released"
        self.asks += expected
        self.asked += expected
        assert answer["is_finished"] is (self.index == 3 and self.met())
        for x1, x2 in zip(*answer["config"].values(), strict=True):
            self.given.append({"x1": x1, "x2": x2})

    @ready
    @rule(filler=st.booleans())
    def the_loop_asks(self, filler: bool) -> None:
        self.advance()
        experiment = self.talk.current
        work = experiment.generate(1, filler=filler)
        generated = self.talk.execute(work)
        assert isinstance(generated, Generated)
        event = asked_event(experiment, work, generated, self.talk.now)
        self.talk.server.apply(replace(event, run=True))
        self.asks += len(event.ids)
        self.asked += len(event.ids)
        self.fillers += len(event.ids) * filler

    @precondition(lambda self: self.talk.server.experiments and self.talk.current.loop.evaluating)
    @rule(yes=st.booleans(), newest=st.booleans())
    def the_loop_tells(self, yes: bool, newest: bool) -> None:
        evaluating = self.talk.current.loop.evaluating
        id = list(evaluating)[-1 if newest else 0]
        event = Told(
            experiment=0,
            time=self.talk.now,
            points=evaluating[id][None],
            outcomes=np.array([[float(yes)]]),
            ids=(id,),
        )
        self.talk.server.apply(event)
        assert id not in self.talk.current.loop.evaluating
        assert id not in self.talk.current.pending
        self.trials += 1
        self.data += 1
        self.ones += yes
        self.zeros += not yes

    @ready
    @rule(yes=st.booleans(), finite=st.booleans(), model=st.booleans(), data=st.data())
    def tell(self, yes: bool, finite: bool, model: bool, data: st.DataObject) -> None:
        foreign = {"x1": 99.0, "x2": 99.0}
        config = data.draw(st.sampled_from([*self.given, foreign]))
        outcome = float(yes) if finite else math.nan
        added = int(finite and model)
        before = len(self.talk.current.pending)
        known = self.talk.current.match(np.array([[[config["x1"], config["x2"]]]]))
        assert self.talk.tell(config, outcome, model_data=model) == (1, added)
        assert before - len(self.talk.current.pending) == (known != (None,))
        self.trials += 1
        self.data += added
        self.ones += added * yes
        self.zeros += added * (not yes)

    @ready
    @rule()
    def refused(self) -> None:
        before = state(self.talk.current)
        for type, message in (
            ("tell", {"config": {"x1": 1}, "outcome": 1}),
            ("ask", {"num_points": -1}),
            ("query", {"query_type": "median"}),
            ("resume", {"strat_id": 5}),
            ("setup", {"config_str": "[common]"}),
        ):
            with pytest.raises(InvalidInput):
                self.talk.say(type, message)
        assert state(self.talk.current) == before

    @ready
    @rule()
    def finish(self) -> None:
        assert self.talk.say("finish_strategy")["finished_strat_idx"] == self.index
        self.ended = True

    @ready
    @rule(seconds=st.sampled_from([1.0, PENDING_LIMIT_S]))
    def time_passes(self, seconds: float) -> None:
        self.talk.now += seconds

    @ready
    @rule(phase=st.sampled_from(RunPhase))
    def the_loop(self, phase: RunPhase) -> None:
        self.talk.server.apply(RunState(experiment=0, time=self.talk.now, phase=phase))

    @ready
    @rule()
    def a_point_fails(self) -> None:
        for id in list(self.talk.current.pending)[:1]:
            self.talk.server.apply(
                Failed(experiment=0, time=self.talk.now, ids=(id,), error="it broke")
            )

    @ready
    @invariant()
    def the_rules_hold(self) -> None:
        experiment = self.talk.current
        experiment.check()
        assert experiment.strategy_index == self.index
        assert (experiment.asked, experiment.told) == (self.asked, self.trials)
        assert experiment.modelled == self.data
        assert set(experiment.loop.evaluating) <= set(experiment.pending)
        assert experiment.finished is (self.index == 3 and self.met())

    def teardown(self) -> None:
        again = replayed(self.talk.server.events)
        assert [state(e) for e in again.values()] == [
            state(e) for e in self.talk.server.experiments.values()
        ]


TestConversations = Conversations.TestCase
TestConversations.settings = settings(
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
