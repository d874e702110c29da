"""The record file: opens it, appends evaluations, reads them back."""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from farm.errors import Unavailable
from farm.machine.forks import renew_in_children
from farm.record.entry import EVALUATION, FORMAT, PREFIX, Entry, Status, decoded, key_and_status
from farm.record.index import INDEXED_BYTES, Index
from farm.storage.errors import LockTaken, RecordTooLarge, StorageError, WrongFormat
from farm.storage.files import is_full, open_regular, resolved
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

TELL_EVERY_S = 5.0
"""Seconds between messages about the progress of reading a large file."""

LOOK_EVERY = 2**16
"""Records between two looks at the clock."""

READ_AT_ONCE = 4096
"""Bytes to read of a record whose length is not known yet; most records are shorter."""

UNREADABLE = (ValueError, KeyError, TypeError, IndexError)
"""Errors of decoding an evaluation that another release of farm wrote."""


def lock_of(path: Path) -> Path:
    """Return the lock file of a record, which is the same for all symbolic links to it."""
    path = path.resolve()
    return path.with_name(path.name + ".lock")


FORKED = "a forked process does not record"


class RecordFile:
    """A record that this process writes. Threads may share it; a forked process does not.

    `damage` has the damaged places found when it was opened. `trouble` says why nothing is
    recorded any more; it is empty while all is well.
    """

    def __init__(self, path: Path, *, indexed: bool) -> None:
        """Open or create a file. indexed: keep an index, for `find`.

        Raises Unavailable if another process records there, or the file is not a record.
        """
        self.path = path
        self.trouble = ""
        self.damage: list[Damage] = []
        self.counts = [0] * len(Status)
        self.index = Index() if indexed else None
        self._is_reported = False
        self._mutex = threading.Lock()  # guards the journal, the index and the counts
        self._lock = self._acquired()
        try:
            self._journal = self._opened()
        except BaseException:
            self._lock.release()
            raise
        self._dirty = False
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="record", daemon=True)
        self._keeper.start()
        renew_in_children(self)

    def renew(self) -> None:
        """Leave the file to the parent; called in a forked process, which records and finds none.

        The index is not used there: a thread of the parent may just have been changing it.
        """
        self.trouble = FORKED
        self._is_reported = True
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
        try:
            path = resolved(self.path)
            if not path.exists():
                return Journal.start(path, FORMAT, (), mode=MODE)
            if not path.is_file():  # devices, pipes and folders, which a new file must not replace
                raise Unavailable(f"record {path} is not a regular file")
            if not path.stat().st_size:
                return Journal.start(path, FORMAT, (), mode=MODE)
            check_trust(path)
            with path.open("rb") as file:
                check_format(file, path, FORMAT)
                start = file.tell()
            sequence, end = self._read_through(start)
            return Journal(path, FORMAT, sequence=sequence, size=end)
        except WrongFormat as error:
            raise Unavailable(wrong_format(error)) from None
        except OSError as error:
            raise Unavailable(f"record {path} cannot be used: {error}") from None

    def _read_through(self, end: int) -> tuple[int, int]:
        """Count and index what the file holds; return the last number, and where it ends."""
        path, index = self.path, self.index
        size, told = path.stat().st_size, time.monotonic()
        sequence = 0
        keys, offsets = bytearray(), array("Q")
        for found in read_past_damage(path, FORMAT):
            if isinstance(found, Damage):
                self.damage.append(found)
                text = "record %s is damaged from byte %d to byte %d; the rest of it is used"
                log.warning(text, path, found.start, found.end)
                continue
            end, sequence = found.end, found.sequence
            if found.kind == EVALUATION:
                key, status = key_and_status(found.payload)
                self.counts[status] += 1
                if index is not None and status == Status.FINITE:
                    keys += key[:INDEXED_BYTES]
                    offsets.append(end - len(found.payload) - PREFIX)
            if sequence % LOOK_EVERY == 0 and time.monotonic() > told + TELL_EVERY_S:
                told = time.monotonic()
                log.warning("record %s: %.0f %% read", path, 100 * end / size)
        if index is not None:
            index.put_all(keys, offsets)
        return sequence, end

    def _count(self, payload: memoryview | bytes, offset: int) -> None:
        key, status = key_and_status(memoryview(payload))
        self.counts[status] += 1
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

    def new_trouble(self) -> str:
        """Return `trouble` if it has not been returned yet, otherwise ""."""
        if self._is_reported:
            return ""
        self._is_reported = bool(self.trouble)
        return self.trouble

    def stop(self, reason: str) -> None:
        """End the recording; evaluations recorded so far can still be found."""
        if not self.trouble:
            self.trouble = reason
            log.error("record %s: nothing more is recorded: %s", self.path, reason)

    def find(self, key: bytes) -> Entry | None:
        """Return the finite evaluation of a key; None if there is none that can be read."""
        index = self.index
        assert index is not None, "the record is opened without an index"
        with self._mutex:
            offset = index.find(key)
            if offset is None:
                return None
            entry = entry_at(offset, self._journal.read)
            if entry is None:
                index.remove(key)
                text = "record %s is damaged at byte %d: the evaluation there is not used"
                log.warning(text, self.path, offset)
                return None
        return entry if entry.key == key and entry.status is Status.FINITE else None

    def _keep(self) -> None:
        """Renew the lock and synchronise the file with the disk, about once a second."""
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
            "points": sum(self.counts),
            "not_finite": self.counts[Status.NOT_FINITE],
            "failed": self.counts[Status.FAILED],
            "bytes": self._journal.size,
            "damaged": [[place.start, place.end] for place in self.damage],
            "trouble": self.trouble,
        }

    def close(self) -> None:
        """Synchronise the file with the disk, close it and release the lock."""
        if self.trouble == FORKED:
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
            f"version {FORMAT.version}; use the release that wrote it, or name another file"
        )
    return f"{error.path} is not a record of farm"


