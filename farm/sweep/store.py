"""The one writer of a sweep: each outcome goes to the journal at once, in batches to the HDF5 file.

A killed process loses nothing: the journal holds all outcomes, and alone can rebuild the file. A
machine that dies loses the last second. The files of a sweep `s.h5`:

    s.h5                what everybody reads
    s.h5.journal        while it runs or is incomplete: everything, from the plan on
    s.h5.lock           while a process writes
    s.h5.status.json    how far it is, for people and programs that watch
    s.h5.journal.new    for a moment, while a journal is made
    s.h5.broken         a file that did not open any more and was rebuilt from the journal
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py

from farm.sweep import layout
from farm.sweep.errors import SweepError
from farm.sweep.journal import NO_WORKER, Journal, Row, Status, Worker
from farm.sweep.known import Known
from farm.sweep.lock import Lock, machine
from farm.sweep.plan import Plan
from farm.sweep.recover import (
    HDF5_ERRORS,
    RUNNING,
    check_space,
    compress,
    journal_of,
    make_file,
    open_file,
    recover,
    sync,
    verify,
)

log = logging.getLogger(__name__)

BATCH_ROWS = 256
BATCH_BYTES = 64 * 2**20
BATCH_S = 1.0

COMPLETE = "complete"
"""The state of a sweep that ran to its end; others are words for why it did not."""


class Store:
    """The open files of one sweep; one thread uses it. Made by `create` or `resume`.

    `trouble` says why outcomes cannot be written now, and is empty when they can. They are kept in
    memory meanwhile, so the caller should begin nothing new until it is empty again.
    """

    def __init__(
        self, path: Path, plan: Plan, known: Known, file: h5py.File, journal: Journal, lock: Lock
    ) -> None:
        self.path = path
        self.plan = plan
        self.known = known
        self.trouble = self._last_trouble = ""
        self._columns = plan.columns
        self._row_size = plan.row_size
        self._file = file
        self._journal = journal
        self._lock = lock
        self._worker_ids = {w.name: w.id for w in known.workers}
        self._unwritten: deque[Row | Worker] = deque()  # not in the journal yet
        self._batch: list[Row] = []  # in the journal, not in the file yet
        self._committed = self._synced = time.monotonic()

    @staticmethod
    def create(path: Path, plan: Plan) -> Store:
        """Begin a new sweep. Raises SweepError, also when there is a file already, and OSError."""
        lock = Lock(lock_of(path))
        try:
            Store.refuse_to_overwrite(path)
            check_space(path, plan)
            journal = Journal.start(journal_of(path), [plan])
            try:
                make_file(path, plan)
                file = _open_to_write(path)
            except BaseException:
                journal.close()
                journal.path.unlink()
                path.unlink(missing_ok=True)
                raise
        except BaseException as error:
            lock.release()
            if isinstance(error, HDF5_ERRORS):
                raise SweepError(f"{path} cannot be made: {error}") from error
            raise
        return Store(path, plan, Known.nothing(plan.size), file, journal, lock)

    @staticmethod
    def refuse_to_overwrite(path: Path) -> None:
        """Raise SweepError when there is a sweep, or any file, at `path`."""
        there = next((p for p in (path, journal_of(path)) if p.exists()), None)
        if there is None:
            return
        raise SweepError(
            f"{there} exists: go on with that sweep by --resume {path}, or write to another file"
        )

    @staticmethod
    def resume(path: Path) -> Store:
        """Continue a sweep, mending what a crash has left. Raises SweepError, OSError."""
        if not path.exists() and not journal_of(path).exists():
            raise SweepError(f"{path} does not exist; a new sweep is made with -o {path}")
        lock = Lock(lock_of(path))
        try:
            plan, known, journal = recover(path, lock.beat)
            return Store(path, plan, known, _open_to_write(path), journal, lock)
        except BaseException:
            lock.release()
            raise

    def worker_id(self, name: str) -> int:
        """The index of a worker, a new one for a name not seen before."""
        if not name:
            return NO_WORKER
        known = self._worker_ids.get(name)
        if known is None:
            known = self._worker_ids[name] = len(self._worker_ids)
            worker = Worker(known, name, time.time())
            self.known.add(worker)
            self._unwritten.append(worker)
        return known

    def add(self, row: Row) -> None:
        """Take in an outcome: it is in the journal when this returns, unless there is trouble.

        Raises LockLost when another process writes this sweep now.
        """
        if row.values is not None and len(row.values) != self._row_size:
            raise ValueError(f"{len(row.values)} numbers, the plan has {self._row_size}")
        self._lock.beat()
        self.known.add(row)
        self._unwritten.append(row)
        if not self.trouble:
            self._journalise()
        if len(self._batch) >= min(BATCH_ROWS, 1 + BATCH_BYTES // (8 * self._row_size + 1)):
            self.commit()

    def commit_if_due(self) -> None:
        """Beat, and write what is older than a second; to be called at least every second."""
        self._lock.beat()
        if time.monotonic() - self._committed >= BATCH_S:
            self.commit()

    def commit(self) -> None:
        """Write all that is known to the file and flush it; `trouble` says whether that worked."""
        self._committed = time.monotonic()
        self.trouble = ""
        self._journalise()
        if self.trouble or not self._batch:
            return
        try:
            if self._committed - self._synced >= BATCH_S:
                self._journal.sync()
                self._synced = self._committed
            self._write_batch()
        except HDF5_ERRORS as error:
            self._in_trouble(self.path, error)

    def extend(self, plan: Plan) -> None:
        """Make the sweep longer: `plan` begins with the points of this one. Raises OSError."""
        self.commit()
        self._journal.append(plan)
        self._journal.sync()
        self.plan = plan
        self.known.grow(plan.size)
        layout.fit(self._file, plan)

    def close(self, state: str, summary: Mapping[str, Any] | None) -> None:
        """End: write everything; when `state` is COMPLETE, verify it and drop the journal.

        summary: what /summary is to hold; None: what it held before.
        Raises SweepError when the file cannot be written or is not what the journal says; the
        journal is kept then, and `resume` mends it.
        """
        try:
            self.commit()
            if self.trouble:
                raise SweepError(f"{self.trouble}; make room, then --resume {self.path}")
            self._journal.sync()
            self._finish_file(state, summary)
            if state == COMPLETE:
                if self.plan.gzip:
                    compress(self.path)
                verify(self.path)
                self._journal.path.unlink()
        finally:
            self.abandon()

    def leave(self) -> None:
        """Close a sweep that was opened and not gone on with. Raises SweepError."""
        pending = self.known.count(Status.PENDING)
        self.close("interrupted" if pending else COMPLETE, None)

    def abandon(self) -> None:
        """Leave at once: what the journal has is safe, and `resume` does the rest."""
        with contextlib.suppress(*HDF5_ERRORS):
            self._file.close()
        self._journal.close()
        self._lock.release()

    def _journalise(self) -> None:
        while self._unwritten:
            item = self._unwritten[0]
            try:
                self._journal.append(item)
            except OSError as error:
                self._in_trouble(self._journal.path, error)
                return
            self._unwritten.popleft()
            if isinstance(item, Row):
                self._batch.append(item)

    def _write_batch(self) -> None:
        # Of two outcomes of one point, as after a retry, the later one counts.
        latest = {row.point: row for row in self._batch}
        rows = [latest[point] for point in sorted(latest)]
        layout.write_values(self._file, self._columns, rows)
        layout.write_outcomes(self._file, rows)
        self._file["sequence"][()] = self._journal.sequence
        self._file.flush()
        self._batch.clear()

    def _in_trouble(self, path: Path, error: Exception) -> None:
        self.trouble = f"{path} cannot be written: {error}"
        if self.trouble != self._last_trouble:
            self._last_trouble = self.trouble
            log.error("%s; %d outcomes wait in memory", self.trouble, len(self._unwritten))

    def _finish_file(self, state: str, summary: Mapping[str, Any] | None) -> None:
        try:
            layout.write_tables(self._file, self.known)
            if summary is not None:
                layout.write_summary(self._file, summary)
            self._file.attrs["state"] = state
            self._file.close()
            sync(self.path)
        except HDF5_ERRORS as error:
            raise SweepError(
                f"{self.path} cannot be finished: {error}; go on with --resume {self.path}"
            ) from error


def lock_of(path: Path) -> Path:
    """Where the lock of a sweep file is."""
    return path.with_name(path.name + ".lock")


def _open_to_write(path: Path) -> h5py.File:
    file = open_file(path, "r+")
    file.attrs["state"] = RUNNING
    file.attrs["machine"] = machine()  # if it still runs, what was written is there
    file.flush()
    return file
