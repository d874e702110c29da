"""Fitted models that predict rows from rows of features, in files that hold no program to run."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.machine.resources import cpus
from farm.wording import imported, one_line
from farm.worker.frameworks.graph import GraphModel, Port

ROWS = "rows"
"""The symbol of the batch axis."""


class FittedModel(GraphModel):
    """A model of rows of features; a subclass opens it and defines `predict`.

    With names, each feature is an input of one number; otherwise they are one vector `x`.
    """

    def predict(self, rows: Array) -> dict[str, Array]:
        """Return the outputs by name, each with the rows as first axis, for a matrix of features.

        Their names, shapes and types are always the same.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no predict")

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the predictions of rows of inputs."""
        return list(self.predict(np.concatenate(arrays, axis=1)).values())

    def declare_features(
        self, count: int, names: Sequence[str], dtype: str, max_batch: int | None
    ) -> None:
        """Set inputs and outputs from the features and from predictions of made-up rows."""
        made_up = np.zeros((2, count), dtype)
        try:
            found = self.predict(made_up)
        except Exception as error:
            raise ValueError(
                f"it does not predict from {count} numbers: {one_line(error)}; serve a Python file "
                "with a farm.Model around it"
            ) from error
        if names:
            inputs = [Port(name, (ROWS, 1), dtype) for name in names]
        else:
            inputs = [Port("x", (ROWS, count), dtype)]
        outputs = [Port(name, (ROWS, *y.shape[1:]), y.dtype.name) for name, y in found.items()]
        self.declare(inputs, outputs, max_batch)


def as_columns(values: Array) -> Array:
    """Return predictions with a second axis: of size 1 if there is one number per row."""
    values = np.asarray(values)
    return values[:, None] if values.ndim == 1 else values


class SkopsModel(FittedModel):
    """A fitted model of scikit-learn in a file of `skops.io.dump`.

    path: the file. trusted: names of types in it, besides those of scikit-learn, numpy and scipy,
    that it may make, such as `mine.Scaler`: their code runs. max_batch: rows of one evaluation;
    None: 64. name: the name it is served under; None: the file's name without `.skops`.

    Inputs are the features by name if it was fitted to named columns, otherwise a vector `x`.
    Outputs: `y`, what `predict` returns, of a classifier with named classes the position of the
    class; and `probability` of a classifier that has `predict_proba`.
    Raises ValueError if the file cannot be served, ImportError without the extra `sklearn`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        trusted: Sequence[str] = (),
        max_batch: int | None = None,
        name: str | None = None,
    ) -> None:
        path = Path(path)
        self.name = path.stem if name is None else name
        self._estimator = estimator = opened(path, trusted)
        if not callable(getattr(estimator, "predict", None)):
            raise ValueError(
                f"{path.name} holds a {type(estimator).__name__}, which has no predict; expected a "
                "fitted regressor, classifier or pipeline"
            )
        count = getattr(estimator, "n_features_in_", None)
        if count is None:
            raise ValueError(
                f"{path.name} holds a {type(estimator).__name__} without n_features_in_; fit it "
                "before you save it"
            )
        classes = getattr(estimator, "classes_", None)
        self._classes = None
        if isinstance(classes, np.ndarray) and classes.dtype.kind not in "iufb":
            self._classes = classes
        self._has_probability = isinstance(classes, np.ndarray) and hasattr(
            estimator, "predict_proba"
        )
        steps = getattr(estimator, "steps", None)  # of a pipeline
        kind = type(steps[-1][1] if steps else estimator).__name__
        self.description = f"{kind} of scikit-learn"
        if classes is not None:
            self.description += f" with classes {', '.join(map(str, classes))}"
        names = [str(each) for each in getattr(estimator, "feature_names_in_", ())]
        self.declare_features(int(count), names, "float64", max_batch)

    def predict(self, rows: Array) -> dict[str, Array]:
        """Return `y`, and `probability` of a classifier."""
        with warnings.catch_warnings():
            # Fitted to a table with named columns; the inputs are in that order.
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            found = np.asarray(self._estimator.predict(rows))
            if self._classes is not None:
                found = np.searchsorted(self._classes, found)  # classes_ is sorted
            outputs = {"y": as_columns(found)}
            if self._has_probability:
                outputs["probability"] = np.asarray(self._estimator.predict_proba(rows))
        return outputs


def opened(path: Path, trusted: Sequence[str] = ()) -> Any:
    """Return the object in a file of skops. Raises ValueError, ImportError."""
    io = imported("sklearn", "skops files need skops and scikit-learn", "skops.io")
    try:
        unknown = sorted(set(io.get_untrusted_types(file=path)) - set(trusted))
    except Exception as error:  # zip, JSON and skops have their own
        raise ValueError(f"skops cannot read {str(path)!r}: {one_line(error)}") from error
    if unknown:
        raise ValueError(
            f"{path.name} makes objects of the types {', '.join(unknown)}, whose code runs when it "
            "is read. If you know and trust them, serve a Python file with `import farm; model = "
            f"farm.SkopsModel({str(path)!r}, trusted={unknown!r})`"
        )
    try:
        return io.load(path, trusted=list(trusted))
    except Exception as error:
        raise ValueError(f"skops cannot load {str(path)!r}: {one_line(error)}") from error


class XgboostModel(FittedModel):
    """A model in a file of XGBoost's `save_model`, `.ubj` or `.json`.

    path: the file. max_batch: rows of one evaluation; None: 64. name: the name it is served under;
    None: the file's name without its extension.

    Inputs are the features by name if it was fitted to named columns, otherwise a vector `x`; NaN
    is a missing value. The output `y` is what `Booster.predict` returns: a probability for binary
    classification, one of each class for `multi:softprob`. Trees after the best iteration, which
    early stopping finds, are not used.
    Raises ValueError if the file cannot be served, ImportError without the extra `xgboost`.
    """

    def __init__(
        self, path: str | Path, *, max_batch: int | None = None, name: str | None = None
    ) -> None:
        path = Path(path)
        self.name = path.stem if name is None else name
        self._xgboost = xgboost = imported("xgboost", "files of XGBoost need xgboost", "xgboost")
        self._booster = xgboost.Booster({"nthread": cpus()})
        try:
            self._booster.load_model(path)
        except (xgboost.core.XGBoostError, ValueError) as error:
            text = one_line(str(error).partition("Stack trace")[0])
            raise ValueError(f"XGBoost cannot open {str(path)!r}: {text}") from error
        best = self._booster.attr("best_iteration")
        self._range = (0, 0 if best is None else int(best) + 1)
        self.description = f"boosted trees of XGBoost, {self._booster.num_boosted_rounds()} rounds"
        names = list(self._booster.feature_names or ())
        self.declare_features(self._booster.num_features(), names, "float32", max_batch)

    def predict(self, rows: Array) -> dict[str, Array]:
        """Return `y`."""
        matrix = self._xgboost.DMatrix(rows, feature_names=self._booster.feature_names)
        found = self._booster.predict(matrix, iteration_range=self._range)
        return {"y": as_columns(np.asarray(found, np.float32))}
