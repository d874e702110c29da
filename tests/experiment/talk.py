"""Conversations with sessions, without sockets or a journal: steps are carried out at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from farm.errors import InvalidRequest
from farm.experiment import host
from farm.experiment.ask.execute import execute
from farm.experiment.session import Session, Step
from farm.experiment.state.events import Event, Told, from_json, to_json
from farm.experiment.state.experiment import Experiment
from farm.experiment.work import Answered, Generated, Query, Work
from farm.protocols.aepsych.codec import AepsychFramer, AepsychRequest, encode_answer

TWO = """
[common]
parnames = [x1, x2]
outcome_types = [continuous]
strategy_names = [init_strat]
[x1]
par_type = continuous
lower_bound = -5
upper_bound = 10
[x2]
par_type = continuous
lower_bound = 0
upper_bound = 15
[init_strat]
generator = SobolGenerator
min_asks = 6
[SobolGenerator]
seed = 123
"""
"""A config of two parameters and one strategy without a model."""
TYPES = """
[common]
parnames = [c, l, n, flag, k, colour, choice]
outcome_types = [continuous]
strategy_names = [init_strat]
[c]
lower_bound = -1
upper_bound = 1
normalize_scale = False
[l]
par_type = Continuous
lower_bound = 0.001
upper_bound = 1e1
log_scale = True
[n]
par_type = integer
lower_bound = 1
upper_bound = 5.0
[flag]
par_type = binary
[k]
par_type = fixed
value = 4.5
[colour]
par_type = fixed
value = light blue
[choice]
par_type = categorical
choices = [red, "dark, green", blue]
[init_strat]
generator = SobolGenerator
min_asks = 6
"""
"""A config of each kind of parameter, in several spellings."""
PAIRS = TWO.replace("[continuous]", "[binary]").replace("[common]", "[common]\nstimuli_per_trial=2")
MANUAL = TWO.replace(
    "generator = SobolGenerator\nmin_asks = 6",
    "generator = ManualGenerator\n[ManualGenerator]\npoints = [[1, 0.5], [2, 3], [3, 0], [4.5, 1]]"
    "\nshuffle = False",
)
OUTCOMES = TWO.replace(
    "outcome_types = [continuous]",
    "outcome_types = [binary, continuous]\noutcome_names = [responded, size]",
)
MODEL = (
    TWO.replace("strategy_names = [init_strat]", "strategy_names = [init_strat, opt_strat]")
    + """
