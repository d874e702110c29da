"""Arithmetic from text: its values, and that it allows nothing else."""

from __future__ import annotations

import math
import time
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import InvalidInput
from farm.expression import Expression

VALUES = {
    "cost": np.array([2.0, -3.0]),
    "stress": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 260.0]]),
    "flag": np.array([True]),
    "count": np.array([3], dtype=np.int32),
    "lost": np.array([np.nan, 1.0]),
    "none": np.zeros(0),
    "image": np.array([b"png"], dtype=object),
    "wave": np.array([1 + 2j]),
    "wide": np.zeros((1, 10_000)),
    "tall": np.zeros((10_000, 1)),
}


def number(text: str) -> float:
    return Expression(text, "[farm] outcome.y").number(VALUES)


def answer(text: str) -> str:
    """Return the number as text, or the refusal; any other error fails the test."""
    try:
        return repr(float(number(text)))
    except InvalidInput as error:
        return str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1.0),
        ("-cost[0]", -2.0),
        ("cost[-1]", -3.0),
        ("+count", 3.0),
        ("flag", 1.0),
        ("stress[1, 2]", 260.0),
        ("stress[1][0]", 4.0),
        ("sum(stress[0, 0:2])", 3.0),
        ("max(stress[:, 1])", 5.0),
        ("1 + 2 * 3 ** 2 / 4", 5.5),
        ("2 ** -1", 0.5),
        ("max(stress) > 250", 1.0),
        ("max(stress) <= 250", 0.0),
        ("0 < cost[0] < 3", 1.0),
        ("0 < cost[0] < 1", 0.0),
        ("cost[0] == 2 and cost[1] != 2", 1.0),
        ("cost[0] > 2 or cost[1] >= 0", 0.0),
        ("not flag", 0.0),
        ("not (cost[0] > 2)", 1.0),
        ("max(cost, 7, count)", 7.0),
        ("min(cost[0], cost[1])", -3.0),
        ("sum(cost)", -1.0),
        ("mean(stress[0])", 2.0),
        ("abs(cost[1])", 3.0),
        ("sqrt(16) + exp(0) + log(1)", 5.0),
        ("norm(cost + 1)", math.hypot(3, -2)),
        ("max(abs(cost) * 2)", 6.0),
        ("1e-400", 0.0),
        (".5 + 1. + 1.5E+1 + 2e0", 18.5),
        ("0 * -1", 0.0),
        ("lost[1]", 1.0),
    ],
)
def test_values(text: str, expected: float) -> None:
    value = number(text)
    assert value == expected
    assert not (value == 0 and math.copysign(1, value) < 0)


