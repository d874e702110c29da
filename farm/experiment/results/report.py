"""The report of an experiment: its sections and their wording."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput, UnsupportedFeature
from farm.experiment.ask.execute import predict
from farm.experiment.config.definition import Config, OutcomeKind
from farm.experiment.config.option_table import number_of
from farm.experiment.results.best import best_told, in_words, place_of
from farm.experiment.space import Space
from farm.experiment.state.experiment import Experiment
from farm.experiment.state.trials import ExperimentRecord, Trial
from farm.report.page import Html, facts, folded, preformatted, section, table, write_page
from farm.report.scatter import GREY, RED, ParameterAxis, legend, new_figure, scatter, svg_of
from farm.sweep.file.journal import PointStatus

LINE = 200
"""Points along a curve."""
GRID = 60
"""Points along each side of a surface."""


@dataclass(frozen=True, eq=False)
class ExperimentData:
    """The data shown in the figures: those of the outcome at this position.

    predict: the surrogate's prediction, if there is one; level: the value whose contour is drawn.
    """

    config: Config
    trials: Sequence[Trial]
    outcome: int = 0
    predict: Callable[[Array], tuple[Array, Array]] | None = None
    level: float | None = None

    @property
    def told(self) -> list[Trial]:
        """Return the trials whose outcome is a number, in the order in which they were recorded."""
        told = [t for t in self.trials if t.outcome is PointStatus.DONE and t.values is not None]
        finite = [t for t in told if t.values is not None and np.isfinite(t.values[self.outcome])]
        return sorted(finite, key=lambda trial: trial.told_at or 0.0)

    @property
    def values(self) -> Array:
        """Return the outcome of each trial in `told`."""
        return np.array([t.values[self.outcome] for t in self.told if t.values is not None])

    @property
    def failed(self) -> list[Trial]:
        """Return the trials that could not be evaluated."""
        return [t for t in self.trials if t.outcome is PointStatus.FAILED]

    @property
    def is_binary(self) -> bool:
        """Whether the outcome is 0 or 1."""
        return self.config.outcomes[self.outcome].kind is OutcomeKind.BINARY

    @property
    def name(self) -> str:
        """Name of the outcome."""
        return self.config.outcomes[self.outcome].name

    @property
    def parameters(self) -> list[ParameterAxis]:
        """The free parameters, in the order of a point's coordinates."""
        space = Space.of(self.config)
        return [
            ParameterAxis(
                parameter.name,
                is_log=_is_log(space, j),
                choices=parameter.choices,
                bounds=(float(space.lower[j]), float(space.upper[j])),
            )
            for j, parameter in enumerate(space.free)
        ]


def history(data: ExperimentData) -> Html:
    """Return the figure of each trial's outcome, by strategy, and of the best so far."""
    figure, (axes,) = new_figure(1, 1, width=9.0, height=3.0)
    told, values = data.told, data.values
    number = np.arange(1, len(told) + 1)
    for place, strategy in enumerate(data.config.strategies):
        own = np.array([t.strategy == place and not t.filler for t in told], dtype=bool)
        if own.any():
            axes.plot(number[own], values[own], "o", markersize=4, label=strategy.name)
    for label, chosen, style in (
        ("filled in", [t.filler for t in told], {"mfc": "none", "color": GREY}),
        ("told unasked", [t.strategy is None for t in told], {"marker": "D", "color": GREY}),
    ):
        mask = np.array(chosen, dtype=bool)
        if mask.any():
            axes.plot(
                number[mask],
                values[mask],
                **{"marker": "o", "ls": "", "ms": 4, **style},
                label=label,
            )
    if len(values) and not data.is_binary:
        axes.step(
            number,
            np.maximum.accumulate(values),
            where="post",
            color=RED,
            linewidth=1,
            label="best so far",
        )
    if len(values):
        axes.legend(frameon=False, fontsize=8, ncols=5, loc="lower right", bbox_to_anchor=(1, 1))
    axes.set_xlabel("trial")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(data.name)
    return svg_of(figure)


def points(data: ExperimentData) -> Html:
    """Return the figure of points and outcomes over the surrogate's prediction."""
    space = Space.of(data.config)

    def behind(axes: Any) -> None:
        if space.dimensions == 1:
            _curve(axes, data, space)
        elif space.dimensions == 2:
            _surface(axes, data, space)

    return scatter(
        data.parameters,
        _coordinates(data.told, space),
        data.values,
        _coordinates(data.failed, space),
        label=data.name,
        behind=behind,
    )


def _curve(axes: Any, data: ExperimentData, space: Space) -> None:
    """Draw the surrogate's mean, two standard deviations around it, and the level."""
    if data.predict is not None:
        x = _along(space, 0, LINE)
        mean, sd = data.predict(x[:, None, None])
        axes.plot(x, mean, color=GREY, linewidth=1.5)
        axes.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=GREY, alpha=0.2, linewidth=0)
    if data.level is not None:
        axes.axhline(data.level, color=RED, linewidth=0.8, linestyle=":")


def _surface(axes: Any, data: ExperimentData, space: Space) -> None:
    """Draw the surrogate's mean over two parameters, and the contour of the level."""
    if data.predict is None:
        return
    x, y = _along(space, 0, GRID), _along(space, 1, GRID)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 1, 2)
    mean = data.predict(grid)[0].reshape(GRID, GRID)
    values = [*mean.ravel(), *data.values]
    levels = np.linspace(min(values), max(values) + 1e-12, 20)
    axes.contourf(x, y, mean, levels=levels, cmap="viridis", alpha=0.6)
    if data.level is not None and mean.min() < data.level < mean.max():
        axes.contour(x, y, mean, levels=[data.level], colors=[RED], linewidths=1.5)


def _coordinates(trials: Sequence[Trial], space: Space) -> Array:
    """Return the coordinates of the last stimulus of each trial, shape (n, d)."""
    if not trials:
        return np.empty((0, space.dimensions))
    return np.stack([trial.point[-1] for trial in trials])


def _along(space: Space, at: int, count: int) -> Array:
    low, high = float(space.lower[at]), float(space.upper[at])
    return np.geomspace(low, high, count) if _is_log(space, at) else np.linspace(low, high, count)


def _is_log(space: Space, at: int) -> bool:
    """Whether an axis is logarithmic; for a parameter with bounds around 0 it is not."""
    return bool(space.log[at] and space.lower[at] > 0)


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


def _surrogate(
    experiment: Experiment, outcome: int
) -> tuple[Callable[[Array], tuple[Array, Array]] | None, str]:
    """Return the surrogate's prediction, or the reason why there is none."""
    strategy = experiment.with_surrogate()
    if strategy is None or experiment.config.stimuli != 1 or not experiment.has_data(strategy):
        return None, ""
    data = experiment.data(strategy)
    if experiment.space.dimensions > 2:
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
