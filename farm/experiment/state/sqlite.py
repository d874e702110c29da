"""Reads journals of earlier releases, which were SQLite files.

event(sequence, experiment, body)       the events in order; body: see `events.to_json`
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from farm.experiment.state.events import Event, from_json
from farm.storage.errors import StorageError, WrongFormat

FARM = 0x6661726D
"""The application_id in the file's header: "farm"."""

VERSION = 1
"""The user_version in the file's header."""

MAGIC = b"SQLite format 3\0"

BUSY_S = 10.0
"""Time in seconds to wait for another program that has the file open."""


def is_sqlite(path: Path) -> bool:
    """Whether a file is an SQLite database. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_events(path: Path) -> Iterator[Event]:
    """Yield all events in a journal, even while an earlier release of farm writes it.

    Raises WrongFormat, StorageError, ValueError, InvalidInput.
    """
    with _connected(path, "ro") as file:
        yield from _events(file)


@contextlib.contextmanager
def taken(path: Path) -> Iterator[Iterator[Event]]:
    """Yield all events of a journal that no other program uses; afterwards it is one plain file.

    Raises the errors of `read_events`, and StorageError also if the file is damaged or in use.
    """
    with _connected(path, "rw") as file:
        (found,) = file.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StorageError(str(found))
        yield _events(file)
        # Merge what a killed server has left in the write-ahead log into the file.
        (mode,) = file.execute("PRAGMA journal_mode = DELETE").fetchone()
        if mode != "delete":
            raise StorageError("another program has it open; close it there")


@contextlib.contextmanager
def _connected(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    try:
        with contextlib.closing(
            sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)
        ) as file:
            (application,) = file.execute("PRAGMA application_id").fetchone()
            (version,) = file.execute("PRAGMA user_version").fetchone()
            if application != FARM:
                raise WrongFormat(path, "journal of experiments")
            if version != VERSION:
                raise WrongFormat(path, "journal of experiments", version)
            yield file
    except sqlite3.Error as error:
        raise StorageError(str(error)) from None


def _events(file: sqlite3.Connection) -> Iterator[Event]:
    rows = file.execute("SELECT sequence, body FROM event ORDER BY sequence")
    for expected, (sequence, text) in enumerate(rows, start=1):
        if sequence != expected:
            raise StorageError(f"event {expected} is missing")
        yield from_json(json.loads(text))
