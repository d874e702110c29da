"""Inputs, outputs and batches of models that predict rows from rows of features."""

from __future__ import annotations

import pickle
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas
import pytest

from farm.call import Array, Call, Operation, Result, TensorInfo
from farm.model import Inputs
from farm.worker.frameworks.fitted import FittedModel, SkopsModel, XgboostModel, as_columns
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner
from farm.worker.specs import version_of


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


X = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]])


@pytest.fixture
def sklearn() -> ModuleType:
    """All tests of it are slow: skops and scikit-learn take ten seconds to import."""
    from tests.worker.frameworks import estimators

    return estimators


def saved(estimator: object, folder: Path, name: str = "model.skops") -> str:
    import skops.io

    skops.io.dump(estimator, folder / name)
    return str(folder / name)


@pytest.mark.slow
def test_a_regressor_in_a_batch(sklearn: ModuleType, tmp_path: Path) -> None:
    fitted = sklearn.make_pipeline(sklearn.StandardScaler(), sklearn.LinearRegression()).fit(
        X, X @ [2.0, -1.0] + 3.0
    )
    spec = saved(fitted, tmp_path)
    models = load_models([spec])
    model = models["model"]
    assert model.description == "LinearRegression of scikit-learn"
    assert model.version == version_of(spec) != ""
    calls = [Call("model", Operation.EVALUATE, (row,)) for row in X]
    outcomes = Runner(models).execute(calls)
    found = [outcome.outputs[0].tolist() for outcome in outcomes if isinstance(outcome, Result)]
    np.testing.assert_allclose(found, (X @ [2.0, -1.0] + 3.0)[:, None], rtol=1e-12)


@pytest.mark.slow
def test_columns_with_names_are_inputs(sklearn: ModuleType, tmp_path: Path) -> None:
    table = pandas.DataFrame(X, columns=["width", "load"])
    model = SkopsModel(saved(sklearn.LinearRegression().fit(table, X @ [1.0, 10.0]), tmp_path))
    assert model.inputs == {name: TensorInfo(name, (1,)) for name in ("width", "load")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "y"), [(["wet", "dry", "wet", "wet"], [1, 0]), ([7, 5, 7, 7], [7, 5])]
)
def test_a_classifier(
    sklearn: ModuleType, tmp_path: Path, labels: list[object], y: list[int]
) -> None:
    fitted = sklearn.LogisticRegression(C=1e6).fit(X, labels)
    model = SkopsModel(saved(fitted, tmp_path))
    assert "with classes" in model.description
    found = model.predict(np.array([[3.0, 1.0], [1.0, 0.0]]))
    assert found["y"].tolist() == [[each] for each in y]
    assert found["probability"].sum(axis=1) == pytest.approx([1.0, 1.0])
    assert list(model.outputs) == ["y", "probability"]


@pytest.mark.slow
def test_unknown_types_are_named_and_refused(sklearn: ModuleType, tmp_path: Path) -> None:
    spec = saved(sklearn.Mine(), tmp_path)
    name = f"{sklearn.__name__}.Mine"
    with pytest.raises(LoadError, match=rf"of the types {name}, whose code runs.*trusted=\['"):
        load_models([spec])
    model = SkopsModel(spec, trusted=[name])
    assert model.predict(X)["y"].tolist() == [[1.0], [1.0], [4.0], [4.0]]


@pytest.mark.slow
def test_other_objects_and_files_are_refused(sklearn: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="holds a StandardScaler, which has no predict"):
        load_models([saved(sklearn.StandardScaler().fit(X), tmp_path, "scaler.skops")])
    with pytest.raises(LoadError, match="without n_features_in_; fit it"):
        load_models([saved(sklearn.LinearRegression(), tmp_path, "raw.skops")])
    (tmp_path / "text.skops").write_text("no zip")
    with pytest.raises(LoadError, match="skops cannot read"):
        load_models([str(tmp_path / "text.skops")])


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".joblib"])
def test_pickles_are_refused_unread(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(LoadError, match=r"is a pickle, .*skops\.io\.dump.*skl2onnx"):
        load_models([str(path)])


# Boosted trees in XGBoost's own files


XGB = np.random.default_rng(1).random((64, 3)).astype(np.float32)
Y = XGB @ [1.0, 2.0, -1.0]


@pytest.fixture
def xgboost() -> ModuleType:
    return import_module("xgboost")  # at run time: it loads scikit-learn, which takes seconds


@pytest.mark.parametrize("suffix", ["ubj", "json"])
def test_the_file_predicts_what_the_model_did(
    xgboost: ModuleType, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"trees.{suffix}"
    fitted = xgboost.XGBRegressor(n_jobs=1, n_estimators=5, max_depth=2).fit(XGB, Y)
    fitted.save_model(path)
    models = load_models([str(path)])
    assert models["trees"].inputs == {"x": TensorInfo("x", (3,), "float32")}
    assert models["trees"].version
    calls = [Call("trees", Operation.EVALUATE, (row.astype(np.float64),)) for row in XGB[:5]]
    outcomes = Runner(models).execute(calls)
    found = [outcome.outputs[0][0] for outcome in outcomes if isinstance(outcome, Result)]
    np.testing.assert_array_equal(found, fitted.predict(XGB[:5]))


def test_columns_classes_and_missing_values(xgboost: ModuleType, tmp_path: Path) -> None:
    table = pandas.DataFrame(XGB, columns=["a", "b", "c"])
    fitted = xgboost.XGBClassifier(n_jobs=1, n_estimators=3).fit(table, np.digitize(Y, [0.5, 1.0]))
    fitted.save_model(tmp_path / "classes.ubj")
    model = XgboostModel(tmp_path / "classes.ubj")
    assert list(model.inputs) == ["a", "b", "c"]
    assert model.outputs == {"y": TensorInfo("y", (3,), "float32")}
    rows = XGB[:2].copy()
    rows[0, 1] = np.nan
    np.testing.assert_array_equal(model.predict(rows)["y"], fitted.predict_proba(rows))


def test_early_stopping_ends_at_the_best_iteration(xgboost: ModuleType, tmp_path: Path) -> None:
    noise = np.random.default_rng(2).random(64)
    fitted = xgboost.XGBRegressor(n_jobs=1, n_estimators=50, early_stopping_rounds=2)
    fitted.fit(XGB[:32], noise[:32], eval_set=[(XGB[32:], noise[32:])], verbose=False)
    fitted.save_model(tmp_path / "early.ubj")
    found = XgboostModel(tmp_path / "early.ubj").predict(XGB)["y"][:, 0]
    np.testing.assert_array_equal(found, fitted.predict(XGB))


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(LoadError, match="XGBoost cannot open"):
        load_models([str(tmp_path / "other.json")])