@pytest.mark.parametrize(
    "text",
    [
        *("lost[0]", "-lost[0] + 1", "lost[0] > 1", "not lost[0]", "lost[0] == lost[0]"),
        *("lost[0] and 1", "lost[0] or 1", "max(lost)", "sum(lost)", "0 < lost[0] < 1"),
        *("sqrt(lost[0])", "lost[0] ** 2", "lost[0] != 1"),
    ],
)
def test_what_is_not_a_number_makes_no_number(text: str) -> None:
    assert math.isnan(number(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", "it divides by zero"),
        ("1 / (cost[0] - 2)", "it divides by zero"),
        ("log(cost[0] - 2)", "the logarithm of zero"),
        ("sqrt(-1)", "the root of a negative number"),
        ("(-8) ** 0.5", "an operation has no result"),
        ("9 ** 9 ** 9 ** 9", "a number becomes too large"),
        ("exp(1000)", "a number becomes too large"),
        ("10 ** 400", "a number becomes too large"),
        ("cost", "gives 2 numbers, of shape [2]; expected one, such as x[0] or max(x)"),
        ("cost > 1", "gives 2 numbers"),
        ("none", "gives 0 numbers"),
        ("max(none)", "takes max of no entries"),
        ("cost[2]", "takes cost[2] of an array of shape [2]"),
        ("cost[0, 0]", "takes cost[0, 0] of an array of shape [2]"),
        ("cost[0][0]", "of an array of shape []"),
        ("max(cost + stress)", "combines shapes [2] and [2, 3]"),
        ("max(wide * tall)", "which do not fit"),
        ("other", "names 'other'; expected one of cost, stress,"),
        ("image[0]", "names 'image', which holds no real numbers"),
        ("wave[0]", "names 'wave', which holds no real numbers"),
    ],
)
def test_values_that_there_are_none_of(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        number(text)
    message = str(caught.value)
    assert message.startswith(f"[farm] outcome.y = {text}: it ")
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        *("cost.real", "cost.__class__", "().__class__", "cost[0].real", "max.__self__"),
        *("__import__('os')", "open('x')", "eval('1')", "max(cost, key=abs)", "max(*cost)"),
        *("lambda: 1", "[1, 2]", "(1, 2)", "{1}", "{}", "[x for x in cost]", "(x for x in cost)"),
        *("cost if flag else 1", "x := 1", "f'{cost}'", "'text'", "b'x'", "1j", "None", "True"),
        *("...", "cost @ cost", "1 % 2", "1 // 2", "1 << 9", "1 | 2", "~1", "cost is None"),
        *("1 in cost", "cost[True]", "cost['a']", "cost[cost[0]]", "cost[0:2:1]", "cost[1.0]"),
        *("cost[...]", "cost[None]", "cost[10**9]", "cost[99999999999999]", "await cost", "yield"),
        *("1; 2", "x = 1", "import os", "", "   ", "1 +", "((1)", "\0", "1 2", "max", "max()"),
        *(
            "abs(1, 2)",
            "sqrt()",
            "cost[:]()",
            "max[0]",
            "1e999",
            "0x",
            "0x1",
            "1if 1else 2",
            "1_",
            "1_0",
            "1.and 2",
            "0xfor 1",
            "1.5.2",
            "2 * 1j",
        ),
        *("global x", "cost\n+\n", "#", "é(1)", "\ud800"),
    ],
)
def test_all_else_is_refused_before_anything_is_done(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Expression(text, "[farm] outcome.y")
    assert str(caught.value).startswith("[farm] outcome.y")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 400 + "1" + ")" * 400, "-" * 900 + "1", "not " * 200 + "1", "abs(" * 190 + "1"),
        *("cost" + "[0]" * 300, "1" + "**9" * 300, "1" * 999, "1+" * 600 + "1", "x" * 10**7),
        *("abs(" * 30 + "1" + ")" * 30, "1 < " * 250 + "1", "9" * 900 + "**" + "9" * 90),
        *("[" * 999, "{" * 500, "(" * 999, "'" * 999, "1 and " * 160 + "1"),
    ],
)
def test_hostile_texts_end_soon(text: str) -> None:
    start = time.process_time()
    assert len(answer(text)) < 400
    assert time.process_time() - start < 2.0


@given(st.text("cost[]()0123 +-*/<>=.,_abdnorexpmixl\n\\'\"#:{}@~", max_size=60))
def test_any_text_gives_a_number_or_one_line(text: str) -> None:
    assert "\n" not in answer(text)


@st.composite
def sums(draw: st.DrawFn, depth: int = 4) -> str:
    if depth == 0 or draw(st.booleans()):
        return str(draw(st.integers(0, 9)))
    left, right = draw(sums(depth - 1)), draw(sums(depth - 1))
    mark = draw(st.sampled_from(["+", "-", "*", "<", "<=", "==", "!=", ">", ">="]))
    return f"(({left}) {mark} ({right}))"


@given(sums())
def test_arithmetic_is_pythons(text: str) -> None:
    assert number(text) == float(eval(text, {}))


def test_what_python_only_warns_of_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so that a warning alone causes no refusal
        assert "it holds '1and'; expected numbers such as" in answer("1and 2")


def test_the_names_are_those_that_need_values() -> None:
    assert Expression("max(stress, cost[0]) > limit", "here").names == {"stress", "cost", "limit"}


def test_shapes_are_checked_without_values() -> None:
    shapes = {"a": np.ones(2), "b": np.ones(2)}
    Expression("1 / (a[0] - b[0])", "here").check_shapes(shapes)
    with pytest.raises(InvalidInput, match="gives 2 numbers"):
        Expression("1 / (a - b)", "here").check_shapes(shapes)


def test_numbers_of_half_precision_count() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = {"y": np.array([1.5], dtype=ml_dtypes.bfloat16)}
    assert Expression("2 * y", "here").number(values) == 3.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("+".join(["x[0]"] * 200), 400.0),
        ("-".join(["x[0]"] * 200), 2.0 - 199 * 2.0),
        ("*".join(["x[0]"] * 30), 2.0**30),
        ("x[0] - " + " + ".join(["x[0] * x[0] / x[0]"] * 45), 2.0 + 43 * 2.0),
        ("x[0]**x[0]**x[0]", 16.0),
        ("2 - 3 + 4 * 2 - 1", 6.0),
    ],
)
def test_an_expression_of_many_terms_is_not_nested(text: str, value: float) -> None:
    assert Expression(text, "it").number({"x": np.array([2.0])}) == value


def test_brackets_in_one_another_are() -> None:
    with pytest.raises(InvalidInput, match="nested deeper than 20"):
        Expression("(1+" * 30 + "1" + ")" * 30, "it")


