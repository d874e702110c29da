"""What failed at a farm, and which of its workers died: the rows of `Client.failures`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

Row = TypeVar("Row", bound="FailedCalls | LostWorkers")


@dataclass(frozen=True, slots=True)
class FailedCalls:
    """Calls that failed for one reason: of one model, with one kind of error and one text.

    id: names the reason for `farm failures ID`. kind: class of the error, such as `ModelFailed`.
    text: of the last error; numbers and other changing parts of it may have differed before.
    first, last: Unix times. worker: the last one, None if the call never ran; client: the last
    caller's name or host. inputs: summary of what a call asked. detail: traceback, or the end of
    the worker's log.
    """

    id: str
    kind: str
    model: str
    operation: str
    text: str
    count: int
    first: float
    last: float
    worker: str | None
    client: str
    inputs: str
    detail: str


@dataclass(frozen=True, slots=True)
class LostWorkers:
    """Workers that were lost for one reason.

    id: names the reason for `farm failures ID`. cause: `time limit`, `reclaimed` (its machine was
    taken away), `crash` (of a model on several MPI ranks), or `unknown`: any other end, which the
    text describes. text: of the last loss. first, last: Unix times. worker, host: the last one;
    hosts: losses by host. exit_code: None unless it exited by itself; signal: such as `SIGKILL`, or
    empty. detail: the end of the last one's log.
    """

    id: str
    cause: str
    text: str
    count: int
    first: float
    last: float
    worker: str
    host: str
    hosts: Mapping[str, int]
    exit_code: int | None
    signal: str
    detail: str


def row_of(kind: type[Row], data: Mapping[str, Any]) -> Row:
    """Return the row that a farm describes as JSON data; a newer farm may describe more of it."""
    return kind(**{field.name: data[field.name] for field in fields(kind)})
