"""The options that say which points there are: what they parse to, and mistakes."""

from __future__ import annotations

import pytest

from farm.cli.sweep_points import AskedSpace
from farm.sweep.errors import SweepError
from farm.sweep.space.parameters import Category, Uniform

NOTHING = AskedSpace((), (), (), (), ())


def test_options_are_parsed() -> None:
    asked = AskedSpace(
        ("x=0:1", "s=a,b"), ("mesh=2", "v=1,2", "t=cg"), ("x,y=0.5",), ("x < y",), ("s: x > 0.5",)
    )
    assert asked.is_given
    assert asked.spreads() == {"x": Uniform(0, 1), "s": Category(("a", "b"))}
    assert asked.fixes() == {"mesh": 2, "v": [1, 2], "t": "cg"}
    assert asked.correlations() == {("x", "y"): 0.5}
    assert asked.conditions() == {"s": "x > 0.5"}
    assert not NOTHING.is_given


def test_an_option_that_is_given_twice_is_refused() -> None:
    asked = AskedSpace(
        ("x=0:1", "x=0:2"), ("m=1", "m=2"), ("a,b=0.1", "a,b=0.2"), (), ("s:a>1",) * 2
    )
    for read, name in (
        (asked.spreads, "--param x"),
        (asked.fixes, "--fix m"),
        (asked.correlations, "--correlation a,b"),
        (asked.conditions, "--when s"),
    ):
        with pytest.raises(SweepError, match=f"{name} is given twice"):
            read()
