"""Boosted trees in XGBoost's own files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas
import pytest

from farm.call import Call, Operation, Result, TensorInfo
from farm.worker.frameworks.fitted import XgboostModel
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner

X = np.random.default_rng(1).random((64, 3)).astype(np.float32)
Y = X @ [1.0, 2.0, -1.0]


@pytest.fixture
def xgboost() -> ModuleType:
    return import_module("xgboost")  # at run time: it loads scikit-learn, which takes seconds


@pytest.mark.parametrize("suffix", ["ubj", "json"])
def test_the_file_predicts_what_the_model_did(
    xgboost: ModuleType, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"trees.{suffix}"
    fitted = xgboost.XGBRegressor(n_jobs=1, n_estimators=5, max_depth=2).fit(X, Y)
    fitted.save_model(path)
    models = load_models([str(path)])
    assert models["trees"].inputs == {"x": TensorInfo("x", (3,), "float32")}
    assert models["trees"].version
    calls = [Call("trees", Operation.EVALUATE, (row.astype(np.float64),)) for row in X[:5]]
    outcomes = Runner(models).execute(calls)
    found = [outcome.outputs[0][0] for outcome in outcomes if isinstance(outcome, Result)]
    np.testing.assert_array_equal(found, fitted.predict(X[:5]))


def test_columns_classes_and_missing_values(xgboost: ModuleType, tmp_path: Path) -> None:
    table = pandas.DataFrame(X, columns=["a", "b", "c"])
    fitted = xgboost.XGBClassifier(n_jobs=1, n_estimators=3).fit(table, np.digitize(Y, [0.5, 1.0]))
    fitted.save_model(tmp_path / "classes.ubj")
    model = XgboostModel(tmp_path / "classes.ubj")
    assert list(model.inputs) == ["a", "b", "c"]
    assert model.outputs == {"y": TensorInfo("y", (3,), "float32")}
    rows = X[:2].copy()
    rows[0, 1] = np.nan
    np.testing.assert_array_equal(model.predict(rows)["y"], fitted.predict_proba(rows))


def test_early_stopping_ends_at_the_best_iteration(xgboost: ModuleType, tmp_path: Path) -> None:
    noise = np.random.default_rng(2).random(64)
    fitted = xgboost.XGBRegressor(n_jobs=1, n_estimators=50, early_stopping_rounds=2)
    fitted.fit(X[:32], noise[:32], eval_set=[(X[32:], noise[32:])], verbose=False)
    fitted.save_model(tmp_path / "early.ubj")
    found = XgboostModel(tmp_path / "early.ubj").predict(X)["y"][:, 0]
    np.testing.assert_array_equal(found, fitted.predict(X))


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(LoadError, match="XGBoost cannot open"):
        load_models([str(tmp_path / "other.json")])
