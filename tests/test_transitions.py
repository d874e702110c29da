"""Tables of transitions: what they allow, what they refuse, and what they say of themselves."""

from __future__ import annotations

from enum import IntEnum

import pytest

from farm.transitions import NoTransition, TransitionTable, words


class Door(IntEnum):
    OPEN = 1
    SHUT = 2
    LOCKED_UP = 3
    GONE = 4


DOORS = TransitionTable(
    "door",
    ((Door.OPEN,), "is pushed", Door.SHUT),
    ((Door.SHUT,), "is pulled", Door.OPEN),
    ((Door.SHUT,), "is locked", Door.LOCKED_UP),
    ((Door.OPEN, Door.SHUT, Door.LOCKED_UP), "burns", Door.GONE),
    begins={"is built": Door.OPEN},
)


def test_an_event_leads_from_each_phase_to_the_next() -> None:
    burns = DOORS.event("burns")
    assert [burns[phase] for phase in (Door.OPEN, Door.LOCKED_UP)] == [Door.GONE, Door.GONE]
    assert DOORS.event("is pushed")[Door.OPEN] is Door.SHUT


def test_what_is_not_in_the_table_is_refused_with_its_words() -> None:
    pushed = DOORS.event("is pushed")
    with pytest.raises(NoTransition, match=r"^door: 'is pushed' cannot happen in 'locked up'$"):
        pushed[Door.LOCKED_UP]
    assert Door.LOCKED_UP not in pushed


def test_an_event_that_no_row_has_is_unknown() -> None:
    with pytest.raises(KeyError):
        DOORS.event("sings")


def test_all_rows_are_listed_one_for_each_phase() -> None:
    rows = [(row.phase, row.event, row.then) for row in DOORS]
    assert len(rows) == 6
    assert (Door.SHUT, "burns", Door.GONE) in rows


def test_one_event_in_one_phase_has_one_row() -> None:
    with pytest.raises(ValueError, match="two rows for 'rings' in 'open'"):
        TransitionTable(
            "bell",
            ((Door.OPEN,), "rings", Door.SHUT),
            ((Door.SHUT, Door.OPEN), "rings", Door.OPEN),
            begins={},
        )


def test_phases_have_words() -> None:
    assert [words(phase) for phase in Door] == ["open", "shut", "locked up", "gone"]
