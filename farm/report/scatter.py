"""Scatter plots of points in parameter space with their values. They need the extra `plot`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from farm.call import Array
from farm.errors import UnsupportedFeature
from farm.report.page import Html
from farm.wording import needs

BLUE, RED, GREY = "#2563a8", "#c8372d", "#8a8f98"

MOST_DOTS = 2000
"""Most dots in a figure; more make a picture of megabytes that shows no more."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "farm",  # makes the SVG text reproducible
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "xtick.color": "#444",
    "ytick.color": "#444",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of reports. Raises UnsupportedFeature if matplotlib is missing."""
    with needs("plot", "matplotlib is needed", UnsupportedFeature):
        from matplotlib import rc_context
    with rc_context(STYLE):
        yield


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    """Return a figure and its axes, row by row. width, height: inches.

    It does not use pyplot, which keeps figures in a global list. Raises UnsupportedFeature.
    """
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.ravel())


def svg_of(figure: Any) -> Html:
    """Return the figure as an SVG element."""
    text = io.StringIO()
    with styled():
        figure.savefig(text, format="svg", metadata={"Date": None})
    # HTML must not contain the XML declaration and the document type.
    return Html(text.getvalue()[text.getvalue().index("<svg") :])


def thinned(mask: Array) -> Array:
    """Return the indices where a mask is true, at most MOST_DOTS of them, spread evenly."""
    found = np.flatnonzero(mask)
    if len(found) > MOST_DOTS:
        found = found[np.linspace(0, len(found) - 1, MOST_DOTS).astype(int)]
    return found


MOST_IN_PAIRS = 5
"""Most parameters whose pairs are shown; more make axes too small to read."""

FEW_DOTS = 500
"""Up to this number of dots, they are large and outlined."""


@dataclass(frozen=True, slots=True)
class ParameterAxis:
    """The axis of a parameter.

    choices: names of the values 0, 1, ...; bounds: always in view, even without points.
    """

    name: str
    is_log: bool = False
    choices: Sequence[str] = ()
    bounds: tuple[float, float] | None = None

    def along(self, which: str, axes: Any, *, label: bool = True) -> None:
        """Show the parameter along the axis "x" or "y"."""
        axis = getattr(axes, f"{which}axis")
        getattr(axes, f"set_{which}scale")("log" if self.is_log else "linear")
        if self.bounds is not None:  # an invisible line in the middle of the other axis
            across = getattr(axes, f"get_{which}axis_transform")()
            ends = (self.bounds, (0.5, 0.5)) if which == "x" else ((0.5, 0.5), self.bounds)
            axes.plot(*ends, alpha=0, transform=across)
        if label:
            axis.set_label_text(self.name)
        if self.choices:
            axis.set_ticks(range(len(self.choices)), self.choices)


def scatter(
    parameters: Sequence[ParameterAxis],
    points: Array,
    values: Array,
    failed: Array,
    *,
    label: str,
    behind: Callable[[Any], None] | None = None,
) -> Html:
    """Plot values at points: as height over one parameter, as colour over each pair of several.

    points: shape (n, d), d the number of parameters; values: shape (n,), non-finite ones are
    omitted; failed: shape (m, d), points in red. label: name of the values. behind: draws on each
    axes first. At most the first MOST_IN_PAIRS parameters are shown.
    Raises UnsupportedFeature without matplotlib.
    """
    good = thinned(np.isfinite(values))
    bad = thinned(np.ones(len(failed), dtype=bool))
    shown = _Shown(points[good], values[good], failed[bad], label, behind or _nothing)
    if len(parameters) == 1:
        return _over_one(parameters[0], shown)
    return _over_pairs(parameters[:MOST_IN_PAIRS], shown)


def legend(parameters: Sequence[ParameterAxis], label: str) -> str:
    """Return a sentence that explains how `scatter` shows the values."""
    return f"{'Height' if len(parameters) == 1 else 'Colour'}: {label}."


class _Shown(NamedTuple):
    """The data that `scatter` draws, already thinned."""

    points: Array
    values: Array
    failed: Array
    label: str
    behind: Callable[[Any], None]


def _nothing(axes: Any) -> None:
    """Draw nothing behind the points."""


def _over_one(parameter: ParameterAxis, shown: _Shown) -> Html:
    figure, (axes,) = new_figure(1, 1, width=9.0, height=3.2)
    shown.behind(axes)
    size = 4 if len(shown.points) <= FEW_DOTS else 2
    axes.plot(shown.points[:, 0], shown.values, "o", color=BLUE, markersize=size)
    for place in shown.failed[:, 0]:
        axes.axvline(place, color=RED, linewidth=0.6, alpha=0.6)
    parameter.along("x", axes)
    axes.set_ylabel(shown.label)
    return svg_of(figure)


def _over_pairs(parameters: Sequence[ParameterAxis], shown: _Shown) -> Html:
    """Plot a triangle of axes: column i has parameter i as x, row j has parameter j + 1 as y."""
    points, failed = shown.points, shown.failed
    side = len(parameters) - 1
    inches = min(9.0, 1.2 + 2.3 * side)
    figure, grid = new_figure(side, side, width=inches + 1.1, height=inches)
    dots: Any = None
    for place, axes in enumerate(grid):
        row, column = divmod(place, side)
        if column > row:
            axes.set_axis_off()
            continue
        shown.behind(axes)
        dots = _dots(axes, points[:, column], points[:, row + 1], shown.values)
        (crosses,) = axes.plot(
            failed[:, column], failed[:, row + 1], "x", color=RED, markersize=4, zorder=4
        )
        for marks in (dots, crosses):  # do not clip: the best point is often at the edge
            marks.set_clip_on(False)
            marks.set_in_layout(False)
        parameters[column].along("x", axes, label=row == side - 1)
        parameters[row + 1].along("y", axes, label=column == 0)
    if len(points):
        _colour_bar(figure, grid, side, dots, shown.label)
    return svg_of(figure)


def _dots(axes: Any, x: Array, y: Array, values: Array) -> Any:
    if len(values) > FEW_DOTS:
        return axes.scatter(x, y, c=values, s=8, cmap="viridis", zorder=3)
    # An outline keeps a dot visible on a background of the same colour.
    outline = {"edgecolors": "#333", "linewidths": 0.4}
    return axes.scatter(x, y, c=values, s=14, cmap="viridis", zorder=3, **outline)


def _colour_bar(figure: Any, grid: list[Any], side: int, dots: Any, label: str) -> None:
    with styled():
        # Use the free corner above the diagonal, if there is one.
        place = {"ax": grid} if side == 1 else {"cax": grid[side - 1].inset_axes((0, 0, 0.08, 1))}
        figure.colorbar(dots, label=label, **place)
