"""Models of scikit-learn, which takes seconds to import: tests import this module at run time."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from farm.call import Array

__all__ = ["LinearRegression", "LogisticRegression", "Mine", "StandardScaler", "make_pipeline"]


class Mine(BaseEstimator):  # type: ignore[misc]  # sklearn is not followed
    """A type that skops does not know."""

    n_features_in_ = 2

    def predict(self, rows: Array) -> Any:
        return rows.sum(axis=1)