POINTS = {
    "n": np.array([[1.0, 2.0, 3.0]]),
    "x": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "grid": np.arange(12.0).reshape(2, 2, 3),
    "tol": np.array([0.1, 0.01, 0.001]),
}
"""Arrays of three points, which are along the last axis."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", [2.0, 2.0, 2.0]),
        ("n ** 2 + 1", [2.0, 5.0, 10.0]),
        ("n[0] * x[1]", [4.0, 10.0, 18.0]),
        ("x[-1] - x[0]", [3.0, 3.0, 3.0]),
        ("grid[1, 0]", [6.0, 7.0, 8.0]),
        ("grid[1][0] * n", [6.0, 14.0, 24.0]),
        ("sum(x)", [5.0, 7.0, 9.0]),
        ("max(n, 2)", [2.0, 2.0, 3.0]),
        ("max(x[0:1], tol)", [1.0, 2.0, 3.0]),
        ("mean(grid[:, 1])", [6.0, 7.0, 8.0]),
        ("norm(x[0], 0)", [1.0, 2.0, 3.0]),
        ("n / tol", [10.0, 200.0, 3000.0]),
        ("1 + 9 * (n > 1.5)", [1.0, 10.0, 10.0]),
    ],
)
def test_a_value_for_each_of_many_points(text: str, expected: list[float]) -> None:
    numbers = Expression(text, "--cost").numbers(POINTS, 3)
    assert numbers == pytest.approx(np.array(expected))
    single = [
        Expression(text, "--cost").number({k: np.asarray(a[..., i]) for k, a in POINTS.items()})
        for i in range(3)
    ]
    assert numbers == pytest.approx(np.array(single)), "as if evaluated point by point"


def test_points_without_a_value_have_no_finite_number() -> None:
    numbers = Expression("1 / (n - 2)", "--cost").numbers(POINTS, 3)
    assert np.isfinite(numbers).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x", "gives 2 numbers for each point; expected one"),
        ("n[1]", "takes n[1] of an array of shape [1]"),
        ("n[0, 2]", "takes n[0, 2] of an array of shape [1]"),
        ("tol[0]", "takes tol[0] of an array of shape []"),
        ("m", "names 'm'; expected one of n, x, grid, tol"),
    ],
)
def test_no_index_reaches_the_points(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Expression(text, "--cost").numbers(POINTS, 3)
    assert complaint in str(error.value)


WORDS = {
    "solver": np.array(["euler", "rk4", "", "b'df"]),
    "order": np.array([1.0, 2.0, 3.0, 4.0]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('solver == "rk4"', [0, 1, math.nan, 0]),
        ("solver != 'rk4'", [1, 0, math.nan, 1]),
        ('solver in ("rk4", "euler")', [1, 1, math.nan, 0]),
        ('solver not in ["rk4"]', [1, 0, math.nan, 1]),
        ('''solver == "b'df"''', [0, 0, math.nan, 1]),
        ('solver == "2nd" or order > 1', [0, 1, math.nan, 1]),
        ('not solver == "rk4" and order < 4', [1, 0, math.nan, 0]),
    ],
)
def test_texts_are_compared_where_they_are_allowed(text: str, expected: list[float]) -> None:
    found = Expression(text, "where", texts=True).numbers(WORDS, 4)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(InvalidInput, match=r"holds ['\"]"):
        Expression(text, "where")


def test_the_texts_that_names_are_compared_with_are_known() -> None:
    expression = Expression('a == "x" or b in ("y", "z")', "where", texts=True)
    assert expression.compared == {("a", "x"), ("b", "y"), ("b", "z")}
    assert expression.names == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("solver", "names the text 'solver' alone"),
        ("solver + 1", "names the text 'solver' alone"),
        ("solver == order", "names the text 'solver' alone"),
        ('order == "rk4"', "compares 'order', a number, with a text"),
        ('"rk4" == solver', "expected|holds"),
        ('solver < "rk4"', "expected a text after a name"),
        ('solver == "a" == "b"', "expected a text after a name"),
        ('max(solver) == "a"', "expected a text after a name"),
        ('min == "a"', "expected a text after a name"),
        ('solver == b"a"', "expected numbers and names"),
        ('solver == f"a"', "not offered"),
        ('solver == "a\\n"', "holds"),
        ('solver in ("a", 1)', "not offered"),
        ('solver in "a"', "expected a text after a name"),
        ('"a"', "expected numbers and names"),
        ('x == "a"', "names 'x'; expected one of"),
        ('solver == "a', "holds"),
    ],
)
def test_other_uses_of_texts_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Expression(text, "where", texts=True).numbers(WORDS, 4)
