"""Descriptions are cached while they are used, and their number is limited."""

from __future__ import annotations

import json

import pytest

from farm.call import ModelInfo, TensorInfo
from farm.dispatcher import descriptions
from farm.dispatcher.descriptions import MOST_MODELS, MOST_TENSORS, Descriptions, served_models
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
    for text in ("", "new"):
        kept.know(info("a", text), WorkerId("w"))
    assert kept.models == {"a": info("a", "new")}
    assert kept.find("a", "1") is None, "its model has changed"
    assert kept.find("b", "1") is not None


def test_a_long_config_is_not_kept() -> None:
    kept = Descriptions()
    kept.keep("a", "x" * descriptions.LONGEST_CONFIG, info("a"))
    kept.keep("a", "y" * (descriptions.LONGEST_CONFIG + 1), info("a"))
    assert kept.find("a", "x" * descriptions.LONGEST_CONFIG) is not None
    assert kept.find("a", "y" * (descriptions.LONGEST_CONFIG + 1)) is None


# Models in the status


LOAD = TensorInfo("load", (1,), unit="N", description="at the tip")
BEAM = ModelInfo("beam", (LOAD,), (TensorInfo("u", (3, 2)),), description="a cantilever")


def test_a_model_has_its_inputs_and_outputs_with_units() -> None:
    other = ModelInfo("a", (), ())
    first, second = json.loads(json.dumps(served_models({"beam": BEAM, "a": other})))
    assert first["name"] == "a"
    assert second == {
        "name": "beam",
        "description": "a cantilever",
        "version": "",
        "inputs": [
            {
                "name": "load",
                "shape": [1],
                "dtype": "float64",
                "unit": "N",
                "description": "at the tip",
            }
        ],
        "outputs": [{"name": "u", "shape": [3, 2], "dtype": "float64"}],
        "left_out": 0,
    }


def test_many_models_and_tensors_do_not_make_the_status_long() -> None:
    many = tuple(TensorInfo(f"x{k}", (1,)) for k in range(MOST_TENSORS + 5))
    models = {f"m{k}": ModelInfo(f"m{k}", many, many[:2]) for k in range(MOST_MODELS + 1)}
    shown = served_models(models)
    assert len(shown) == MOST_MODELS
    assert (len(shown[0]["inputs"]), shown[0]["left_out"]) == (MOST_TENSORS, 5)
