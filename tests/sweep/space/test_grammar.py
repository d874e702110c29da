"""The grammar of distributions: values of Python and texts, messages for mistakes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from farm.sweep.errors import SweepError
from farm.sweep.space.grammar import as_distribution, choice, parse_distribution, parse_parameter
from farm.sweep.space.parameters import Category, Distribution, Log, Normal, Uniform


def test_parameter_is_a_name_and_a_distribution() -> None:
    assert parse_parameter("x[1,2] = log:1e-3:1") == ("x[1,2]", Log(1e-3, 1))


@pytest.mark.parametrize("text", ["k", "=0:1", "k=", " =1"])
def test_parameter_without_name_or_distribution_is_refused(text: str) -> None:
    with pytest.raises(SweepError, match="NAME=DISTRIBUTION"):
        parse_parameter(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("10:0", "lower one first"),
        ("1:1", "lower one first"),
        ("0:1:2", "unknown distribution"),
        ("a:b", "not a number"),
        ("0:inf", "not finite"),
        ("0:nan", "not finite"),
        ("5", "fixed by a number"),
        ("sobol", "unknown distribution"),
        ("", "unknown distribution"),
        ("log:0:1", "above 0"),
        ("log:1", "expected 2"),
        ("normal:0:0", "above 0"),
        ("normal:0:-1", "above 0"),
        ("int:1.5:2", "whole numbers"),
        ("int:5:1", "above the upper"),
        ("int:0:1e300", "2\\*\\*53"),
        ("log:1:1_0", "'1_0' is not a number"),
        ("choice:", "not a number"),
        ("choice:1,x", r'choice:\["1","x"\]'),
        ("choice:true,false", "is not a number"),
        ("choice:a,,b", "'' is not a word"),
        ("choice:a,a", "there twice"),
        ("a:b,c", "not a number"),
        ("choice:[1", "not a list of JSON"),
        ('choice:["a",1]', "expected either texts or numbers"),
        ("choice:1:2", "commas"),
        ("1,,2", "not a number"),
    ],
)
def test_mistakes_say_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(SweepError, match=complaint):
        parse_distribution(text)


@pytest.mark.parametrize(
    ("value", "spread"),
    [
        ((0, 10), Uniform(0, 10)),
        ([1, 2, 4], choice(1, 2, 4)),
        (["euler", "rk4"], Category(("euler", "rk4"))),
        (np.array(["euler", "rk4"]), Category(("euler", "rk4"))),
        (choice("euler", "rk4"), Category(("euler", "rk4"))),
        ("euler,rk4", Category(("euler", "rk4"))),
        ("choice:euler,rk4", Category(("euler", "rk4"))),
        ('choice:["rk 4","2"]', Category(("rk 4", "2"))),
        (np.array([1.0, 2.0]), choice(1, 2)),
        (range(1, 4), choice(1, 2, 3)),
        (pd.Series([4, 1], index=["a", "b"]), choice(4, 1)),
        ("log:1:2", Log(1, 2)),
        (Normal(0, 1), Normal(0, 1)),
    ],
)
def test_distributions_as_python_writes_them(value: object, spread: Distribution) -> None:
    assert as_distribution(value) == spread


@pytest.mark.parametrize("value", [5, (1, 2, 3), {"a": 1}, None, "sobol", np.eye(2)])
def test_what_is_no_distribution_is_refused(value: object) -> None:
    with pytest.raises(SweepError, match=r"expected \(lower, upper\)"):
        as_distribution(value)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (("x", "y"), "'x' is a str; expected a number"),
        ((None, 1), "None is a NoneType; expected a number"),
        ((0, 1j), "1j is a complex; expected a number"),
        ((0, True), "True is a bool; expected a number"),
        (["steel", 1], "the text 'steel' and 1, a int; expected either texts or numbers only"),
        (np.array(["1", "2"]), "is a str_; expected a number"),
        ((0, 10**400), "is a int; expected a number"),
        (stats.norm, "is a norm_gen; expected .*call a distribution with its numbers"),
        (np.zeros((2, 2)), r"array\(\[\[0., 0.\], \[0., 0.\]\]\) is a ndarray; expected"),
        ({"lower": "x" * 99}, r"{'lower': 'x+\.\.\. is a dict; expected"),
    ],
)
def test_another_value_is_named_in_one_line(value: object, complaint: str) -> None:
    with pytest.raises(SweepError, match=complaint) as caught:
        as_distribution(value)
    assert "\n" not in str(caught.value)
