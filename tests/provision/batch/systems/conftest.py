"""Commands of a batch system that do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.system import Adapter, BatchError, JobRow, Listing
from farm.provision.batch.systems import BUILT_IN


class Commands:
    """A folder of commands, the first on the PATH; the file `said` has the words of each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def does(self, name: str, script: str = "true") -> None:
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/said\n{script}\n')
        program.chmod(0o755)

    def prints(self, name: str, text: str, then: str = "") -> None:
        """The command prints a text; then: how it goes on, such as `>&2; exit 1`."""
        (self.folder / f"{name}.text").write_text(text)
        self.does(name, f"cat {self.folder}/{name}.text {then}")

    def said(self) -> list[str]:
        return (self.folder / "said").read_text().splitlines()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The commands of all systems, which do nothing but note their words."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    made = Commands(tmp_path / "bin")
    for name in (name for system in BUILT_IN for name in system.commands):
        made.does(name)
    return made


def told(answer: Awaitable[JobRow | None]) -> str | type[BatchError] | None:
    """What a system tells of a job, in words; the error if it tells nothing."""

    async def awaited() -> JobRow | None:
        return await answer

    try:
        row = asyncio.run(awaited())
    except BatchError:
        return BatchError
    return row.in_words if row else None


def assert_whole(listing: Listing, problem: str, rows: int) -> None:
    """It has so many rows, and is whole unless there is a problem, told with these words."""
    assert len(listing.rows) == rows
    assert problem in listing.problem
    assert bool(problem) == bool(listing.problem)


def directives(adapter: type[Adapter], **values: Any) -> list[str]:
    """The lines with which a script asks for a job of a kind with these values."""
    kind = WorkerKind(**{"name": "small", "models": ["m.py"], **values})
    return adapter.directives(kind, "farm-1-small+ab", Path("/run dir/jobs"), Path("/home me"))
