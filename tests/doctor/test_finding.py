"""Findings of each weight."""

from __future__ import annotations

import pytest

from farm.doctor.finding import Finding, Weight, ok, warning, wrong


def test_each_weight_has_a_word_for_scripts() -> None:
    assert [ok("a", "b").weight, warning("a", "b", "c").weight, wrong("a", "b", "c").weight] == [
        "ok",
        "warning",
        "wrong",
    ]


@pytest.mark.parametrize("make", [warning, wrong])
def test_what_is_not_ok_has_a_remedy(make: object) -> None:
    assert callable(make)
    found = make("clock", "late", "set it")
    assert isinstance(found, Finding)
    assert (found.subject, found.text, found.remedy) == ("clock", "late", "set it")
    assert ok("clock", "right") == Finding("clock", Weight.OK, "right", "")
