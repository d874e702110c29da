"""One client's conversation about experiments: takes a message, returns events, work and an answer.

A session changes no experiment: a Step holds the events of a message, and its owner stores and
applies them. So a message that is refused, or cannot be stored, has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, uuid5

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment import messages
from farm.experiment.ask.execute import can_execute
from farm.experiment.config.definition import Config, Generator, ParameterKind
from farm.experiment.config.reader import read_config
from farm.experiment.state.events import Asked, Event, Finished, Released, SetUp, Told
from farm.experiment.state.experiment import Experiment
from farm.experiment.state.seeding import InitialTrials, seeds_of, unread_seed_data
from farm.experiment.work import Answered, Generate, Generated, Work
from farm.protocols.aepsych.codec import AepsychRequest

if TYPE_CHECKING:
    from farm.experiment.host import Experiments

SETUPS = -1
"""The turn shared by all setups: they are numbered one after another."""
MAX_POINTS = 10_000
"""Maximum points of one ask. An answer of more than about 100 is too long for the Python client."""
MAX_NUMBERS = 1_000_000
"""Maximum coordinates of one ask's points: encoding 20 MB delays other clients by a second."""

LONG_TELL = 2_000
"""Number of trials from which a tell is parsed in a thread."""
TRIALS_AN_EVENT = 10_000
"""Longer tells are split, so that each event is quick to write and to apply."""

LONGEST_NOTES = 2000
"""Maximum bytes of the notes in `info`: the Python client reads 4096 bytes of the whole answer."""


