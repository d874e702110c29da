"""The record file: opens it, appends evaluations, reads them back."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from farm.errors import Unavailable
from farm.machine.forks import renew_in_children
from farm.record.entry import (
    EVALUATION,
    FORMAT,
    PREFIX,
    Entry,
    Status,
    decoded,
    key_and_status,
)
from farm.record.index import Index
from farm.storage.errors import LockTaken, RecordTooLarge, StorageError, WrongFormat
from farm.storage.files import is_full
from farm.storage.frames import (
    FRAME,
    Damage,
    Frame,
    Record,
    check_format,
    damage_after,
    intact_record,
    read_frames,
    read_past_damage,
)
from farm.storage.journal import Journal
from farm.storage.lock import BEAT_S, Lock, is_held

log = logging.getLogger(__name__)

MODE = 0o600
"""Permissions of a new record: inputs and outputs are their owner's."""

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

READ_AT_ONCE = 4096
"""Bytes to read of a record whose length is not known yet; most records are shorter."""

UNREADABLE = (ValueError, KeyError, TypeError, IndexError)
"""Errors of decoding an evaluation that another release of farm wrote."""


def lock_of(path: Path) -> Path:
    """Return the lock file of a record."""
    return path.with_name(path.name + ".lock")


class RecordFile:
    """A record that this process writes. Threads may share it; a forked process does not.

    `damage` has the damaged places found when it was opened. `trouble` says why nothing is
    recorded any more; it is empty while all is well.
    """

    def __init__(
        self, path: Path, *, indexed: bool, on_trouble: Callable[[str], None] | None = None
    ) -> None:
        """Open or create a file. indexed: keep an index, for `find`.

        on_trouble: called with the reason, on any thread, when recording stops.
        Raises Unavailable if another process records there, or the file is not a record.
        """
        self.path = path
        self.trouble = ""
        self.damage: list[Damage] = []
        self.counts = dict.fromkeys(Status, 0)
        self.index = Index() if indexed else None
        self._on_trouble = on_trouble or (lambda reason: None)
        self._mutex = threading.Lock()  # guards the journal, the index and the counts
        self._lock = self._acquired()
        try:
            self._journal = self._opened()
        except BaseException:
            self._lock.release()
            raise
        self._dirty = False
        self._is_parents = False
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="record", daemon=True)
        self._keeper.start()
        renew_in_children(self)

    def renew(self) -> None:
        """Leave the file to the parent; called in a forked process, which records and finds none.

        The index is not used there: a thread of the parent may just have been changing it.
        """
        self._is_parents = True
        self.trouble = "a forked process does not record"
        self._mutex = threading.Lock()
        if self.index is not None:
            self.index = Index()

    def _acquired(self) -> Lock:
        try:
            return Lock(lock_of(self.path), mode=MODE)
        except StorageError as error:
            raise Unavailable(
                f"record {self.path} is in use: {error}. Stop that program, or record to another "
                "file; `farm record merge` joins records"
            ) from None
        except OSError as error:
            raise Unavailable(f"record {self.path} cannot be written: {error}") from None

    def _opened(self) -> Journal:
        path = self.path
        try:
            if not path.exists() or not path.stat().st_size:
                return Journal.start(path, FORMAT, (), mode=MODE)
            check_trust(path)
            with path.open("rb") as file:
                check_format(file, path, FORMAT)
                end = file.tell()
            sequence = 0
            for found in read_past_damage(path, FORMAT):
                if isinstance(found, Damage):
                    self.damage.append(found)
                    text = "record %s is damaged from byte %d to byte %d; the rest of it is used"
                    log.warning(text, path, found.start, found.end)
                    continue
                end, sequence = found.end, found.sequence
                if found.kind == EVALUATION:
                    self._count(found.payload, end - len(found.payload) - PREFIX)
            return Journal(path, FORMAT, sequence=sequence, size=end)
        except WrongFormat as error:
            raise Unavailable(wrong_format(error)) from None
        except OSError as error:
            raise Unavailable(f"record {path} cannot be used: {error}") from None

    def _count(self, payload: memoryview | bytes, offset: int) -> None:
        key, status = key_and_status(memoryview(payload))
        self.counts[Status(status)] += 1
        if self.index is not None and status == Status.FINITE:
            self.index.put(key, offset)

    def add(self, records: Sequence[Record]) -> None:
        """Append records; once this returns, they survive the death of this process.

        A write error ends the recording: `trouble` is set, and this and later records are dropped.
        """
        if not records or self.trouble:
            return
        reason = ""
        with self._mutex:
            try:
                starts = self._journal.append_all(records)
            except RecordTooLarge as error:
                log.warning("record %s: %s; it is left out", self.path, error)
                return
            except OSError as error:
                reason = "the disk is full" if is_full(error) else str(error.strerror or error)
            else:
                self._dirty = True
                for record, start in zip(records, starts, strict=True):
                    if record.kind == EVALUATION:
                        self._count(record.payload, start)
        if reason:
            self.stop(reason)

    def stop(self, reason: str) -> None:
        """End the recording; evaluations recorded so far can still be found."""
        if not self.trouble:
            self.trouble = reason
            log.error("record %s: nothing more is recorded: %s", self.path, reason)
            self._on_trouble(reason)

    def find(self, key: bytes) -> Entry | None:
        """Return the finite evaluation of a key; None if there is none that can be read."""
        index = self.index
        assert index is not None, "the record is opened without an index"
        with self._mutex:
            offset = index.find(key)
            if offset is None:
                return None
            entry = self._read(offset)
            if entry is None:
                index.remove(key)
                text = "record %s is damaged at byte %d: the evaluation there is not used"
                log.warning(text, self.path, offset)
                return None
        return entry if entry.key == key and entry.status is Status.FINITE else None

    def _read(self, offset: int) -> Entry | None:
        """Return the evaluation at an offset; None if its checksum or its content is wrong."""
        try:
            data = self._journal.read(READ_AT_ONCE, offset)
            if len(data) < PREFIX:
                return None
            length, _ = FRAME.unpack_from(data)
            whole = FRAME.size + length
            if whole > len(data):
                data += self._journal.read(whole - len(data), offset + len(data))
            payload = intact_record(data)
            return None if payload is None else decoded(payload)
        except (OSError, *UNREADABLE):
            return None

    def _keep(self) -> None:
        """Renew the lock, and have the disk take what was written, about once a second."""
        while not self._closing.wait(BEAT_S):
            try:
                self._lock.beat()
            except LockTaken as error:
                self.stop(str(error))
                return
            except (StorageError, OSError):
                continue
            self._sync()

    def _sync(self) -> None:
        if not self._dirty:
            return
        self._dirty = False
        try:
            self._journal.sync()
        except OSError as error:
            self.stop(str(error.strerror or error))

    def status(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        return {
            "file": str(self.path),
            "points": sum(self.counts.values()),
            "not_finite": self.counts[Status.NOT_FINITE],
            "failed": self.counts[Status.FAILED],
            "bytes": self._journal.size,
            "damaged": [[place.start, place.end] for place in self.damage],
            "trouble": self.trouble,
        }

    def close(self) -> None:
        """Have the disk take everything, close the file and release the lock."""
        if self._is_parents:
            self._journal.close()
            return
        self._closing.set()
        self._keeper.join()
        self._sync()
        self._journal.close()
        self._lock.release()


def check_trust(path: Path) -> None:
    """Raise Unavailable if another user may have written the file: farm answers calls from it."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise Unavailable(f"record {path} is not a regular file")
    if found.st_uid != os.geteuid():
        raise Unavailable(
            f"record {path} belongs to user {found.st_uid}; copy what you trust of it into a file "
            f"of your own: farm record merge {path} -o OWN.record"
        )
    if found.st_mode & WRITABLE_BY_OTHERS:
        raise Unavailable(
            f"others may write record {path} (mode {found.st_mode & 0o777:o}, expected 600), and "
            f"calls are answered from it; run: chmod 600 {path}"
        )


def wrong_format(error: WrongFormat) -> str:
    """Return the message for a file that is not a record of this release's version."""
    if error.version is not None:
        return (
            f"{error.path} has version {error.version} of farm's record format; this farm reads "
            f"version {FORMAT.version}"
        )
    return f"{error.path} is not a record of farm"


def entries_in(path: Path, damage: Callable[[Damage], None]) -> Iterator[tuple[int, Entry | bytes]]:
    """Yield each intact record of a file with the offset after it: evaluations, and models' JSON.

    damage: called with each damaged place. Of a file that a farm writes now, yields the records up
    to the first damaged place, if there is one. Raises Unavailable.
    """
    try:
        with path.open("rb") as file:
            check_format(file, path, FORMAT)
        for found in _frames(path):
            if isinstance(found, Damage):
                damage(found)
            elif found.kind != EVALUATION:
                yield found.end, found.payload.tobytes()
            else:
                try:
                    yield found.end, decoded(found.payload)
                except UNREADABLE:
                    start = found.end - len(found.payload) - PREFIX
                    damage(Damage(start, found.end))
    except WrongFormat as error:
        raise Unavailable(wrong_format(error)) from None
    except OSError as error:
        raise Unavailable(f"record {path} cannot be read: {error.strerror or error}") from None


def _frames(path: Path) -> Iterator[Frame | Damage]:
    if not is_held(lock_of(path)):
        yield from read_past_damage(path, FORMAT)
        return
    end = sequence = 0
    for frame in read_frames(path, FORMAT):  # the file may shrink if its writer meets a full disk
        end, sequence = frame.end, frame.sequence
        yield frame
    place = damage_after(path, FORMAT, end, sequence) if end else None
    if place is not None:
        yield place