[opt_strat]
generator = OptimizeAcqfGenerator
model = GPRegressionModel
min_asks = 4
[OptimizeAcqfGenerator]
acqf = qLogNoisyExpectedImprovement
"""
)
FARM = TWO + "\n[farm]\nmodel = branin\noutcome.outcome_1 = -out0[0]\n"


def applied(experiments: dict[int, Experiment], event: Event) -> None:
    """Apply an event, and check the resulting state."""
    host.applied(experiments, event)
    experiments[event.experiment].check()


def replayed(events: list[Event]) -> dict[int, Experiment]:
    """Return the experiments restored from the same events, encoded as text and decoded."""
    experiments: dict[int, Experiment] = {}
    for event in events:
        applied(experiments, from_json(json.loads(json.dumps(to_json(event), allow_nan=False))))
    return experiments


def state(experiment: Experiment) -> dict[str, Any]:
    """Return all visible state of an experiment, for comparison."""
    data = [experiment.data(i) for i in range(len(experiment.config.strategies))]
    return {
        "snapshot": experiment.snapshot(),
        "pending": {id: (point.tolist(), time) for id, (point, time) in experiment.pending.items()},
        "data": [(d.x.tolist(), d.y.tolist(), d.fit_to) for d in data],
        "next": (experiment.asked, experiment.generate(1).strategy, experiment.generate(1).asked),
        "filler": experiment.generate(1, filler=True).asked,
    }


class Server:
    """The server that sessions see. events: all events so far."""

    db_name = "experiments.db"

    def __init__(self) -> None:
        self.experiments: dict[int, Experiment] = {}
        self.events: list[Event] = []

    @property
    def next_number(self) -> int:
        return len(self.experiments)

    def apply(self, event: Event) -> None:
        self.events.append(event)
        applied(self.experiments, event)


class Talk:
    """One client of a server. now: Unix seconds, set by the test."""

    def __init__(self, server: Server | None = None) -> None:
        self.server = server or Server()
        self.session = Session(self.server)  # type: ignore[arg-type]  # all that it uses
        self.now = 1000.0
        self.closed = False

    def request(self, type: str, message: Any = None, **beside: Any) -> AepsychRequest:
        """Return a request as decoded from the wire. Raises InvalidRequest."""
        framer = AepsychFramer()
        framer.feed(json.dumps({"type": type, "message": message, **beside}).encode())
        request = framer.next()
        if not isinstance(request, AepsychRequest):
            raise InvalidRequest(request.error if request else "there is more to come")
        return request

    def step(self, type: str, message: Any = None, **beside: Any) -> Step:
        """Return the session's next step for a message."""
        return self.session.receive(self.request(type, message, **beside), self.now)

    def do(self, step: Step) -> Step:
        """Carry out all steps; return the last one."""
        while True:
            for event in step.events:
                self.server.apply(event)
            if step.work is None:
                self.session.took(step)
                self.closed = self.closed or step.close
                return step
            assert step.then is not None
            assert step.answer is None
            work = step.work
            step = step.then(work() if callable(work) else self.execute(work), self.now)

    def execute(self, work: Work) -> Generated | Answered:
        return execute(work)

    def say(self, type: str, message: Any = None, **beside: Any) -> dict[str, Any]:
        """Return the answer to a message, as a client reads it. Raises FarmError."""
        answer = self.do(self.step(type, message, **beside)).answer
        assert answer is not None
        read = json.loads(encode_answer(answer))
        assert isinstance(read, dict)
        return read

    def setup(self, config: str | Mapping[str, Any] = TWO) -> int:
        """Set up a new experiment; return its number."""
        key = "config_str" if isinstance(config, str) else "config_dict"
        number = self.say("setup", {key: config})["strat_id"]
        assert isinstance(number, int)
        return number

    def ask(self, count: int = 1) -> dict[str, Any]:
        """Return the config in the answer to an ask."""
        config = self.say("ask", {"num_points": count})["config"]
        assert isinstance(config, dict)
        return config

    def tell(self, config: Mapping[str, Any], outcome: Any, **extra: Any) -> tuple[int, int]:
        """Tell outcomes; return the trials recorded, and the data added to the model."""
        answer = self.say("tell", {"config": config, "outcome": outcome, **extra})
        assert list(answer) == ["trials_recorded", "model_data_added"]
        return answer["trials_recorded"], answer["model_data_added"]

    @property
    def last_told(self) -> Told:
        """Return the last event, a tell."""
        event = self.server.events[-1]
        assert isinstance(event, Told)
        return event

    @property
    def current(self) -> Experiment:
        """Return the current experiment."""
        assert self.session.current is not None
        return self.server.experiments[self.session.current]


class Fake(Talk):
    """A client without surrogates: their work is stored, and answered with made-up values."""

    def __init__(self, server: Server | None = None) -> None:
        super().__init__(server)
        self.work: list[Work] = []
        self.notes = ""

    def execute(self, work: Work) -> Generated | Answered:
        self.work.append(work)
        if isinstance(work, Query):
            x = work.x if work.x is not None else np.full((1, 1, 2), 1.5)
            return Answered(x, (0.25,) * len(work.config.outcomes))
        if work.config.strategies[work.strategy].surrogate is None:
            return super().execute(work)
        points = np.full((work.count, 1, 2), 1.25) + np.arange(work.count)[:, None, None]
        return Generated(points, note=self.notes)

    def query(self, **message: Any) -> Query:
        """Return the work of a query."""
        self.say("query", message)
        query = self.work[-1]
        assert isinstance(query, Query)
        return query
