"""What a sweep tells about the arguments of a plain function, and its value at the first point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from farm.call import TensorInfo
from farm.sweep.design.arguments import model_of, outputs_of, request_of
from farm.sweep.design.points import Design, PointTable, parse_design
from farm.sweep.design.prepare import SweepRequest
from farm.sweep.errors import SweepError
from farm.sweep.space.grammar import as_distribution
from farm.sweep.space.parameters import Uniform


def request(ranges: dict[str, Any], **more: Any) -> SweepRequest:
    spreads = {name: as_distribution(value) for name, value in ranges.items()}
    return SweepRequest(parse_design("random:4"), 7, spreads, **more)


def table(names: tuple[str, ...] | None, *rows: list[float], **more: Any) -> SweepRequest:
    of = PointTable(names, np.array(rows))
    return SweepRequest(parse_design("file:t"), 7, table=of, **more)


def f(x: Any, y: Any = 1, kind: Any = "") -> Any:
    return x


@pytest.mark.parametrize(
    ("asked", "inputs"),
    [
        (request({"x": (0, 1)}), {"x": ((), "float64")}),
        (request({"x": (0, 1), "y": [1, 2]}), {"x": ((), "float64"), "y": ((), "int64")}),
        (request({"x": [1, 2.5]}), {"x": ((), "float64")}),
        (request({"x[0]": (0, 1), "x[2]": [1]}), {"x": ((3,), "float64")}),
        (request({"x[0]": [1], "x[2]": [1]}), {"x": ((3,), "int64")}),
        (request({"x[1,0]": (0, 1), "x[0,2]": (0, 1)}), {"x": ((2, 3), "float64")}),
        (request({"y": (0, 1)}, fixes={"x": 3}), {"x": ((), "int64"), "y": ((), "float64")}),
        (request({"y": (0, 1)}, fixes={"x": [3.0, 1]}), {"x": ((2,), "float64")}),
        (request({"x": (0, 1)}, fixes={"kind": "a"}), {"x": ((), "float64")}),
        (request({"x": (0, 1)}, config={"kind": "a"}), {"x": ((), "float64")}),
        (table(("x", "y"), [0.5, 1], [2, 2]), {"x": ((), "float64"), "y": ((), "int64")}),
        (table(("x[0]", "x[1]"), [0.5, 1]), {"x": ((2,), "float64")}),
        (table(("x", "cost"), [0.5, 1], cost_column="cost"), {"x": ((), "float64")}),
        (table(None, [0.5]), {"x": ((), "float64")}),
    ],
)
def test_sizes_come_from_the_sweep(
    asked: SweepRequest, inputs: dict[str, tuple[tuple[int, ...], str]]
) -> None:
    found = model_of(f, asked).inputs
    for name, (shape, dtype) in inputs.items():
        assert found[name] == TensorInfo(name, shape, dtype)
    assert set(found) == set(inputs) | {"y"} & set(asked.spreads)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (request({"z": (0, 1), "x": (0, 1)}), "no argument 'z'; it takes x, kind, y"),
        (request({"x": (0, 1)}, config={"mesh": 1}), "no argument 'mesh'"),
        (request({"x": (0, 1)}, seed_key="seed"), "no argument 'seed'"),
        (request({"y": (0, 1)}), "'x' of 'f' has no size: give it a range or a number"),
        (request({"u": (0, 1)}), "give it a range or a number; it has no argument 'u'"),
        (request({"x[0]": (0, 1), "x[0,1]": (0, 1)}), "other numbers of indices"),
    ],
)
def test_names_that_do_not_fit(asked: SweepRequest, complaint: str) -> None:
    with pytest.raises(SweepError) as error:
        model_of(f, asked)
    assert complaint in str(error.value)


@pytest.mark.parametrize("other", [3, min])
def test_what_has_no_arguments_to_see_is_refused(other: Any) -> None:
    with pytest.raises(SweepError, match=r"expected a function of Python, a Model, or the name"):
        model_of(other, request({"x": (0, 1)}))


def test_the_first_point_shows_the_outputs() -> None:
    called = []

    def g(x: float, n: int) -> dict[str, Any]:
        called.append((x, n))
        return {"a": x, "b": [1.0] * n}

    asked = request({"x": (2, 3)}, fixes={"n": 5})
    assert outputs_of(model_of(g, asked), asked) == {"a": (), "b": (5,)}
    ((x, n),) = called
    assert 2 <= x <= 3
    assert (type(x), type(n)) == (float, int)


def test_a_function_may_fail_at_two_of_the_first_points_not_at_three() -> None:
    asked = table(("x",), [1.5], [2.5], [3.5], [4.5], [5.5])
    tried: list[float] = []

    def failing(times: int) -> Any:
        def g(x: float) -> float:
            tried.append(x)
            if len(tried) <= times:
                raise ValueError("too large")
            return x

        return g

    assert outputs_of(model_of(failing(2), asked), asked) == {"g": ()}
    tried.clear()
    message = r"failed at the first 3 points.*ValueError: too large"
    with pytest.raises(SweepError, match=message) as error:
        outputs_of(model_of(failing(3), asked), asked)
    assert len(tried) == 3
    files = [line.split(",")[0] for line in error.value.detail.splitlines() if "File" in line]
    assert files == [f'  File "{__file__}"'], "the frames are those of the function alone"


@pytest.mark.parametrize("number", [3, 2.5, np.float32(2.5), np.int64(3)])
def test_a_number_is_held_fixed(number: Any) -> None:
    found = request_of({"x": (0, 1), "y": number}, {"z": [1, 2]}, "random", 8)
    assert found.spreads == {"x": Uniform(0, 1)}
    assert found.fixes == {"y": number, "z": [1, 2]}
    assert found.design == Design("random", (8,))
    assert found.table is None


def test_a_data_frame_has_the_points() -> None:
    frame = pd.DataFrame({"x": [0.5, 1.5], "n": [1, 2]}, index=["a", "b"])
    found = request_of(frame, {"y": 1}, "sobol", None)
    assert found.points() is not None
    assert found.table is not None
    assert found.table.names == ("x", "n")
    assert found.table.rows.tolist() == [[0.5, 1.0], [1.5, 2.0]]
    assert (found.spreads, found.fixes, str(found.design)) == ({}, {"y": 1}, "file:DataFrame")


@pytest.mark.parametrize(
    ("parameters", "more", "complaint"),
    [
        ({"x": 1}, {"fix": {"x": 2}}, "'x' is both a parameter and fixed"),
        ({"x": (0, 1)}, {}, "the design 'sobol' needs a number of points, such as n=256"),
        ({"x": True}, {"n": 8}, "parameter 'x': True is a bool; expected"),
        ({"x": (1, 0)}, {"n": 8}, "parameter 'x': 1:0: expected two finite numbers, the lower"),
        ({1: (0, 1)}, {"n": 8}, "the parameter 1 is a int; expected the name of an input"),
        ([(0, 1)], {}, "parameters is a list; expected a dict"),
        (pd.DataFrame({"x": [1.0]}), {"n": 3}, "give no design and no n"),
        (pd.DataFrame({"x": [1.0]}), {"design": "lhs"}, "give no design and no n"),
        ({"x": (0, 1)}, {"n": 8, "when": "x > 0"}, "when is a str; expected a dict"),
        ({"x": (0, 1)}, {"n": 8, "correlation": [1]}, "correlation is a list; expected a dict"),
        ({"x": (0, 1)}, {"n": 8, "where": [1]}, "1 is a int; expected a text"),
        (pd.DataFrame({"x": ["a", 1]}), {}, "column 'x' of the DataFrame"),
    ],
)
def test_what_is_no_set_of_points(parameters: Any, more: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"fix": {}, "design": "sobol", "n": None, **more}
    with pytest.raises(SweepError) as error:
        request_of(parameters, asked.pop("fix"), asked.pop("design"), asked.pop("n"), **asked)
    assert complaint in str(error.value)
