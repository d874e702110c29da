"""The journal of experiments: a SQLite file that alone makes all of them again after any end.

    event(sequence, experiment, body)       what has happened, in order; body: see `events.to_json`

What `append` has confirmed is on disk (WAL, synchronous=FULL). One thread writes; what comes while
it waits for the disk goes into the next transaction together. Others may read meanwhile, see
`read_journal`. `FILE.lock` keeps a second server out; the kernel gives it back when ours is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import orjson

from farm.errors import InvalidInput, Unavailable
from farm.experiment.events import Event, from_json, to_json

logger = logging.getLogger(__name__)

FARM = 0x6661726D
"""The application_id in the file's header: "farm"."""

VERSION = 1
"""The user_version in the file's header: the table above, and the events as they are now."""

A_LOOK_S = 0.05
"""Longer than it takes to look whether a server has the journal."""

BUSY_S = 10.0
"""How long to wait for another program that writes to the file, which none should."""

MOST_TOGETHER = 1000
"""Appends in one transaction at most, so that none waits for ever behind others."""

MAGIC = b"SQLite format 3\0"

SCHEMA = """
CREATE TABLE event (sequence INTEGER PRIMARY KEY, experiment INTEGER NOT NULL, body TEXT NOT NULL)
"""


class _Append(NamedTuple):
    events: Sequence[Event]
    done: Future[None]


