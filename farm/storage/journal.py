"""An append-only journal in one file, whose records survive a killed process or machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farm.storage.files import open_own, replacing, sync
from farm.storage.frames import Format, Record, framed, framed_all


class Journal:
    """Appends records to a file, on one thread of the process that holds the file's lock.

    After an OSError the file ends with the last complete record. `sequence` is the number of the
    last record.
    """

    @staticmethod
    def start(
        path: Path,
        format: Format,
        records: Iterable[Record],
        *,
        sequence: int = 0,
        mode: int = 0o644,
    ) -> Journal:
        """Create a journal with `records`; it replaces the file at `path` once it is on disk.

        Readers therefore never see a journal without them. Raises OSError, RecordTooLarge.
        """
        with contextlib.ExitStack() as stack:
            with replacing(path, mode) as new:
                journal = Journal(new, format, sequence=sequence, size=0)
                stack.callback(journal.close)
                for record in records:
                    journal.append(record)
                journal.sync()
            journal.path = path
            sync(path)  # makes the new name durable too
            stack.pop_all()
        return journal

    def __init__(
        self,
        path: Path,
        format: Format,
        *,
        sequence: int = 0,
        size: int | None = None,
        mode: int = 0o644,
    ) -> None:
        """Open a file to append after `size` bytes, and truncate it there; None: create a file.

        size: 0 for an empty file, which becomes a journal. Raises OSError; FileExistsError if a
        file to create exists, and UnsafeFile for one that is not this user's alone.
        """
        self.path = path
        self.sequence = sequence
        self._torn = False  # bytes of a failed write follow the last record
        new = os.O_CREAT | os.O_EXCL if size is None else 0
        self._fd = open_own(path, os.O_RDWR | new, mode)
        try:
            if not size:
                self._size = 0
                self._write(format.magic, durable=False)
            else:
                os.ftruncate(self._fd, size)
                self._size = size
        except OSError:
            os.close(self._fd)
            raise

    @property
    def size(self) -> int:
        """Bytes of the file up to the end of the last record."""
        return self._size

    def append(self, record: Record) -> None:
        """Append one record as `append_all` does."""
        self.append_all([record])

    def append_all(self, records: Sequence[Record], *, durable: bool = False) -> list[int]:
        """Append records with one write; return the offset at which each of them begins.

        Once this returns, they survive the death of this process. If it raises OSError or
        RecordTooLarge, the journal is unchanged. durable: with one sync; they then survive the
        machine's death, and a crash before this returns keeps no part of a record.
        """
        frames = [framed(record, self.sequence + 1 + k) for k, record in enumerate(records)]
        starts = list(accumulate(map(len, frames[:-1]), initial=self._size)) if frames else []
        self._write(b"".join(frames), durable=durable)
        self.sequence += len(records)
        return starts

    def append_rows(self, kind: int, payloads: NDArray[np.uint8]) -> None:
        """Append records of one kind and length, a row for each, as `append_all` does."""
        self._write(framed_all(kind, payloads, self.sequence + 1), durable=False)
        self.sequence += len(payloads)

    def read(self, size: int, offset: int) -> bytes:
        """Return at most `size` bytes of the file from an offset on. Raises OSError."""
        return os.pread(self._fd, size, offset)

    def sync(self) -> None:
        """Make all records survive the death of the machine. Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes, *, durable: bool) -> None:
        if self._torn:
            os.ftruncate(self._fd, self._size)
            self._torn = False
        view = memoryview(data)
        try:
            done = 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], self._size + done)
            if durable:
                os.fsync(self._fd)
        except OSError:
            # Remains of a failed write would hide later records, or look like a record.
            self._torn = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
                self._torn = False
            raise
        self._size += len(data)
