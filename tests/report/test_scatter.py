"""Scatter plots over one parameter and over pairs: points, positions and names."""

from __future__ import annotations

import re
import sys
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from farm.call import Array
from farm.errors import UnsupportedFeature
from farm.report.scatter import (
    GREY,
    MOST_DOTS,
    MOST_IN_PAIRS,
    ParameterAxis,
    legend,
    new_figure,
    scatter,
    svg_of,
    thinned,
)

SVG = "{http://www.w3.org/2000/svg}"
NONE = np.empty((0, 12))


def axes_of(count: int, **more: Any) -> list[ParameterAxis]:
    return [ParameterAxis(f"p{j}", **more) for j in range(count)]


def cloud(count: int, dimensions: int) -> Array:
    return 1.0 + np.random.default_rng(1).random((count, dimensions))


def picture(parameters: list[ParameterAxis], points: Array, failed: Array, **more: Any) -> str:
    values = more.pop("values", np.arange(float(len(points))))
    return scatter(parameters, points, values, failed, label="height", **more)


def groups(text: str, start: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(text)
    return [g for g in root.iter(f"{SVG}g") if g.get("id", "").startswith(start)]


def marks(element: ElementTree.Element) -> int:
    return sum(1 for _ in element.iter(f"{SVG}use"))


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [1, 2, MOST_IN_PAIRS + 3])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_every_number_of_parameters_and_points_is_a_picture(dimensions: int, count: int) -> None:
    parameters = axes_of(dimensions)
    text = picture(parameters, cloud(count, dimensions), NONE[:, :dimensions])
    assert all(f">p{j}</text>" in text for j in range(min(dimensions, MOST_IN_PAIRS)))
    assert f">p{MOST_IN_PAIRS}</text>" not in text
    dots = [marks(group) for group in groups(text, "PathCollection")]
    pairs = min(dimensions, MOST_IN_PAIRS) * (min(dimensions, MOST_IN_PAIRS) - 1) // 2
    if count and dimensions > 1:
        assert dots == [count] * pairs, "each pair of parameters has all points"
    assert (">height</text>" in text) == (count > 0 or dimensions == 1)


def test_a_pair_has_its_parameters_across_and_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.report.scatter.MOST_IN_PAIRS", 3)
    points = np.array([[0.0, 10.0, 200.0, 7.0], [1.0, 20.0, 100.0, 7.0]])
    seen: list[Any] = []
    text = picture(axes_of(4), points, NONE[:, :4], behind=seen.append)
    assert ">p2</text>" in text
    assert ">p3</text>" not in text
    drawn = [axes.collections[0].get_offsets().data.T.tolist() for axes in seen]
    columns = points.T.tolist()
    assert drawn == [[columns[i], columns[j]] for i, j in ((0, 1), (0, 2), (1, 2))]
    below = {(0, 1): seen[0], (0, 2): seen[1], (1, 2): seen[2]}
    place = {pair: axes.get_position() for pair, axes in below.items()}
    assert place[0, 1].x0 == place[0, 2].x0, "one column"
    assert place[0, 2].y0 == place[1, 2].y0, "one row"
    assert [axes.get_xlabel() for axes in seen] == ["", "p0", "p1"]
    assert [axes.get_ylabel() for axes in seen] == ["p1", "p2", ""]


@pytest.mark.parametrize(("dimensions", "dots"), [(1, "line2d"), (2, "PathCollection")])
def test_values_that_are_none_are_left_out_and_failed_points_are_red(
    dimensions: int, dots: str
) -> None:
    values = np.array([1.0, np.nan, np.inf, 2.0])
    lines: list[int] = []
    text = picture(
        axes_of(dimensions),
        cloud(4, dimensions),
        cloud(3, dimensions),
        values=values,
        behind=lambda axes: lines.append(len(axes.lines)),
    )
    assert lines == [0], "what is behind is drawn first"
    assert 2 in [marks(group) for group in groups(text, dots)]
    assert "nan" not in text
    assert "#c8372d" in text
    assert ">height</text>" in text
    assert all(f">p{j}</text>" in text for j in range(dimensions))
    if dimensions == 2:
        assert text.index('id="PathCollection') < text.index("#c8372d"), "failed ones are on top"
        assert set(re.findall(r"font-size: (\d+)px", text)) == {"9"}, "of the colour bar, too"


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [1, 2])
def test_no_picture_has_too_many_dots(dimensions: int) -> None:
    many = cloud(10 * MOST_DOTS, dimensions)
    assert picture(axes_of(dimensions), many, many).count("<use") < 2 * MOST_DOTS + 50


