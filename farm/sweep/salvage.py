"""What is left of a damaged journal: every record whose checksum holds, also behind the damage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from farm.sweep.journal import NO_WORKER, Content, Damage, Row, read_past_damage
from farm.sweep.plan import Plan


@dataclass(frozen=True, slots=True)
class Left:
    """plan: the last one in the journal; sequence: the number of its last record."""

    journal: Path
    plan: Plan | None = None
    sequence: int = 0

    def contents(self) -> Iterator[Content]:
        """Its whole records, in order."""
        if self.sequence:
            for found in read_past_damage(self.journal):
                if not isinstance(found, Damage):
                    yield found.content


def left_in(journal: Path) -> Left:
    """What is left in a journal; nothing when there is none. Raises OSError."""
    plan: Plan | None = None
    sequence = 0
    if journal.exists() and journal.stat().st_size:
        for found in read_past_damage(journal):
            if not isinstance(found, Damage):
                sequence = found.sequence
                plan = found.content if isinstance(found.content, Plan) else plan
    return Left(journal, plan, sequence)


def merged(plan: Plan, *sources: Iterable[Content]) -> Iterator[Content]:
    """The contents of a journal that holds all of `sources`; of a point the last outcome counts.

    plan: the longest of theirs, for which this journal is.
    """
    yield plan
    workers: set[int] = set()
    for source in sources:
        for content in source:
            if isinstance(content, Plan):
                continue
            if isinstance(content, Row):
                if content.point < plan.size:
                    known = content.worker in workers  # its own record may be the damaged one
                    yield content if known else replace(content, worker=NO_WORKER)
            elif content.id not in workers:
                workers.add(content.id)
                yield content


def keep_broken(journal: Path) -> Path:
    """Keep a copy of a journal under another name, replacing one of before; gives its path."""
    broken = journal.with_name(journal.name + ".broken")
    broken.unlink(missing_ok=True)
    try:
        os.link(journal, broken)  # not moved: until the new one is there, this one is needed
    except OSError:
        shutil.copy2(journal, broken)
    return broken
