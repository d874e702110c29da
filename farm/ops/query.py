"""The five questions that an op asks: values, and derivatives of first and second order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OpQueryKind(StrEnum):
    """The result of a query. J: the Jacobian of the results with respect to the inputs."""

    VALUE = "value"
    """The results."""
    BOTH = "both"
    """The result, which is one number, and its gradients."""
    PULL = "pull"
    """J^T c, for cotangents c of the results: reverse mode."""
    PUSH = "push"
    """J v, for tangents v of the inputs: forward mode."""
    BEND = "bend"
    """The derivative of J^T c along v: second derivatives."""


@dataclass(frozen=True, slots=True)
class OpQuery:
    """A question about points. Operands: the inputs, then cotangents, then tangents.

    outs: the results whose cotangents are given, by position among the op's results; along: the
    inputs whose tangents are given; wrt: the inputs whose gradients are returned.
    """

    kind: OpQueryKind
    outs: tuple[int, ...] = ()
    along: tuple[int, ...] = ()
    wrt: tuple[int, ...] = ()
