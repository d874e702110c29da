"""The figures of an experiment's report, each as the text of an SVG picture. Extra `plot`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.call import Array
from farm.experiment.config import Config, OutcomeKind
from farm.experiment.space import Space
from farm.experiment.trials import Outcome, Trial
from farm.sweep.drawing import BLUE, GREY, RED, new_figure, pairs_below, svg_of

MOST_IN_PAIRS = 5
LINE = 200
"""Points along a curve."""
GRID = 60
"""Points along each side of a surface."""

Predict = Callable[[Array], tuple[Array, Array]]
"""What the surrogate says at points of shape (m, 1, d): mean and standard deviation, shape (m,)."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What figures are made of. outcome: which is shown; predict: of the surrogate, if there is
    one; level: the value whose line is drawn."""

    config: Config
    trials: Sequence[Trial]
    outcome: int = 0
    predict: Predict | None = None
    level: float | None = None

    @property
    def told(self) -> list[Trial]:
        """The trials with an outcome that is a number, in the order in which they were told."""
        told = [t for t in self.trials if t.outcome is Outcome.TOLD and t.values is not None]
        finite = [t for t in told if t.values is not None and np.isfinite(t.values[self.outcome])]
        return sorted(finite, key=lambda trial: trial.told_at or 0.0)

    @property
    def values(self) -> Array:
        """The outcome of each trial of `told`."""
        return np.array([t.values[self.outcome] for t in self.told if t.values is not None])

    @property
    def failed(self) -> list[Trial]:
        """The trials that could not be evaluated."""
        return [t for t in self.trials if t.outcome is Outcome.FAILED]

    @property
    def is_binary(self) -> bool:
        """Whether the outcome is 0 or 1."""
        return self.config.outcomes[self.outcome].kind is OutcomeKind.BINARY

    @property
    def name(self) -> str:
        """Of the outcome."""
        return self.config.outcomes[self.outcome].name


def history(shown: Shown) -> str:
    """The outcome of each trial, by strategy, and the best so far."""
    figure, (axes,) = new_figure(1, 1, width=9.0, height=3.0)
    told, values = shown.told, shown.values
    number = np.arange(1, len(told) + 1)
    for place, strategy in enumerate(shown.config.strategies):
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
    if len(values) and not shown.is_binary:
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
    axes.set_ylabel(shown.name)
    return svg_of(figure)


def space(shown: Shown) -> str:
    """Where the points are and what came of them, over what the surrogate makes of it."""
    parameters = Space.of(shown.config)
    count = min(parameters.dimensions, MOST_IN_PAIRS)
    if count == 1:
        return _line(shown, parameters)
    side = min(9.0, 1.4 + 2.4 * (count - 1))
    figure, each, bar = pairs_below(count, width=side + 1.2, height=side)
    good, bad = _points(shown.told), _points(shown.failed)
    dots: Any = None
    for axes, i, j in each:
        if count == parameters.dimensions == 2:
            _surface(axes, shown, parameters)
        dots = axes.scatter(
            good[:, i],
            good[:, j],
            c=shown.values,
            s=14,
            cmap="viridis",
            edgecolors="#333",  # seen also where the surface has their colour
            linewidths=0.4,
            zorder=3,
        )
        (crosses,) = axes.plot(bad[:, i], bad[:, j], "x", color=RED, markersize=4)
        for marks in (dots, crosses):  # the best is often at the very edge
            marks.set_clip_on(False)
            marks.set_in_layout(False)
        corners = np.stack([parameters.lower, parameters.upper])  # in sight, whatever is there
        axes.plot(corners[:, i], corners[:, j], alpha=0)
        _scale(axes.xaxis, axes, parameters, i, "x")
        _scale(axes.yaxis, axes, parameters, j, "y")
    if len(good):
        bar(dots, shown.name)
    return svg_of(figure)


def _line(shown: Shown, parameters: Space) -> str:
    """The outcome along the only parameter."""
    figure, (axes,) = new_figure(1, 1, width=9.0, height=3.2)
    x = _along(parameters, 0, LINE)
    if shown.predict is not None:
        mean, sd = shown.predict(x[:, None, None])
        axes.plot(x, mean, color=GREY, linewidth=1.5)
        axes.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=GREY, alpha=0.2, linewidth=0)
    if shown.level is not None:
        axes.axhline(shown.level, color=RED, linewidth=0.8, linestyle=":")
    axes.plot(_points(shown.told)[:, 0], shown.values, "o", color=BLUE, markersize=4)
    for place in _points(shown.failed)[:, 0]:
        axes.axvline(place, color=RED, linewidth=0.6, alpha=0.6)
    _scale(axes.xaxis, axes, parameters, 0, "x")
    axes.set_ylabel(shown.name)
    return svg_of(figure)


def _surface(axes: Any, shown: Shown, parameters: Space) -> None:
    """The surrogate's mean over two parameters, and the line where it has the level."""
    if shown.predict is None:
        return
    x, y = _along(parameters, 0, GRID), _along(parameters, 1, GRID)
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 1, 2)
    mean = shown.predict(points)[0].reshape(GRID, GRID)
    values = [*mean.ravel(), *shown.values]
    axes.contourf(
        x,
        y,
        mean,
        levels=np.linspace(min(values), max(values) + 1e-12, 20),
        cmap="viridis",
        alpha=0.6,
    )
    if shown.level is not None and mean.min() < shown.level < mean.max():
        axes.contour(x, y, mean, levels=[shown.level], colors=[RED], linewidths=1.5)


def _points(trials: Sequence[Trial]) -> Array:
    """Coordinates of the (last) stimulus of each trial, shape (n, d) with d >= 1 columns."""
    if not trials:
        return np.empty((0, MOST_IN_PAIRS))
    return np.stack([trial.point[-1] for trial in trials])


def _along(parameters: Space, at: int, count: int) -> Array:
    low, high = float(parameters.lower[at]), float(parameters.upper[at])
    if parameters.log[at] and low > 0:
        return np.geomspace(low, high, count)
    return np.linspace(low, high, count)


def _scale(axis: Any, axes: Any, parameters: Space, at: int, side: str) -> None:
    parameter = parameters.free[at]
    axis.set_label_text(parameter.name)
    if parameter.choices:
        axis.set_ticks(range(len(parameter.choices)), parameter.choices)
    elif parameters.log[at] and parameters.lower[at] > 0:
        getattr(axes, f"set_{side}scale")("log")
