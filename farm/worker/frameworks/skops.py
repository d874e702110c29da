"""Fitted models of scikit-learn in files of skops, which are read without running them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.worker.frameworks.fitted import FittedModel, as_columns


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
    try:
        import skops.io
    except ImportError as error:
        raise ImportError(
            f'skops files need skops and scikit-learn: pip install "modelfarm[sklearn]" ({error})'
        ) from error
    try:
        unknown = sorted(set(skops.io.get_untrusted_types(file=path)) - set(trusted))
    except Exception as error:  # zip, JSON and skops have their own
        text = " ".join(str(error).split())
        raise ValueError(f"skops cannot read {str(path)!r}: {text}") from error
    if unknown:
        raise ValueError(
            f"{path.name} makes objects of the types {', '.join(unknown)}, whose code runs when it "
            "is read. If you know and trust them, serve a Python file with `import farm; model = "
            f"farm.SkopsModel({str(path)!r}, trusted={unknown!r})`"
        )
    try:
        return skops.io.load(path, trusted=list(trusted))
    except Exception as error:
        text = " ".join(str(error).split())
        raise ValueError(f"skops cannot load {str(path)!r}: {text}") from error