class Journal:
    """The open journal of a server: `load` once, then `append`, then `close`."""

    def __init__(self, path: Path) -> None:
        """Open or make it. Raises Unavailable when it cannot be had, or another server has it."""
        self.path = path
        self._lock = _locked(path)
        try:
            self._file = _opened(path)
        except BaseException:
            os.close(self._lock)
            raise
        self._appends: queue.SimpleQueue[_Append | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def load(self) -> Iterator[Event]:
        """All events, from the first one on. Raises Unavailable when the file is damaged."""
        with contextlib.closing(_connect(self.path, "ro")) as file:
            yield from _entries(file, self.path)

    def append(self, events: Sequence[Event]) -> Future[None]:
        """Keep these events, all or none; done when they are on disk.

        Fails with Unavailable when they cannot be written; the next ones may be.
        """
        done: Future[None] = Future()
        self._appends.put(_Append(events, done))
        return done

    def close(self) -> None:
        """Write what was appended, and leave one plain file. May be called twice."""
        if self._lock < 0:
            return
        self._appends.put(None)
        self._thread.join()
        # A reader may have it open. Then the files of the WAL stay, and nothing is lost.
        with contextlib.suppress(sqlite3.Error):
            self._file.execute("PRAGMA busy_timeout = 0")
            # SQLite removes the files of a WAL only for who has used it: `load` may have made them.
            self._file.execute("SELECT count(*) FROM event").fetchone()
            self._file.execute("PRAGMA journal_mode = DELETE")
        self._file.close()
        os.close(self._lock)
        self._lock = -1

    def _run(self) -> None:
        while (first := self._appends.get()) is not None:
            together = [first]
            ended = False
            while len(together) < MOST_TOGETHER and not self._appends.empty():
                following = self._appends.get()
                if following is None:
                    ended = True
                    break
                together.append(following)
            self._write(together)
            if ended:
                return

    def _write(self, appends: Sequence[_Append]) -> None:
        try:
            self._commit([event for append in appends for event in append.events])
        except Exception as error:  # whatever it is, the thread lives on for the others
            if len(appends) > 1:  # it may be the fault of one, as of one that is too large
                for append in appends:
                    self._write([append])
                return
            logger.error("the journal %s cannot be written: %s", self.path, error)
            appends[0].done.set_exception(
                Unavailable(f"the journal {self.path} cannot be written: {error}; nothing was done")
            )
            return
        for append in appends:
            append.done.set_result(None)

    def _commit(self, events: Sequence[Event]) -> None:
        rows = [(event.experiment, _text(event)) for event in events]
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT INTO event (experiment, body) VALUES (?, ?)", rows)
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have done so by itself
                    self._file.execute("ROLLBACK")
            raise


def read_journal(path: Path) -> Iterator[Event]:
    """All events in a journal, also while a server writes. Raises Unavailable."""
    if not path.is_file():
        raise Unavailable(f"there is no journal {path}; `farm experiment serve` makes one")
    with contextlib.closing(_connect(path, "ro")) as file:
        with _explained(path):
            _check_head(file, path)
        yield from _entries(file, path)


def _text(event: Event) -> str:
    data = to_json(event)
    try:
        # Twenty times as quick, which counts: no other thread runs meanwhile.
        return orjson.dumps(data).decode()
    except TypeError:  # whole numbers of more than 64 bits, or texts that are no Unicode
        return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _entries(file: sqlite3.Connection, path: Path) -> Iterator[Event]:
    with _explained(path):
        rows = file.execute("SELECT sequence, body FROM event ORDER BY sequence")
        for expected, (sequence, text) in enumerate(rows, start=1):
            if sequence != expected:
                raise ValueError(f"event {expected} is missing")
            yield from_json(json.loads(text))


def is_served(path: Path) -> bool:
    """Whether a server, or a loop, has the journal now."""
    try:
        descriptor = os.open(_lock_of(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # none ever had it here, or none that we may know of
        return False
    try:
        return not _has_taken(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _locked(path: Path) -> int:
    """A descriptor that holds the lock, until it is closed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"the journal {path} cannot be made: {error.strerror}") from None
    if not _has_taken(descriptor, fcntl.LOCK_EX):
        time.sleep(A_LOOK_S)  # perhaps somebody only looks whether it is served
        if not _has_taken(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            raise Unavailable(
                f"another server has the journal {path}; stop it, or give this one its own "
                "--journal"
            )
    return descriptor


def _has_taken(descriptor: int, lock: int) -> bool:
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _opened(path: Path) -> sqlite3.Connection:
    # SQLite takes any file of a few bytes for an empty one, and overwrites it.
    with contextlib.suppress(FileNotFoundError), path.open("rb") as there:
        if there.read(len(MAGIC)) not in (MAGIC, b""):
            raise Unavailable(f"{path} is no journal of experiments; name another file")
    try:  # SQLite gives its own files beside it the same rights
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise Unavailable(f"the journal {path} cannot be made: {error.strerror}") from None
    file = _connect(path, "rw")
    try:
        with _explained(path):
            if not file.execute("PRAGMA schema_version").fetchone()[0]:
                file.execute("PRAGMA journal_mode = WAL")
                file.execute("BEGIN IMMEDIATE")
                file.execute(f"PRAGMA application_id = {FARM}")
                file.execute(f"PRAGMA user_version = {VERSION}")
                file.execute(SCHEMA)
                file.execute("COMMIT")
            _check_head(file, path)
            (found,) = file.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise ValueError(found)
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = FULL")
    except BaseException:
        file.close()
        raise
    return file


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with _explained(path):
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_S,
            isolation_level=None,  # transactions begin where we say so
            check_same_thread=False,  # made in one thread, and used in another from then on
        )


def _check_head(file: sqlite3.Connection, path: Path) -> None:
    (application,) = file.execute("PRAGMA application_id").fetchone()
    (version,) = file.execute("PRAGMA user_version").fetchone()
    if application != FARM:
        raise Unavailable(f"{path} is no journal of experiments; name another file")
    if version != VERSION:
        raise Unavailable(
            f"the journal {path} has version {version}, this farm writes {VERSION}; "
            "use the release that made it, or name another file"
        )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say in one line why a journal cannot be used."""
    try:
        yield
    except (sqlite3.Error, ValueError, InvalidInput) as error:
        raise Unavailable(f"the journal {path} cannot be used: {error}") from None