class RunAction(StrEnum):
    """Requests specific to farm: the server evaluates the points itself."""

    RUN = "run"
    PAUSE = "pause"
    STATUS = "status"


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command for an experiment's closed loop; None: the value of its [farm] section."""

    action: RunAction
    experiment: int
    in_flight: int | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The steps of a message, in this order: store and apply `events`, then work or answer.

    answer: if no work is left; the owner of the loop may add to the answer to a command. work,
    then: what to do, or to call in a thread, and the function for its result and the time of it.
    run: a command for the loop. close: the connection ends after the answer. current: the session's
    experiment from now on.
    """

    events: tuple[Event, ...] = ()
    answer: Mapping[str, Any] | None = None
    work: Work | Callable[[], Any] | None = None
    then: Callable[[Any, float], Step] | None = None
    run: RunCommand | None = None
    close: bool = False
    current: int | None = None


class Session:
    """One connection. Its current experiment is the one that it set up or resumed last.

    current: its number. last_set_up: the id that a later setup without one inherits.
    """

    def __init__(self, world: Experiments) -> None:
        self.world = world
        self.current: int | None = None
        self.last_set_up = ""

    def turn(self, request: AepsychRequest) -> int | None:
        """Return the turn to hold from before `receive` to the last Step, or None.

        Asks of one experiment are answered one after another: the turn is its number. Setups share
        SETUPS. All others never wait.
        """
        if request.type == "setup":
            return SETUPS
        return self.current if request.type == "ask" else None

    def receive(self, request: AepsychRequest, now: float) -> Step:
        """Return the step for a request. now: Unix seconds.

        Raises FarmError, whose message is the answer.
        """
        message = request.message
        match request.type:
            case "setup":
                return self.set_up(messages.config_source(message), now)
            case "resume":
                return self._resume(message)
            case "exit":
                return Step(answer={"termination_type": "Terminate", "success": True}, close=True)
            case "parameters" if self.current is None:
                return Step(answer={})
            case "run" | "pause" | "status":
                return self._run(RunAction(request.type), message)
        experiment = self._experiment()
        match request.type:
            case "ask":
                return _ask(experiment, message, now)
            case "tell":
                return _tell(experiment, message, request.extra, now)
            case "query":
                return _query(experiment, message)
            case "parameters":
                return Step(answer=_bounds(experiment.config))
            case "info":
                return Step(answer=self._info(experiment))
            case "get_config":
                return Step(answer=_config(experiment.config, message))
            case "finish_strategy":
                return _finish(experiment, now)
            case "can_model":
                return Step(answer={"can_model": _can_fit(experiment)})
        raise InvalidInput(f"type {request.type!r} is unknown")

    def took(self, step: Step) -> None:
        """Make the step's experiment current, after its events are stored and applied."""
        if step.current is not None:
            self.current = step.current
        for event in step.events:
            if isinstance(event, SetUp):
                self.last_set_up = event.experiment_id

    def _experiment(self, number: int | None = None) -> Experiment:
        number = self.current if number is None else number
        if number is None:
            raise InvalidInput("no experiment is current; send a setup or a resume first")
        experiment = self.world.experiments.get(number)
        if experiment is None:
            count = len(self.world.experiments)
            known = f"there are {count}, from 0" if count else "there are none yet"
            raise InvalidInput(f"experiment {number} does not exist; {known}")
        return experiment

    def set_up(
        self,
        source: str | Mapping[str, Any],
        now: float,
        given: Sequence[InitialTrials] | None = None,
    ) -> Step:
        """Return the step that begins an experiment.

        source: its configuration. given: the trials of its `seed_data`, which the caller has read;
        None: they are not read, which a note says. Raises FarmError.
        """
        config = read_config(source)
        can_execute(config)
        number = self.world.next_number
        chosen = config.metadata.experiment_id or self.last_set_up
        unique = f"{self.world.db_name}/{number}/{now}/{config.text}"
        event = SetUp(
            experiment=number,
            time=now,
            config_text=config.text,
            experiment_id=chosen or str(uuid5(NAMESPACE_OID, unique)),
            seed=messages.seed_of(config, number),
        )
        new = Experiment(number, config, seed=event.seed, experiment_id=event.experiment_id)
        given = unread_seed_data(new) if given is None else given
        seeds = [trials.given_to(new, now) for trials in given]
        seeds += seeds_of(new, self.world.experiments, now)
        return Step(events=(event, *seeds), answer={"strat_id": number}, current=number)

    def _resume(self, message: Mapping[str, Any]) -> Step:
        number = messages.whole_number(message, "strat_id", least=0)
        if number is None:
            raise InvalidInput("'strat_id' is missing; expected the number of an experiment")
        self._experiment(number)
        return Step(answer={"strat_id": number}, current=number)

    def _info(self, experiment: Experiment) -> dict[str, Any]:
        strategy = experiment.strategy
        surrogate, acquisition = strategy.surrogate, acquisition_name(strategy.generator)
        info = {
            "db_name": self.world.db_name,
            "exp_id": experiment.experiment_id,
            "strat_count": len(self.world.experiments),
            "all_strat_names": [s.name for s in experiment.config.strategies],
            "current_strat_index": experiment.number,
            "current_strat_name": strategy.name,
            "current_strat_data_pts": experiment.modelled,
            "current_strat_model": surrogate.name if surrogate else "model not set",
            "current_strat_acqf": acquisition or "acqf not set",
            "current_strat_finished": experiment.finished,
            "current_strat_can_fit": _can_fit(experiment),
        }
        notes = [*([experiment.note] if experiment.note else []), *experiment.warnings]
        return info | ({"notes": _readable(notes)} if notes else {})

    def _run(self, action: RunAction, message: Mapping[str, Any]) -> Step:
        experiment = self._experiment(messages.whole_number(message, "strat_id", least=0))
        if experiment.config.farm is None and action is not RunAction.STATUS:
            raise InvalidInput(
                f"experiment {experiment.number} has no section [farm], which defines the model "
                f"for {action}"
            )
        command = RunCommand(
            action,
            experiment.number,
            in_flight=messages.whole_number(message, "in_flight", least=1),
            budget=messages.whole_number(message, "budget", least=1),
        )
        return Step(answer=asdict(experiment.snapshot()), run=command)


