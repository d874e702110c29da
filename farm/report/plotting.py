"""Figures in the style of reports, as SVG text for a page. They need the extra `plot`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import UnsupportedFeature
from farm.report.page import Html

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
    try:
        from matplotlib import rc_context
    except ImportError:
        raise UnsupportedFeature('matplotlib is needed: pip install "modelfarm[plot]"') from None
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