class Stored(NamedTuple):
    """An intact record of a file, from `start` to `end`: an evaluation, or a model's JSON."""

    content: Entry | bytes
    start: int
    end: int


def is_record(path: Path) -> bool:
    """Whether a file begins as a record of any version does."""
    name = FORMAT.name.encode()
    try:
        with open_regular(path) as file:
            return file.read(len(name)) == name
    except OSError:
        return False


def entries_in(path: Path, damage: Callable[[Damage], None]) -> Iterator[Stored]:
    """Yield each intact record of a file.

    damage: called with each damaged place. Of a file that a farm writes now, yields the records up
    to the first damaged place, if there is one. Raises Unavailable.
    """
    try:
        with open_regular(path) as file:
            check_format(file, path, FORMAT)
        for found in _frames(path):
            if isinstance(found, Damage):
                damage(found)
                continue
            start = found.end - len(found.payload) - PREFIX
            if found.kind != EVALUATION:
                yield Stored(found.payload.tobytes(), start, found.end)
                continue
            try:
                yield Stored(decoded(found.payload), start, found.end)
            except UNREADABLE:
                damage(Damage(start, found.end))
    except WrongFormat as error:
        raise Unavailable(wrong_format(error)) from None
    except OSError as error:
        raise Unavailable(f"record {path} cannot be read: {error.strerror or error}") from None


def entry_at(offset: int, read: Callable[[int, int], bytes]) -> Entry | None:
    """Return the evaluation at an offset; None if its checksum or its content is wrong.

    read: returns at most a number of bytes of the file from an offset on.
    """
    try:
        data = read(READ_AT_ONCE, offset)
        if len(data) < PREFIX:
            return None
        length, _ = FRAME.unpack_from(data)
        whole = FRAME.size + length
        if whole > len(data):
            data += read(whole - len(data), offset + len(data))
        payload = intact_record(data)
        return None if payload is None else decoded(payload)
    except (OSError, *UNREADABLE):
        return None


class StoredEntries:
    """Evaluations of a file by their offsets; they are read again whenever they are iterated."""

    def __init__(self, path: Path, offsets: Sequence[int]) -> None:
        self._path = path
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Entry]:
        """Raises Unavailable if one cannot be read."""
        with self._path.open("rb") as file:

            def read(size: int, offset: int) -> bytes:
                return os.pread(file.fileno(), size, offset)

            for offset in self._offsets:
                entry = entry_at(offset, read)
                if entry is None:
                    raise Unavailable(f"record {self._path} cannot be read at byte {offset}")
                yield entry


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
