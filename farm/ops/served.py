"""The base class of all ops: a function of arrays that calls a served model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from farm.ops.asking import Counts
from farm.ops.evaluation import Evaluation


class ServedOp(ABC):
    """A served model as a function of a framework's arrays. Can be pickled.

    Arguments are the inputs in order, of shape (..., *shape of the input); leading axes are points
    and broadcast. Returns the output, of shape (..., *shape of the output), or (...) if it has one
    entry; a tuple if several outputs were asked for. Results have the type of the arguments.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation

    @abstractmethod
    def __call__(self, *inputs: Any) -> Any:
        """Return the output at the points. Raises FarmError."""

    @property
    def counts(self) -> Counts:
        """Return the requests and calls that this process has sent, and the repeats it has not."""
        return self.evaluation.counts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.evaluation.info.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.evaluation,)
