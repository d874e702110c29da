"""Base class of fitted models that predict rows from rows of features.

`skops.py` and `xgboost.py` beside this file open such files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farm.call import Array
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
            text = " ".join(str(error).split())
            raise ValueError(
                f"it does not predict from {count} numbers: {text}; serve a Python file with a "
                "farm.Model around it"
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
