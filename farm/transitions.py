"""Tables of transitions: which phases a thing goes through, and what leads from one to the next.

A table is made of rows (phases, event, phase). A thing changes its phase in one way only, by the
event that happens to it: `task.phase = SENT[task.phase]`. In a phase in which the event may not
happen that raises `NoTransition` and changes nothing. The diagrams in docs/explanation/phases.md
are drawn from the same tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=IntEnum)
"""Phases are IntEnum members, because a dictionary finds those as fast as plain integers."""


class NoTransition(RuntimeError):
    """An event happened to a thing in a phase in which the table does not allow it: a bug."""


class PhaseEvent(dict[P, P]):
    """One kind of event: the phase after it, for each phase in which it may happen."""

    def __init__(self, table: str, name: str) -> None:
        self.table = table
        self.name = name

    def __missing__(self, phase: P) -> P:
        """Raise NoTransition: the table has no row for this event in `phase`."""
        now = words(phase)
        raise NoTransition(f"{self.table}: {self.name!r} cannot happen in {now!r}")


class Transition(NamedTuple, Generic[P]):
    """One transition of a table."""

    phase: P
    event: str
    then: P


class TransitionTable(Generic[P]):
    """The transitions of one kind of thing, such as tasks.

    begins: the events that make such a thing, and the phase in which each of them leaves it.
    rows: in which phases each event may happen, and the phase that it leads to. A phase that no
    row leaves is an end.
    """

    def __init__(
        self, name: str, *rows: tuple[tuple[P, ...], str, P], begins: dict[str, P]
    ) -> None:
        self.name = name
        self.begins = begins
        self._events: dict[str, PhaseEvent[P]] = {}
        for phases, name_of_event, then in rows:
            event = self._events.setdefault(name_of_event, PhaseEvent(name, name_of_event))
            for phase in phases:
                if phase in event:
                    raise ValueError(f"{name}: two rows for {name_of_event!r} in {words(phase)!r}")
                event[phase] = then

    def event(self, name: str) -> PhaseEvent[P]:
        """The event of this name. Raises KeyError if no row has it."""
        return self._events[name]

    def __iter__(self) -> Iterator[Transition[P]]:
        """All transitions, one for each phase in which an event may happen."""
        for event in self._events.values():
            for phase, then in event.items():
                yield Transition(phase, event.name, then)


def words(phase: IntEnum) -> str:
    """A phase as people read it: its name in lower case."""
    return phase.name.lower().replace("_", " ")
