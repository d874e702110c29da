"""Sequences: requests to a model that keeps a state between them.

The requests of one sequence run in order on one worker, which has its state. Source of the terms:
Triton's sequence extension.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any, NamedTuple

SequenceId = int | str
"""The name of a sequence, from its client; 0 and "" name none. 7 and "7" are different ones."""

LARGEST_ID = 2**64 - 1

LONGEST_ID = 128
"""Longest id that is a text, in bytes of UTF-8."""


class SequenceStep(NamedTuple):
    """The place of a call in a sequence.

    start: its first call, for which the model gets a new state; end: its last one, after which the
    state is dropped. One call may be both.
    """

    id: SequenceId
    start: bool = False
    end: bool = False


class SequenceLimits(NamedTuple):
    """The limits of a model with sequences.

    most: sequences that one worker keeps at a time; idle_s: seconds without a request after which a
    sequence is ended.
    """

    most: int
    idle_s: float


class Sequence(dict[str, Any]):
    """The state of one sequence, which a model with `stateful = True` gets with each request.

    It is a dictionary, empty at first, in which the model keeps what it likes. It stays in the
    worker's memory until the sequence ends. id: the name that the client gave it; start, end:
    whether this request is its first, and its last.
    """

    def __init__(self, sequence_id: SequenceId) -> None:
        super().__init__()
        self.id = sequence_id
        self.start = True
        self.end = False


def checked_id(value: Any) -> SequenceId:
    """Return the id of a sequence. Raises TypeError or ValueError with what was expected."""
    if type(value) is int:
        if not 0 < value <= LARGEST_ID:
            raise ValueError(f"{str(value)[:30]}; expected a whole number from 1 to {LARGEST_ID}")
        return value
    if type(value) is not str:
        raise TypeError(f"a {type(value).__name__}; expected a whole number or a text")
    size = len(value.encode("utf-8", "surrogatepass"))
    if not 0 < size <= LONGEST_ID:
        raise ValueError(f"a text of {size} bytes; expected 1 to {LONGEST_ID} bytes")
    return value


def step_of_row(row: Items[Any]) -> SequenceStep:
    """Read the place of a call from JSON values. Raises TypeError and ValueError if it is none."""
    sequence_id, start, end = row
    if type(start) is not bool or type(end) is not bool:
        raise TypeError(f"the flags {start!r} and {end!r} of a sequence; expected true or false")
    return SequenceStep(checked_id(sequence_id), start, end)


def limits_of(data: Any) -> SequenceLimits | None:
    """Read the limits of a model from JSON data. Raises TypeError and ValueError."""
    if data is None:
        return None
    most, idle_s = data
    if type(most) is not int or most < 1:
        raise ValueError(f"{most!r} sequences a worker; expected a whole number, 1 or more")
    if not isinstance(idle_s, int | float) or not 0 < idle_s < float("inf"):
        raise ValueError(f"an idle time of {idle_s!r} s; expected a number above 0")
    return SequenceLimits(most, float(idle_s))


def needs_start(sequence_id: SequenceId, model: str) -> str:
    """Return the text for a request of a sequence that is not known; it is Triton's."""
    return (
        f"inference request for sequence {sequence_id} to model {model!r} must specify the START "
        "flag on the first request of the sequence"
    )
