"""Hints in a message arrive as they were, and nothing else is taken for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.call import LONGEST_NAME, Hints, Origin
from farm.wire.messages import hints_of_row, hints_row, origin_of


@pytest.mark.parametrize(
    "hints",
    [Hints(), Hints("me", 3, 2.5), Hints("me", chain=""), Hints("me", -1, chain="chain 7")],
)
def test_hints_arrive_as_they_were(hints: Hints) -> None:
    assert hints_of_row("", *json.loads(json.dumps(hints_row(hints)))) == hints


def test_long_names_are_cut() -> None:
    hints = hints_of_row("", *["c" * 1000, 0, None, "x" * 1000])
    assert (hints.client, hints.chain) == ("c" * LONGEST_NAME, "x" * LONGEST_NAME)


@pytest.mark.parametrize(
    ("client", "chain", "shown_as"),
    [
        ("", None, None),
        ("", "", None),
        ("me", None, ("me", None)),
        ("me", "", ("me", "")),
        ("", "chain 7", ("", "chain 7")),
        ("c" * 1000, "x" * 1000, ("c" * LONGEST_NAME, "x" * LONGEST_NAME)),
    ],
)
def test_calls_that_give_a_name_are_shown_under_it(
    client: str, chain: str | None, shown_as: tuple[str, str | None] | None
) -> None:
    assert hints_of_row("", *[client, 0, None, chain]).shown_as == shown_as


@pytest.mark.parametrize(
    "row",
    [
        [1, 0, None, None],
        ["me", 0.5, None, None],
        ["me", True, None, None],
        ["me", 1001, None, None],
        ["me", 0, "soon", None],
        ["me", 0, float("nan"), None],
        ["me", 0, 1e12, None],
        ["me", 0, None, 7],
        ["me", 0, None],
        ["me", 0, None, "x", 1],
    ],
)
def test_anything_else_is_an_error(row: list[Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        hints_of_row("", *row)


def test_a_row_that_only_equals_an_earlier_one_is_an_error() -> None:
    assert hints_of_row("", "me", 1, None, None).priority == 1
    for priority in (True, 1.0):
        with pytest.raises(TypeError):
            hints_of_row("", "me", priority, None, None)


def test_the_sender_names_a_client_without_a_name() -> None:
    for client, name in (("", "host"), ("me", "me")):
        hints = hints_of_row("host", client, 0, None, None)
        assert (hints.client, hints.patient) == (name, True)
        assert hints.shown_as == ((client, None) if client else None)


def test_an_origin_arrives_as_it_was() -> None:
    assert origin_of(["a-1", "anna"]) == Origin("a-1", "anna")
    assert origin_of(["a-1", "c" * 1000]).client == "c" * LONGEST_NAME


@pytest.mark.parametrize(
    "row",
    [
        ["", "c"],
        ["a b", "c"],
        ["x" * 129, "c"],
        ["a", None],
        [1, "c"],
        [None, "c"],
        ["a"],
        "",
        None,
    ],
)
def test_other_values_are_no_origins(row: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        origin_of(row)
