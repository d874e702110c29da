"""Policies of models as texts, and the reserve that they mean."""

from __future__ import annotations

import pytest

from farm.policies import ModelPolicy, read_policies


def test_the_last_text_of_a_model_counts() -> None:
    assert read_policies(["a=1", "b=25%", "a=12.5%", "c=d=3"], ["a=-5", "e=1000"]) == {
        "a": ModelPolicy(reserve_percent=12.5, priority=-5),
        "b": ModelPolicy(reserve_percent=25.0),
        "c=d": ModelPolicy(reserve=3),
        "e": ModelPolicy(priority=1000),
    }


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=x", "a=-1", "a=1.5", "a=101%", "a=%"])
def test_a_wrong_reserve_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=f"reserve has '{text}'; expected NAME=RESERVE"):
        read_policies([text], [])


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=x", "a=--1", "a=1.5", "a=1001", "a=-1001"])
def test_a_wrong_priority_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=f"model_priority has '{text}'; expected NAME=PRIORITY"):
        read_policies([], [text])


@pytest.mark.parametrize(
    ("policy", "slots", "reserved"),
    [
        (ModelPolicy(), 4, 0),
        (ModelPolicy(reserve=2), 4, 2),
        (ModelPolicy(reserve_percent=25), 4, 1),
        (ModelPolicy(reserve_percent=25), 5, 2),
        (ModelPolicy(reserve_percent=7), 100, 7),
    ],
)
def test_a_share_is_rounded_up(policy: ModelPolicy, slots: int, reserved: int) -> None:
    assert policy.reserved(slots) == reserved
    assert policy.has_reserve == (reserved > 0)
