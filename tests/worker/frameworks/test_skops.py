"""Fitted models of scikit-learn in files of skops."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import skops.io
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from farm.call import Array, Call, Operation, Result, TensorInfo
from farm.worker.frameworks.skops import SkopsModel
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner
from farm.worker.specs import version_of

X = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]])


class Mine(BaseEstimator):  # type: ignore[misc]  # sklearn is not followed
    """A type that skops does not know."""

    n_features_in_ = 2

    def predict(self, rows: Array) -> Any:
        return rows.sum(axis=1)


def saved(estimator: object, folder: Path, name: str = "model.skops") -> str:
    skops.io.dump(estimator, folder / name)
    return str(folder / name)


def test_a_regressor_in_a_batch(tmp_path: Path) -> None:
    fitted = make_pipeline(StandardScaler(), LinearRegression()).fit(X, X @ [2.0, -1.0] + 3.0)
    spec = saved(fitted, tmp_path)
    models = load_models([spec])
    model = models["model"]
    assert model.description == "LinearRegression of scikit-learn"
    assert model.version == version_of(spec) != ""
    calls = [Call("model", Operation.EVALUATE, (row,)) for row in X]
    outcomes = Runner(models).execute(calls)
    found = [outcome.outputs[0].tolist() for outcome in outcomes if isinstance(outcome, Result)]
    np.testing.assert_allclose(found, (X @ [2.0, -1.0] + 3.0)[:, None], rtol=1e-12)


def test_columns_with_names_are_inputs(tmp_path: Path) -> None:
    table = pandas.DataFrame(X, columns=["width", "load"])
    model = SkopsModel(saved(LinearRegression().fit(table, X @ [1.0, 10.0]), tmp_path))
    assert model.inputs == {name: TensorInfo(name, (1,)) for name in ("width", "load")}


@pytest.mark.parametrize(
    ("labels", "y"), [(["wet", "dry", "wet", "wet"], [1, 0]), ([7, 5, 7, 7], [7, 5])]
)
def test_a_classifier(tmp_path: Path, labels: list[object], y: list[int]) -> None:
    fitted = LogisticRegression(C=1e6).fit(X, labels)
    model = SkopsModel(saved(fitted, tmp_path))
    assert "with classes" in model.description
    found = model.predict(np.array([[3.0, 1.0], [1.0, 0.0]]))
    assert found["y"].tolist() == [[each] for each in y]
    assert found["probability"].sum(axis=1) == pytest.approx([1.0, 1.0])
    assert list(model.outputs) == ["y", "probability"]


def test_unknown_types_are_named_and_refused(tmp_path: Path) -> None:
    spec = saved(Mine(), tmp_path)
    name = f"{Mine.__module__}.Mine"
    with pytest.raises(LoadError, match=rf"of the types {name}, whose code runs.*trusted=\['"):
        load_models([spec])
    sys.modules.setdefault(Mine.__module__, sys.modules[__name__])
    model = SkopsModel(spec, trusted=[name])
    assert model.predict(X)["y"].tolist() == [[1.0], [1.0], [4.0], [4.0]]


def test_other_objects_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="holds a StandardScaler, which has no predict"):
        load_models([saved(StandardScaler().fit(X), tmp_path, "scaler.skops")])
    with pytest.raises(LoadError, match="without n_features_in_; fit it"):
        load_models([saved(LinearRegression(), tmp_path, "raw.skops")])
    (tmp_path / "text.skops").write_text("no zip")
    with pytest.raises(LoadError, match="skops cannot read"):
        load_models([str(tmp_path / "text.skops")])


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".joblib"])
def test_pickles_are_refused_unread(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(LoadError, match=r"is a pickle, .*skops\.io\.dump.*skl2onnx"):
        load_models([str(path)])
