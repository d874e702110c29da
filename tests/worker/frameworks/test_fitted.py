"""Inputs, outputs and batches of models that predict rows from rows of features."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Array, TensorInfo
from farm.model import Inputs
from farm.worker.frameworks.fitted import FittedModel, as_columns


class Sum(FittedModel):
    name = "sum"

    def predict(self, rows: Array) -> dict[str, Array]:
        return {"y": as_columns(rows.sum(axis=1)), "both": rows[:, :2]}


class Mixed(FittedModel):
    name = "mixed"

    def predict(self, rows: Array) -> dict[str, Array]:
        return {"y": as_columns((rows.sum(axis=1) + 1) / (rows.sum() + 1))}


class Picky(FittedModel):
    name = "picky"

    def predict(self, rows: Array) -> dict[str, Array]:
        raise TypeError("texts,\nplease")


def test_one_vector_of_features() -> None:
    model = Sum()
    model.declare_features(3, [], "float32", None)
    assert model.inputs == {"x": TensorInfo("x", (3,), "float32")}
    assert model.outputs == {
        "y": TensorInfo("y", (1,), "float32"),
        "both": TensorInfo("both", (2,), "float32"),
    }
    assert model.max_batch == 64
    found = model.evaluate(Inputs(x=np.array([[1, 2, 3], [4, 5, 6]], np.float32)), {})
    assert found["y"].tolist() == [[6], [15]]


def test_named_features_and_single_rows() -> None:
    model = Sum()
    model.declare_features(2, ["a", "b"], "float64", 1)
    assert list(model.inputs) == ["a", "b"]
    assert model.max_batch == 1
    assert model.evaluate(Inputs(a=np.array([1.0]), b=np.array([2.0])), {})["y"].tolist() == [3.0]


def test_rows_that_depend_on_one_another_share_no_evaluation() -> None:
    model = Mixed()
    model.declare_features(2, [], "float64", None)
    assert model.max_batch == 1


def test_what_predicts_from_no_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="does not predict from 2 numbers: texts, please; serve"):
        Picky().declare_features(2, [], "float64", None)
