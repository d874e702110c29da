"""Boosted trees in XGBoost's own files, which hold numbers and no program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.machine.cpus import cpus
from farm.worker.frameworks.fitted import FittedModel, as_columns


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
        self._xgboost = xgboost = _xgboost()
        self._booster = xgboost.Booster({"nthread": cpus()})
        try:
            self._booster.load_model(path)
        except (xgboost.core.XGBoostError, ValueError) as error:
            text = " ".join(str(error).partition("Stack trace")[0].split())
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


def _xgboost() -> Any:
    try:
        import xgboost
    except ImportError as error:
        raise ImportError(
            f'files of XGBoost need xgboost: pip install "modelfarm[xgboost]" ({error})'
        ) from error
    return xgboost
