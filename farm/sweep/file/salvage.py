"""Salvages a damaged journal: every record with a valid checksum, even after the damage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from farm.storage.frames import Damage
from farm.sweep.design.plan import Plan
from farm.sweep.file.journal import NO_WORKER, Content, Row, read_past_damage


@dataclass(frozen=True, slots=True)
class Left:
    """The intact part of a journal.

    plan: the last plan in the journal; sequence: the number of its last record, 0 if it has none.
    """

    journal: Path
    plan: Plan | None = None
    sequence: int = 0

    def contents(self) -> Iterator[Content]:
        """Yield the contents of the intact records, in order."""
        if self.sequence:
            for found in read_past_damage(self.journal):
                if not isinstance(found, Damage):
                    yield found.content


def left_in(journal: Path) -> Left:
    """Find the intact part of a journal, which is empty if the file is missing. Raises OSError."""
    plan: Plan | None = None
    sequence = 0
    if journal.exists() and journal.stat().st_size:
        for found in read_past_damage(journal):
            if not isinstance(found, Damage):
                sequence = found.sequence
                plan = found.content if isinstance(found.content, Plan) else plan
    return Left(journal, plan, sequence)


def merged(plan: Plan, *sources: Iterable[Content]) -> Iterator[Content]:
    """Yield the contents of a journal that holds all of `sources`; later outcomes replace earlier.

    plan: the longest plan among the sources, which the new journal is for.
    """
    yield plan
    workers: set[int] = set()
    for source in sources:
        for content in source:
            if isinstance(content, Plan):
                continue
            if isinstance(content, Row):
                if content.point < plan.size:
                    known = content.worker in workers  # the worker's record may be damaged
                    yield content if known else replace(content, worker=NO_WORKER)
            elif content.id not in workers:
                workers.add(content.id)
                yield content
