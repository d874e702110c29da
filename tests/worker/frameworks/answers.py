"""What a model answers to one call, as from the runner."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.call import Array, Call, Operation
from farm.errors import FarmError
from farm.model import Model
from farm.worker.runner import Runner


def answered(model: Model, call: Call) -> tuple[Array, ...]:
    """Return the outputs of a call, whose model is named "m". Raises FarmError."""
    (outcome,) = Runner({"m": model}).execute([call])
    if isinstance(outcome, FarmError):
        raise outcome
    return outcome.outputs


def evaluated(
    model: Model, *inputs: Any, rows: int | None = None, config: str = "{}"
) -> tuple[Array, ...]:
    """Return the outputs at a point, or at several rows. Raises FarmError."""
    arrays = tuple(np.asarray(x) for x in inputs)
    return answered(model, Call("m", Operation.EVALUATE, arrays, rows=rows, config=config))
