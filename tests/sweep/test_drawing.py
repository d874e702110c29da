"""Figures without a global list of them, as text for HTML that never changes by itself."""

from __future__ import annotations

import sys

import pytest

from farm.sweep.drawing import new_figure, small_multiples, svg_of
from farm.sweep.errors import SweepError


def test_the_same_figure_is_the_same_text() -> None:
    def text() -> str:
        figure, (axes,) = new_figure(1, 1, width=3.0, height=2.0)
        axes.plot([0, 1], [1, 0])
        return svg_of(figure)

    assert text() == text()
    assert text().startswith("<svg")


def test_small_multiples_show_as_many_as_are_wanted() -> None:
    figure, axes = small_multiples(6)
    assert len(axes) == 6
    assert sum(one.get_visible() for one in figure.axes) == 6


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SweepError, match=r"modelfarm\[plot\]"):
        new_figure(1, 1, width=3.0, height=2.0)
