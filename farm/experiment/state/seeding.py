"""Warm starts: initial trials for a strategy, which surrogates use and rules do not count. Pure.

They are of earlier experiments, selected by metadata (source: AEPsych's documentation of
`seed_data_conditions`), or given when the experiment is set up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farm.call import Array
from farm.experiment.config.definition import Config, ParameterKind
from farm.experiment.config.evaluated_model import read_evaluated_model
from farm.experiment.space import Space
from farm.experiment.state.events import Seeded
from farm.experiment.state.experiment import Experiment

MOST_TRIALS = 10_000
MOST_NUMBERS = 1_000_000
"""Maximum coordinates of one strategy's warm start: each setup keeps a copy."""


@dataclass(frozen=True, slots=True, eq=False)
class InitialTrials:
    """Trials that an experiment begins with, and a sentence about their origin.

    points: shape (n, stimuli, d). outcomes: shape (n, outcomes), all finite.
    """

    points: Array
    outcomes: Array
    note: str

    def given_to(self, new: Experiment, time: float, strategy: int = 0) -> Seeded:
        """Return the event that gives them to a strategy, and to those after it."""
        return Seeded(
            experiment=new.number,
            time=time,
            strategy=strategy,
            points=self.points,
            outcomes=self.outcomes,
            note=f"[{new.config.strategies[strategy].name}] {self.note}",
        )


def unread_seed_data(new: Experiment) -> list[InitialTrials]:
    """Return no trials, and a note, if the config of an experiment has `seed_data`.

    A client may have sent the config, which must not make a server read files.
    """
    if new.config.farm is None or not read_evaluated_model(new.config).seed_data:
        return []
    note = (
        "starts without trials: [farm] seed_data is ignored, because a server reads no files that "
        "a configuration names; farm experiment run does"
    )
    return [InitialTrials(new.space.empty(), np.empty((0, len(new.config.outcomes))), note)]


def most_trials(space: Space) -> int:
    """Return the maximum number of initial trials of a strategy."""
    return min(MOST_TRIALS, MOST_NUMBERS // (space.stimuli * space.dimensions))


def seeds_of(new: Experiment, others: Mapping[int, Experiment], time: float) -> list[Seeded]:
    """Return the warm starts of a new experiment's strategies, as its config requests.

    time: Unix seconds. An experiment is a source once: later strategies keep the warm start of
    earlier ones.
    """
    events = []
    sources: set[int] = set()
    for position, strategy in enumerate(new.config.strategies):
        if strategy.seed_conditions is None:
            continue
        chosen = [
            other
            for number, other in sorted(others.items())
            if number not in sources and _has(other, strategy.seed_conditions)
        ]
        alike = [other for other in chosen if _kinds(other.config) == _kinds(new.config)]
        points, outcomes = _trials(new, alike)
        sources.update(other.number for other in alike)
        trials = InitialTrials(points, outcomes, _said(new, len(chosen), alike, len(points)))
        events.append(trials.given_to(new, time, position))
    return events


def _has(experiment: Experiment, conditions: Mapping[str, Sequence[str]]) -> bool:
    """Whether the experiment's metadata meet each of the conditions."""
    metadata = experiment.config.metadata
    known = metadata.extra | metadata.standard(experiment.experiment_id)
    return all(known.get(option, "") in values for option, values in conditions.items())


def _kinds(config: Config) -> tuple[object, ...]:
    """Return the properties that experiments must share for their trials to be comparable."""
    parameters = {parameter.name: parameter.kind for parameter in config.parameters}
    return config.stimuli, parameters, {outcome.name: outcome.kind for outcome in config.outcomes}


def _trials(new: Experiment, alike: Sequence[Experiment]) -> tuple[Array, Array]:
    """Return the modelled trials of similar experiments, in the form of the new one."""
    points = [new.space.empty()]
    outcomes = [np.empty((0, len(new.config.outcomes)))]
    for other in alike:
        x, y = other.trials
        names = [outcome.name for outcome in other.config.outcomes]
        order = [names.index(outcome.name) for outcome in new.config.outcomes]
        converted = _converted(x, other.space, new.space)
        defined = new.space.defined(converted)
        points.append(converted[defined])
        outcomes.append(y[defined][:, order])
    most = most_trials(new.space)
    return np.concatenate(points)[-most:], np.concatenate(outcomes)[-most:]


def _converted(points: Array, old: Space, new: Space) -> Array:
    """Return points as coordinates of a space with the same names; NaN for unknown choices."""
    converted = np.empty((len(points), new.stimuli, new.dimensions))
    for at, parameter in enumerate(new.free):
        column = points[:, :, old.index(parameter.name)]
        if parameter.kind is ParameterKind.CATEGORICAL:
            choices = old.free[old.index(parameter.name)].choices
            places = {choice: float(i) for i, choice in enumerate(parameter.choices)}
            column = np.array([places.get(choice, np.nan) for choice in choices])[
                column.astype(int)
            ]
        converted[:, :, at] = column
    return converted


def _said(new: Experiment, found: int, alike: Sequence[Experiment], count: int) -> str:
    """Return a message for the user about a warm start."""
    if not found:
        return "starts without trials: no earlier experiment meets its seed_data_conditions"
    told = sum(other.modelled for other in alike)
    said = [f"initial trials: {count}, from earlier experiments: {len(alike)}"]
    if found > len(alike):
        unlike = found - len(alike)
        said.append(f"left out because their parameters, outcomes or stimuli differ: {unlike}")
    if told > count:
        said.append(f"trials undefined here or beyond the limit: {told - count}")
    bounds = {p.name: (p.lower, p.upper) for p in new.space.free}
    differ = {
        p.name
        for other in alike
        for p in other.space.free
        if p.kind is not ParameterKind.CATEGORICAL and bounds[p.name] != (p.lower, p.upper)
    }
    if differ:
        said.append(f"the bounds of {', '.join(sorted(differ))} differ")
    return "; ".join(said)
