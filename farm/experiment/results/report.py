"""The report of an experiment: its sections and their wording."""

from __future__ import annotations

import contextlib
from pathlib import Path

from farm.call import Array
from farm.errors import InvalidInput, UnsupportedFeature
from farm.experiment.ask.execute import predict
from farm.experiment.config.definition import OutcomeKind
from farm.experiment.config.option_table import number_of
from farm.experiment.config.space import Space
from farm.experiment.results.best import best_told, in_words, place_of
from farm.experiment.results.figures import ExperimentData, Predict, history, points
from farm.experiment.state.experiment import Experiment
from farm.experiment.state.trials import ExperimentRecord
from farm.report.page import Html, facts, folded, preformatted, section, table, write_page
from farm.report.scatter import legend


def write_report(
    record: ExperimentRecord, experiment: Experiment, out: Path, *, outcome: str | None = None
) -> None:
    """Write the report of an experiment, which may be running. outcome: name of the one shown.

    Raises InvalidInput, UnsupportedFeature without matplotlib, OSError.
    """
    place = place_of(record.config, outcome)
    predict, why_not = _surrogate(experiment, place)
    data = ExperimentData(record.config, record.trials, place, predict, _level(record, place))
    blocks = [
        facts(_headline(experiment, outcome)),
        section("Trials", "In the order in which their outcomes were recorded.", history(data)),
        section(
            "Points", f"{legend(data.parameters, data.name)} {_behind(data, why_not)}", points(data)
        ),
        *_failures(data),
        folded("Configuration", preformatted(record.config.text)),
    ]
    title = record.config.metadata.experiment_name or f"Experiment {record.number}"
    note = f"experiment {record.number}, {record.experiment_id}, seed {record.seed}"
    write_page(out, title=title, note=note, blocks=blocks)


def _surrogate(experiment: Experiment, outcome: int) -> tuple[Predict | None, str]:
    """Return the surrogate's prediction, or the reason why there is none."""
    strategy = experiment.with_surrogate()
    if strategy is None or experiment.config.stimuli != 1 or not experiment.has_data(strategy):
        return None, ""
    data = experiment.data(strategy)
    if len(experiment.config.free) > 2:
        return None, ""

    def at(points: Array) -> tuple[Array, Array]:
        mean, sd = predict(experiment.config, strategy, data, points)
        return mean[:, outcome], sd[:, outcome]

    try:
        at(data.x[:1])
    except UnsupportedFeature as error:
        return None, error.message
    return at, ""


def _level(record: ExperimentRecord, outcome: int) -> float | None:
    """Return the target of a level set; for a binary outcome, a probability."""
    is_binary = record.config.outcomes[outcome].kind is OutcomeKind.BINARY
    for strategy in reversed(record.config.strategies):
        acquisition = strategy.generator.acquisition
        if acquisition is not None and "target" in acquisition.options:
            return number_of(acquisition.options["target"])
    return 0.75 if is_binary else None


def _behind(data: ExperimentData, why_not: str) -> str:
    """Describe the background of the figure of points, or why no surrogate is drawn."""
    if data.predict is None:
        return why_not
    expected = "Behind the points: what the surrogate expects."
    if data.level is None:
        return expected
    if len(data.parameters) == 1:
        return f"{expected} Dotted line: the target."
    return f"{expected} Red line: where the surrogate's mean has the target."


def _headline(experiment: Experiment, outcome: str | None) -> dict[str, str]:
    now = experiment.snapshot()
    found = {
        "strategy": now.strategy_name + (", finished" if now.finished else ""),
        "trials": f"{now.told} told, {now.modelled} of them modelled; {now.failed} failed; "
        f"{now.pending} pending",
    }
    if now.run is not None:
        found["closed loop"] = f"{now.run}{': ' * bool(now.run_why)}{now.run_why}"
    with contextlib.suppress(InvalidInput):  # without a best trial
        found["best told"] = str(best_told(experiment, outcome))
    return found


def _failures(data: ExperimentData) -> list[Html]:
    if not data.failed:
        return []
    space = Space.of(data.config)
    rows = [[in_words(space.values(trial.point)), trial.error] for trial in data.failed]
    listed = table(["point", "error"], rows)
    return [section("Failures", "Points that could not be evaluated.", listed)]
