"""Points listed in a config."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from farm.errors import InvalidInput
from farm.experiment.config.definition import Generator, Parameter, ParameterKind
from farm.experiment.config.point_list import PointList, outside, read_point_list
from farm.experiment.space import Space

A = Parameter("a", upper=5.0)
N = Parameter("n", ParameterKind.INTEGER, 1.0, 9.0)
K = Parameter("k", ParameterKind.FIXED, value="blue")
COLOUR = Parameter("c", ParameterKind.CATEGORICAL, 0.0, 1.0, choices=("red", "light green"))

SIZE = Parameter("s", ParameterKind.CATEGORICAL, 0.0, 2.0, choices=("0.5", "2", "1.0"))


def listed(
    points: str, parameters: Sequence[Parameter] = (A, N), stimuli: int = 1, **options: str
) -> PointList:
    kind = "SampleAroundPointsGenerator" if "window" in options else "ManualGenerator"
    return read_point_list(
        Generator(kind, "mine", {"points": points, **options}), Space(parameters, stimuli)
    )


@pytest.mark.parametrize(
    ("text", "parameters", "expected"),
    [
        ("[[1, 2], [3.5, 4]]", (A, N), [[1.0, 2.0], [3.5, 4.0]]),
        ("[[1, 2.4],\n[3.5, 4], ]", (A, N), [[1.0, 2.0], [3.5, 4.0]]),
        ("[1, 2]", (A, N), [[1.0, 2.0]]),
        ("[1, 2]", (A,), [[1.0], [2.0]]),
        ("[[1], [2]]", (A,), [[1.0], [2.0]]),
        ("1", (A,), [[1.0]]),
        ("[[1, blue, 2]]", (A, K, N), [[1.0, 2.0]]),
        ("[[1, 2]]", (A, K, N), [[1.0, 2.0]]),
        ("[[1, light green], [2, 'red']]", (A, COLOUR), [[1.0, 1.0], [2.0, 0.0]]),
        ("[[1, 1], [2, 0.0]]", (A, COLOUR), [[1.0, 1.0], [2.0, 0.0]]),
        ("[[1, 1], [2, 0.5]]", (A, SIZE), [[1.0, 2.0], [2.0, 0.0]]),
        ("[[1, 200]]", (A, N), [[1.0, 200.0]]),
    ],
)
def test_points(text: str, parameters: Sequence[Parameter], expected: list[list[float]]) -> None:
    assert listed(text, parameters).points[:, 0, :].tolist() == expected


def test_pairs_stand_for_each_parameter_as_in_answers() -> None:
    points = listed("[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]", stimuli=2).points
    space = Space((A, N), 2)
    assert space.decode(points) == {
        "a": [[1.0, 2.0], [5.0, 6.0]],
        "n": [[3.0, 4.0], [7.0, 8.0]],
    }


def test_shuffling_is_the_default() -> None:
    assert listed("[[1, 2]]").shuffle
    assert not listed("[[1, 2]]", shuffle="False").shuffle


def test_boxes_around_points() -> None:
    found = listed("[[1, 2], [3, 4]]", window="0.5", samples_per_point="10")
    assert len(found) == 20
    assert found.window is not None
    assert found.window.tolist() == [0.5, 0.5]
    wide = listed("[[1, 2]]", (A, K, N), window="[1, 0, 2]").window
    assert wide is not None
    assert wide.tolist() == [1.0, 2.0]


def test_the_same_list_is_read_once() -> None:
    assert listed("[[1, 2], [3, 3]]") is listed("[[1, 2], [3, 3]]")
    with pytest.raises(ValueError, match="read-only"):
        listed("[[1, 2], [3, 3]]").points[0] = 0


def test_points_outside_of_the_bounds_are_counted() -> None:
    space = Space((A, N))
    assert outside(listed("[[1, 2], [6, 2], [-1, 90], [5, 1]]"), space) == 2


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, "[mine] points is missing; expected a list of points such as [[0, 1], [1, 0]]"),
        ("[]", {}, "[mine] points = []: expected a list of points"),
        ("[[1, 2], [3]]", {}, "with 2 values each, but point 1 differs"),
        ("[[1, 2], 3]", {}, "with 2 values each, but point 1 differs"),
        ("[[1, 2]", {}, "']' is missing at the end"),
        ("[[1, two]]", {}, "[mine] points: parameter 'n' is 'two'; expected a finite number"),
        ("[[1, nan]]", {}, "parameter 'n' is 'nan'; expected a finite number"),
        ("[[1, [2, 3]]]", {}, "expected 1 value(s) for each parameter of a point"),
        ("[[1, 2]]", {"shuffle": "so"}, "[mine] shuffle = so: expected true or false"),
        ("[[1, 2]]", {"window": ""}, "[mine] window is missing; expected a number, or one for"),
        ("[[1, 2]]", {"window": "-1"}, "[mine] window = -1: expected a number, or one for each"),
        ("[[1, 2]]", {"window": "[1, 2, 3]"}, "[mine] window = [1, 2, 3]: expected a number, or"),
        ("[[1, 2]]", {"window": "1", "samples_per_point": "0"}, "expected a whole number, 1 or"),
        ("[[1, 2]]", {"window": "1", "samples_per_point": "9999999"}, "1000000 points at most in"),
    ],
)
def test_refusals(text: str, options: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        listed(text, (A, N), 1, **options)
    assert expected in str(caught.value)


def test_points_of_many_coordinates_are_fewer() -> None:
    parameters = [Parameter(f"p{i}") for i in range(50)]
    around = {"window": "1", "samples_per_point": "200001"}
    with pytest.raises(InvalidInput, match="200000 points at most in all"):
        listed(f"[{[0] * 50}]", parameters, 1, **around)
    with pytest.raises(InvalidInput, match="100000 points at most in all"):
        listed(f"[{[[0, 0]] * 50}]", parameters, 2, **around)


def test_pairs_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"2 value\(s\) for each parameter"):
        listed("[[1, 2], [3, 4]]", stimuli=2)
