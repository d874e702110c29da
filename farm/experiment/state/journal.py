"""The journal of experiments: one file from which all of them can be restored.

    'E'     the events of one `append`: lines of JSON, one event each, see `events.to_json`

`append` confirms after the data is on disk; appends that arrive during a write share the next one.
Other processes may read meanwhile, see `read_journal`. `FILE.lock` keeps a second server out.
Journals of earlier releases, see `sqlite.py`, can be read unchanged, and are rewritten when a
server opens them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import orjson

from farm.errors import InvalidInput, Unavailable
from farm.experiment.state import sqlite
from farm.experiment.state.events import Event, from_json, to_json
from farm.storage import journal as storage
from farm.storage.commits import Commits
from farm.storage.errors import LockHeld, StorageError, WrongFormat
from farm.storage.files import keep_as, sync
from farm.storage.frames import Format, Frame, Record, damage_after, read_frames
from farm.storage.lock import Lock, is_held

logger = logging.getLogger(__name__)

FORMAT = Format("farm experiments journal", 2, kinds=b"E")
"""Files of version 1 were SQLite databases."""

PRIVATE = 0o600
"""Permissions of the journal: only its owner may read the outcomes."""

EVENTS_A_RECORD = 1000
"""Events per record when a journal is rewritten."""


class ExperimentJournal:
    """The open journal of a server: `load` once, then `append`, then `close`."""

    def __init__(self, path: Path) -> None:
        """Open or create it. Raises Unavailable if that fails, or another server has it open."""
        self.path = path
        lock = _locked(path)
        try:
            with _explained(path):
                file = _opened(path)
        except BaseException:
            lock.release()
            raise
        self._commits: Commits[Sequence[Event]] | None = Commits(
            file, lock, encode=_record, explain=self._unwritten
        )

    def load(self) -> Iterator[Event]:
        """Yield all events from the first on. Raises Unavailable if the file is damaged."""
        return read_journal(self.path)

    def append(self, events: Sequence[Event]) -> Future[None]:
        """Write these events atomically; the future completes when they are on disk.

        It fails with Unavailable if they cannot be written; later appends may succeed.
        """
        assert self._commits is not None, "it is open"
        return self._commits.append(events)

    def close(self) -> None:
        """Write what was appended and release the lock. May be called twice."""
        if self._commits is not None:
            self._commits.close()
            self._commits = None

    def _unwritten(self, error: Exception) -> Unavailable:
        return Unavailable(f"the journal {self.path} cannot be written: {error}; nothing was done")


def read_journal(path: Path) -> Iterator[Event]:
    """Yield all events in a journal, even while a server writes. Raises Unavailable."""
    if not path.is_file():
        raise Unavailable(f"there is no journal {path}; `farm experiment serve` creates one")
    with _explained(path):
        if sqlite.is_sqlite(path):
            yield from sqlite.read_events(path)
            return
        for frame in _frames(path):
            for line in frame.payload.tobytes().splitlines():
                yield from_json(json.loads(line))


def is_served(path: Path) -> bool:
    """Whether a server or a loop has the journal open."""
    return is_held(_lock_of(path))


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _locked(path: Path) -> Lock:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Lock(_lock_of(path), mode=PRIVATE)
    except LockHeld as error:
        raise Unavailable(
            f"another server has the journal {path}; stop it ({error.holder}), or give this one "
            "its own --journal"
        ) from None
    except OSError as error:
        raise Unavailable(f"the journal {path} cannot be created: {error.strerror}") from None


def _opened(path: Path) -> storage.Journal:
    """Return the journal, open at its end; create or rewrite it if needed."""
    if not path.exists() or not path.stat().st_size:
        return storage.Journal.start(path, FORMAT, [], mode=PRIVATE)
    if sqlite.is_sqlite(path):
        return _rewritten(path)
    sequence, end = 0, len(FORMAT.magic)
    for frame in _frames(path):
        sequence, end = frame.sequence, frame.end
    torn = path.stat().st_size - end
    if torn:
        text = "the last %d bytes of the journal %s are no whole record, as after a kill: dropped"
        logger.warning(text, torn, path)
    return storage.Journal(path, FORMAT, sequence=sequence, size=end)


def _rewritten(path: Path) -> storage.Journal:
    """Rewrite a journal of an earlier release; the old file is kept as FILE.sqlite."""
    with sqlite.taken(path) as events:
        records = (_record(part) for part in _parts(events))
        new = path.with_name(path.name + ".converted")
        new.unlink(missing_ok=True)
        journal = storage.Journal.start(new, FORMAT, records, mode=PRIVATE)
    try:
        kept = keep_as(path, ".sqlite")
        os.replace(new, path)
        sync(path)
    except BaseException:
        journal.close()
        new.unlink(missing_ok=True)
        raise
    journal.path = path
    logger.warning("the journal %s has a new format now; the old file is %s", path, kept.name)
    return journal


def _parts(events: Iterator[Event]) -> Iterator[list[Event]]:
    part: list[Event] = []
    for event in events:
        part.append(event)
        if len(part) == EVENTS_A_RECORD:
            yield part
            part = []
    if part:
        yield part


def _frames(path: Path) -> Iterator[Frame]:
    """Yield all records. Raises WrongFormat, OSError, and Unavailable if some are damaged."""
    sequence, end = 0, len(FORMAT.magic)
    for frame in read_frames(path, FORMAT):
        if frame.sequence != sequence + 1:
            break  # the first records are missing
        sequence, end = frame.sequence, frame.end
        yield frame
    if path.stat().st_size > end and (damage := damage_after(path, FORMAT, end, sequence)):
        raise Unavailable(
            f"the journal {path} is damaged from byte {damage.start} to {damage.end}, and events "
            "build on one another: restore a copy, or continue with the part before the damage: "
            f"head -c {damage.start} {path} > NEW"
        )


def _record(events: Sequence[Event]) -> Record:
    return Record(FORMAT.kinds[0], b"\n".join(map(_text, events)))


def _text(event: Event) -> bytes:
    data = to_json(event)
    try:
        # Twenty times as fast, which matters: no other thread runs meanwhile.
        return orjson.dumps(data)
    except TypeError:  # integers of more than 64 bits, or texts that are not valid Unicode
        return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Convert errors into a one-line explanation of why a journal cannot be used."""
    try:
        yield
    except WrongFormat as error:
        if error.version is None:
            raise Unavailable(
                f"{path} is not a journal of experiments; name another file"
            ) from None
        raise Unavailable(
            f"the journal {path} has version {error.version}, this farm writes {FORMAT.version}; "
            "use the release that wrote it, or name another file"
        ) from None
    except (StorageError, OSError, ValueError, InvalidInput) as error:
        raise Unavailable(f"the journal {path} cannot be used: {error}") from None
