"""Figures as the text of SVG pictures, in one style. Needs the extra `plot`."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from farm.sweep.errors import SweepError

BLUE, RED, GREY = "#2563a8", "#c8372d", "#8a8f98"
Pair = tuple[Any, int, int]
"""Axes, and the two things that they show, across and up."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "xtick.color": "#444",
    "ytick.color": "#444",
    "axes.titlesize": 9,
}


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure and its axes, row by row; without pyplot, which keeps figures in a global list."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise SweepError('matplotlib is needed: pip install "modelfarm[plot]"') from None
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.ravel())


def small_multiples(count: int) -> tuple[Any, list[Any]]:
    """A figure of `count` small axes, four in a row."""
    columns = min(count, 4)
    rows = -(-count // columns)
    figure, axes = new_figure(rows, columns, width=9.0, height=2.3 * rows)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def pairs_below(
    count: int, *, width: float, height: float
) -> tuple[Any, list[Pair], Callable[[Any, str], None]]:
    """A figure with axes for each pair i < j of so many things; also what adds its colour bar.

    Axes of i stand in one column, those of j in one row. The bar is of some dots, with a label.
    """
    side = count - 1
    figure, grid = new_figure(side, side, width=width, height=height)
    pairs: list[Pair] = []
    for place, axes in enumerate(grid):
        row, column = divmod(place, side)
        if column > row:
            axes.set_axis_off()
        else:
            pairs.append((axes, column, row + 1))

    def bar(dots: Any, label: str) -> None:
        # The corner above the diagonal is free, where there is one.
        place = {"ax": grid} if side == 1 else {"cax": grid[side - 1].inset_axes((0, 0, 0.08, 1))}
        figure.colorbar(dots, label=label, **place)

    return figure, pairs, bar


def svg_of(figure: Any) -> str:
    """The picture as text that may stand in HTML."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context(STYLE | {"svg.hashsalt": "farm"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    # Inside HTML neither the declaration nor the document type belongs.
    return text.getvalue()[text.getvalue().index("<svg") :]
