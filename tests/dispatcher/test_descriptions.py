"""Descriptions are cached while they are used, and their number is limited."""

from __future__ import annotations

import pytest

from farm.call import ModelInfo
from farm.dispatcher import descriptions
from farm.dispatcher.descriptions import Descriptions
from farm.scheduler.state import WorkerId


def info(name: str, text: str = "") -> ModelInfo:
    return ModelInfo(name, (), (), description=text)


def test_the_ones_that_are_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "MOST_KEPT", 2)
    kept = Descriptions()
    kept.keep("a", "1", info("a"))
    kept.keep("a", "2", info("a"))
    assert kept.find("a", "1") == info("a")
    kept.keep("b", "1", info("b"))
    assert kept.find("a", "2") is None
    assert kept.find("a", "1") == info("a")
    assert kept.find("b", "1") == info("b")
    kept.keep("b", "1", info("b", "newer"))
    assert kept.find("b", "1") == info("b", "newer")


def test_a_long_config_is_not_kept() -> None:
    kept = Descriptions()
    kept.keep("a", "x" * descriptions.LONGEST_CONFIG, info("a"))
    kept.keep("a", "y" * (descriptions.LONGEST_CONFIG + 1), info("a"))
    assert kept.find("a", "x" * descriptions.LONGEST_CONFIG) is not None
    assert kept.find("a", "y" * (descriptions.LONGEST_CONFIG + 1)) is None


def test_those_of_one_model_are_forgotten() -> None:
    kept = Descriptions()
    kept.keep("a", "1", info("a"))
    kept.keep("b", "1", info("b"))
    kept.know(info("a"), WorkerId("w"))
    kept.know(info("a", "new"), WorkerId("w"))
    assert kept.find("a", "1") is None
    assert kept.find("b", "1") is not None
