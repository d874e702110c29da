"""The hints of calls in a message, and the origin of one: rows of JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farm.call import LONGEST_NAME, MAX_PRIORITY, Call, Hints, Origin, checked_call_id

LONGEST_S = 1e9
"""Maximum of times in a message; thirty years, so that sums and timers stay finite."""


def hints_row(hints: Hints) -> list[Any]:
    """Return the hints that a client may give as a row, which `hints_of_row` reads."""
    return [hints.client, hints.priority, hints.deadline_s, hints.chain]


def hints_of_row(row: Sequence[Any]) -> Hints:
    """Read a row of hints. Raises TypeError and ValueError if it is not one."""
    client, priority, deadline_s, chain = row
    if not isinstance(client, str) or not isinstance(chain, str | None):
        raise TypeError(f"the names {client!r} and {chain!r}; expected texts")
    if type(priority) is not int:
        raise TypeError(f"the priority {priority!r}; expected a whole number")
    if abs(priority) > MAX_PRIORITY:  # each priority in use costs some time
        raise ValueError(f"the priority {priority}; expected -{MAX_PRIORITY} to {MAX_PRIORITY}")
    if deadline_s is not None and not -LONGEST_S <= deadline_s <= LONGEST_S:
        raise ValueError(f"a deadline of {deadline_s} s")
    client, chain = client[:LONGEST_NAME], None if chain is None else chain[:LONGEST_NAME]
    shown_as = (client, chain) if client or chain else None
    return Hints(client, priority, deadline_s, chain=chain, shown_as=shown_as)


def last_fields(call: Call) -> list[Any]:
    """Return the last fields of a call's row: its origin, and its place in a sequence if any."""
    origin = None if call.origin is None else [call.origin.call_id, call.origin.client]
    return [origin] if call.step is None else [origin, list(call.step)]


def origin_of(row: Sequence[Any]) -> Origin:
    """Read the origin of a call. Raises TypeError and ValueError if it is none."""
    call_id, client = row
    if not isinstance(client, str) or not checked_call_id(call_id):
        raise ValueError(f"the call id {str(call_id)[:100]!r}; expected visible ASCII characters")
    return Origin(call_id, client[:LONGEST_NAME])
