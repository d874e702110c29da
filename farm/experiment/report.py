"""The report of an experiment: one HTML file with figures that needs nothing else."""

from __future__ import annotations

import contextlib
import html
import time
from pathlib import Path

from farm.call import Array
from farm.errors import InvalidInput, UnsupportedFeature
from farm.experiment.best import best_told, in_words, place_of
from farm.experiment.config import OutcomeKind
from farm.experiment.experiment import Experiment
from farm.experiment.figures import Predict, Shown, history, space
from farm.experiment.ini import number_of
from farm.experiment.perform import predict
from farm.experiment.space import Space
from farm.experiment.trials import Record
from farm.sweep.page import page, section, table

FAILURES_SHOWN = 20


def write_report(
    record: Record, experiment: Experiment, out: Path, *, outcome: str | None = None
) -> None:
    """Write the report of an experiment, which may be running. outcome: which is shown.

    Raises InvalidInput, SweepError without matplotlib, OSError.
    """
    place = place_of(record.config, outcome)
    surrogate, why = _surrogate(experiment, place)
    shown = Shown(record.config, record.trials, place, surrogate, _level(record, place))
    over = "Lines: where the surrogate's mean has the target. " * (shown.level is not None)
    shows = "Colour" if len(record.config.free) > 1 else "Height"
    sections = [
        section("Trials", "In the order in which they were told.", history(shown)),
        section(
            "Points",
            f"{shows}: {shown.name}; behind them what the surrogate expects. {over}"
            if surrogate
            else f"{shows}: {shown.name}. {why}",
            space(shown),
        ),
        _failures(shown),
        f"<details><summary>Configuration</summary><pre>{html.escape(record.config.text)}</pre>"
        "</details>",
    ]
    title = record.config.metadata.experiment_name or f"Experiment {record.number}"
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    note = f"experiment {record.number}, {record.experiment_id}, seed {record.seed}; on {made}"
    facts = table(_facts(experiment, outcome))
    out.write_text(page(title, note, facts + "".join(sections)), "utf-8")


def _surrogate(experiment: Experiment, outcome: int) -> tuple[Predict | None, str]:
    """What the surrogate predicts, or why nothing does."""
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


def _level(record: Record, outcome: int) -> float | None:
    """The target of a level set, for a binary outcome the probability that is sought."""
    is_binary = record.config.outcomes[outcome].kind is OutcomeKind.BINARY
    for strategy in reversed(record.config.strategies):
        acquisition = strategy.generator.acquisition
        if acquisition is not None and "target" in acquisition.options:
            return number_of(acquisition.options["target"])
    return 0.75 if is_binary else None


def _facts(experiment: Experiment, outcome: str | None) -> dict[str, str]:
    now = experiment.snapshot()
    facts = {
        "strategy": now.strategy_name + (", finished" if now.finished else ""),
        "trials": f"{now.told} told, {now.modelled} of them modelled; {now.failed} failed; "
        f"{now.pending} pending",
    }
    if now.run is not None:
        facts["closed loop"] = f"{now.run}{': ' * bool(now.run_why)}{now.run_why}"
    with contextlib.suppress(InvalidInput):  # there is none
        facts["best told"] = str(best_told(experiment, outcome))
    return facts


def _failures(shown: Shown) -> str:
    failed = shown.failed
    if not failed:
        return ""
    parameters = Space.of(shown.config)
    rows = "".join(
        f"<tr><td>{html.escape(in_words(parameters.values(trial.point)))}</td>"
        f"<td>{html.escape(trial.error)}</td></tr>"
        for trial in failed[:FAILURES_SHOWN]
    )
    more = len(failed) - FAILURES_SHOWN
    tail = f'<p class="note">and {more} more</p>' if more > 0 else ""
    body = f'<div class="scroll"><table><tr><th>point</th><th>error</th></tr>{rows}</table></div>'
    return section("Failures", "Points that could not be evaluated.", body + tail)