def _ask(experiment: Experiment, message: Mapping[str, Any], now: float) -> Step:
    config = experiment.config
    most = min(MAX_POINTS, MAX_NUMBERS // (config.stimuli * len(config.parameters)))
    count = messages.whole_number(message, "num_points", least=0, most=most)
    count = 1 if count is None else count
    fixed = experiment.space.held(message.get("fixed_pars"), "fixed_pars")
    if count == 0:
        answer = _points_answer(experiment, experiment.space.empty(), experiment.finished)
        return Step(answer=answer)
    expired = experiment.expired(now)
    work = experiment.generate(count, fixed, without=expired)
    released = Released(experiment=experiment.number, time=now, ids=expired)

    def given(result: Generated | Answered, now: float) -> Step:
        assert isinstance(result, Generated)
        asked = asked_event(experiment, work, result, now)
        finished = experiment.finished_after(work.strategy, len(asked.ids), asked.post_range)
        answer = _points_answer(experiment, result.points, finished)
        unchanged = not asked.ids and work.strategy == experiment.strategy_index
        return Step(events=() if unchanged else (asked,), answer=answer)

    return Step(events=(released,) if expired else (), work=work, then=given)


def asked_event(experiment: Experiment, work: Generate, result: Generated, now: float) -> Asked:
    """Return the event that records the points of this work as handed out."""
    first = experiment.asked
    return Asked(
        experiment=experiment.number,
        time=now,
        points=result.points,
        ids=tuple(range(first, first + len(result.points))),
        strategy=work.strategy,
        note=result.note,
        post_range=result.post_range,
        filler=work.filler,
    )


def _points_answer(experiment: Experiment, points: Array, finished: bool) -> dict[str, Any]:
    config = experiment.space.decode(points)
    return {"config": config, "is_finished": finished, "num_points": len(points)}


def _tell(
    experiment: Experiment, message: Mapping[str, Any], beside: Mapping[str, Any], now: float
) -> Step:
    def told(trials: Told, now: float) -> Step:
        ids, extra = experiment.match(trials.points), {**beside, **trials.extra}
        event = replace(trials, time=now, ids=ids, extra=extra)
        added = int(event.modelled.sum())
        answer = {"trials_recorded": len(event.points), "model_data_added": added}
        return Step(events=event.in_pieces(TRIALS_AN_EVENT), answer=answer)

    if messages.most_trials(message) > LONG_TELL:
        return Step(work=partial(messages.read_tell, experiment, message, now), then=told)
    return told(messages.read_tell(experiment, message, now), now)


def _query(experiment: Experiment, message: Mapping[str, Any]) -> Step:
    query = messages.read_query(experiment, message)

    def answered(result: Generated | Answered, now: float) -> Step:
        assert isinstance(result, Answered)
        return Step(answer=messages.query_answer(query, message, result))

    return Step(work=query, then=answered)


def _bounds(config: Config) -> dict[str, Any]:
    unit = (0.0, 1.0)  # the stock server reports this for a fixed parameter
    return {
        p.name: list(unit if p.kind is ParameterKind.FIXED else (p.lower, p.upper))
        for p in config.parameters
    }


def _readable(notes: Sequence[str]) -> list[str]:
    """Return the first notes, as many as clients can read."""
    left = LONGEST_NOTES
    for shown, note in enumerate(notes):
        left -= len(json.dumps(note))
        if left < 0:
            return [*notes[:shown], f"{len(notes) - shown} more, in the server's log"]
    return list(notes)


def _can_fit(experiment: Experiment) -> bool:
    has_data = experiment.has_data(experiment.strategy_index)
    return experiment.strategy.surrogate is not None and has_data


def _config(config: Config, message: Mapping[str, Any]) -> dict[str, Any]:
    section, option = messages.text(message, "section"), messages.text(message, "property")
    if section is None:
        if option is not None:
            raise InvalidInput(f"'property' is {option!r} but 'section' is missing; expected both")
        return {name: dict(options) for name, options in config.sections.items()}
    if section not in config.sections:
        names = ", ".join(config.sections)
        raise InvalidInput(f"section {section!r} is not in the config; expected one of {names}")
    options = config.sections[section]
    if option is None:
        return {section: dict(options)}
    if option.lower() not in options:
        names = ", ".join(options)
        raise InvalidInput(f"section [{section}] has no {option!r}; expected one of {names}")
    return {section: {option: options[option.lower()]}}


def _finish(experiment: Experiment, now: float) -> Step:
    index = experiment.strategy_index
    event = Finished(experiment=experiment.number, time=now, strategy=index)
    name = experiment.strategy.name
    return Step(events=(event,), answer={"finished_strategy": name, "finished_strat_idx": index})


def acquisition_name(generator: Generator) -> str:
    """Return the config's acquisition function, several ones joined, or "" without one."""
    if generator.acquisition is not None:
        return generator.acquisition.name
    return ", ".join(filter(None, map(acquisition_name, generator.parts)))