def test_dots_at_the_edge_are_whole() -> None:
    corner = np.array([[1.0, 100.0]])
    seen: list[Any] = []
    text = picture(
        axes_of(2, bounds=(1.0, 100.0)), corner, corner, behind=lambda a: seen.append(a.margins(0))
    )
    (dots,) = groups(text, "PathCollection")
    assert marks(dots) == 1
    assert not any("clip-path" in part.attrib for part in dots.iter())


def limits(parameter: ParameterAxis, points: Array) -> list[tuple[float, float]]:
    """Return the visible ranges of x and y after everything is drawn."""
    seen: list[Any] = []
    picture([parameter] * points.shape[1], points, NONE[:, : points.shape[1]], behind=seen.append)
    return [seen[0].get_xlim(), seen[0].get_ylim()][: points.shape[1]]


@pytest.mark.slow
@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("count", [0, 3])
def test_bounds_are_in_view_even_without_points(is_log: bool, dimensions: int, count: int) -> None:
    parameter = ParameterAxis("k", is_log=is_log, bounds=(0.01, 100.0))
    for low, high in limits(parameter, cloud(count, dimensions)):
        assert low <= 0.01
        assert 100.0 <= high < 1e3
        assert low > 0 or not is_log


@pytest.mark.parametrize(
    "mixed", [(False, True), pytest.param((True, False), marks=pytest.mark.slow)]
)
def test_bounds_of_one_parameter_do_not_depend_on_the_scale_of_the_other(
    mixed: tuple[bool, bool],
) -> None:
    log, linear = ParameterAxis("r", is_log=True), ParameterAxis("c", bounds=(-0.5, 3.5))
    points, seen = cloud(20, 2), []
    parameters = [log if is_log else linear for is_log in mixed]
    picture(parameters, points, NONE[:, :2], behind=lambda axes: seen.append(axes))
    ranges = [seen[0].get_xlim(), seen[0].get_ylim()]
    bounded, free = (1, 0) if mixed[0] else (0, 1)
    assert ranges[bounded] == pytest.approx((-0.7, 3.7)), "the bounds and 5 % around them"
    low, high = ranges[free]
    assert 0.5 < low < points[:, free].min()
    assert points[:, free].max() < high < 3.0


def test_choices_have_their_names() -> None:
    text = picture(
        [ParameterAxis("kind", choices=("soft", "hard")), ParameterAxis("x")],
        np.array([[0.0, 1.0], [1.0, 2.0]]),
        NONE[:, :2],
    )
    assert re.search(">soft</text>", text)
    assert re.search(">hard</text>", text)


def test_the_legend_says_how_values_are_shown() -> None:
    assert legend(axes_of(1), "u") == "Height: u."
    assert legend(axes_of(2), "u") == "Colour: u."


def test_a_figure_is_the_same_text_each_time_in_the_style_of_reports() -> None:
    def text() -> str:
        figure, (axes,) = new_figure(1, 1, width=3.0, height=2.0)
        axes.plot([0, 1], [1, 0])
        return svg_of(figure)

    assert text() == text()
    assert text().startswith("<svg")
    from matplotlib import rcParams

    before = dict(rcParams)
    figure, (axes,) = new_figure(1, 1, width=3.0, height=2.0)
    axes.set_xlabel("load")
    shown = svg_of(figure)
    assert dict(rcParams) == before
    assert GREY in shown
    assert ">load</text>" in shown, "text and not outlines of letters"
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
