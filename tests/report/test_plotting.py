"""Figures without pyplot's global list, as reproducible SVG text."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from farm.errors import UnsupportedFeature
from farm.report.plotting import GREY, MOST_DOTS, new_figure, svg_of, thinned


def test_the_same_figure_is_the_same_text() -> None:
    def text() -> str:
        figure, (axes,) = new_figure(1, 1, width=3.0, height=2.0)
        axes.plot([0, 1], [1, 0])
        return svg_of(figure)

    assert text() == text()
    assert text().startswith("<svg")


def test_figures_have_the_style_of_reports_and_leave_that_of_others() -> None:
    from matplotlib import rcParams

    before = dict(rcParams)
    figure, (axes,) = new_figure(1, 1, width=3.0, height=2.0)
    axes.set_xlabel("load")
    text = svg_of(figure)
    assert dict(rcParams) == before
    assert GREY in text
    assert ">load</text>" in text, "text and not outlines of letters"
    assert not axes.spines["top"].get_visible()


@pytest.mark.parametrize("count", [0, 5, MOST_DOTS, 10 * MOST_DOTS])
def test_many_dots_are_thinned_evenly(count: int) -> None:
    mask = np.ones(count + 3, dtype=bool)
    mask[:3] = False
    kept = thinned(mask)
    assert len(kept) == min(count, MOST_DOTS)
    if count:
        assert (kept[0], kept[-1]) == (3, count + 2)
        assert np.ptp(np.diff(kept)) <= 1


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedFeature, match=r"modelfarm\[plot\]"):
        new_figure(1, 1, width=3.0, height=2.0)
