"""Models in the status: sorted, with units and descriptions, and bounded."""

from __future__ import annotations

import json

from farm.call import ModelInfo, TensorInfo
from farm.dispatcher.descriptions import MOST_MODELS, MOST_TENSORS, served_models

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
