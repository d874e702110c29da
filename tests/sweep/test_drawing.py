"""Figures without a global list of them, as text for HTML that never changes by itself."""

from __future__ import annotations

import sys

import pytest

from farm.sweep.drawing import new_figure, pairs_below, small_multiples, svg_of
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


@pytest.mark.parametrize(("count", "axes"), [(2, 1), (4, 9)])
def test_each_pair_has_its_axes(count: int, axes: int) -> None:
    figure, each, bar = pairs_below(count, width=5.0, height=5.0)
    assert [(i, j) for _, i, j in each] == [(i, j) for j in range(1, count) for i in range(j)]
    assert sum(one.axison for one in figure.axes) == len(each)
    assert len(figure.axes) == axes
    below = {(j, i): one.get_position().bounds for one, i, j in each}
    if count > 2:
        assert below[3, 0][0] == below[1, 0][0], "one column"
        assert below[3, 0][1] == below[3, 2][1], "one row"
    dots = each[0][0].scatter([0, 1], [1, 0], c=[2, 3])
    bar(dots, "height")
    assert figure.axes[-1].get_ylabel() == "height" or count > 2
    assert "height" in svg_of(figure)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SweepError, match=r"modelfarm\[plot\]"):
        new_figure(1, 1, width=3.0, height=2.0)
