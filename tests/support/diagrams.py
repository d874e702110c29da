"""The diagrams of docs/explanation/phases.md, drawn from the tables of transitions that run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from farm.experiment.loop.progress import LOOPS
from farm.http1.connections import CONNECTIONS as HTTP
from farm.protocols.mip.connection import CONNECTIONS as MIP
from farm.provision.batch.job_phases import JOBS
from farm.scheduler.phases import ATTEMPTS, TASKS, WORKERS
from farm.transitions import Transition, TransitionTable, words

TABLES: tuple[TransitionTable[Any], ...] = (TASKS, ATTEMPTS, WORKERS, HTTP, MIP, JOBS, LOOPS)


ANY = "any phase"


def diagram(table: TransitionTable[Any]) -> str:
    """A table as a state diagram in Mermaid.

    One arrow stands for all events between two phases, and one for an event that has the same
    effect in every phase.
    """
    rows: list[Transition[Any]] = list(table)
    lasts = {row.then for row in rows} - {row.phase for row in rows}
    anywhere = _anywhere(rows)
    arrows = [("[*]", event, _name(phase)) for event, phase in table.begins.items()]
    arrows += [
        (_name(row.phase), row.event, _name(row.then)) for row in rows if row.event not in anywhere
    ]
    arrows += [("any", event, _name(then)) for event, then in anywhere.items()]
    lines = [f"    {start} --> {end}: {', '.join(on)}" for start, end, on in _merged(arrows)]
    lines += [f"    {_name(phase)} --> [*]" for phase in sorted(lasts)]
    if anywhere:
        lines.append(f'    state "{ANY}" as any')
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def _anywhere(rows: list[Transition[Any]]) -> dict[str, Any]:
    """Events that lead from every phase that is no end to one and the same phase."""
    left = {row.phase for row in rows}
    found = {}
    for event in dict.fromkeys(row.event for row in rows):
        mine = [row for row in rows if row.event == event]
        if {row.phase for row in mine} == left and len({row.then for row in mine}) == 1:
            found[event] = mine[0].then
    return found


def _merged(arrows: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, list[str]]]:
    events: dict[tuple[str, str], list[str]] = {}
    for start, event, end in arrows:
        events.setdefault((start, end), []).append(event)
    return [(start, end, on) for (start, end), on in events.items()]


def _name(phase: Any) -> str:
    return words(phase).replace(" ", "_")
