"""Figures as the text of SVG pictures, in one style. Needs the extra `plot`."""

from __future__ import annotations

import io
from typing import Any

from farm.sweep.errors import SweepError

BLUE, RED, GREY = "#2563a8", "#c8372d", "#8a8f98"
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


def svg_of(figure: Any) -> str:
    """The picture as text that may stand in HTML."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context(STYLE | {"svg.hashsalt": "farm"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    # Inside HTML neither the declaration nor the document type belongs.
    return text.getvalue()[text.getvalue().index("<svg") :]
