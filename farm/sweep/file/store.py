"""The only writer of a sweep: outcomes go to the journal at once, to the HDF5 file in batches.

A killed process loses nothing: the journal holds all outcomes, and the file can be rebuilt from it
alone. A machine that dies loses the last second. The files of a sweep `s.h5`:

    s.h5                the results
    s.h5.journal        the plan and all outcomes; exists until the sweep is complete
    s.h5.lock           exists while a process writes the sweep
    s.h5.status.json    progress, for people and programs that watch the sweep
    s.h5.journal.new    exists briefly while a journal is created
    s.h5.broken         a damaged file that was replaced by one rebuilt from the journal
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from farm.call import Array
from farm.storage.errors import LockHeld, LockTaken, UnsafeFile
from farm.storage.files import resolved
from farm.storage.hdf5 import HDF5_ERRORS, open_file
from farm.storage.journal import Journal
from farm.storage.lock import Lock
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError, resumed
from farm.sweep.file import layout
from farm.sweep.file.journal import NO_WORKER, AnsweringWorker, DoneRows, PointStatus, Row, add_to
from farm.sweep.file.point_columns import Journaled, PointColumns
from farm.sweep.file.progress import status_of
from farm.sweep.file.recovery import (
    REPLACES,
    check_space,
    compress,
    done_rows,
    journal_of,
    lock_of,
    make_files,
    recover,
    restructure,
    verify,
)
from farm.sweep.file.signature import is_ours, signed
from farm.sweep.file.text_tables import write_tables
from farm.wording import counted, worded

log = logging.getLogger(__name__)

BATCH_ROWS = 4096
BATCH_BYTES = 64 * 2**20
BATCH_S = 1.0

COMPLETE = "complete"
"""The state of a sweep that ran to its end; other states say why a sweep stopped early."""


class SweepLock(Lock):
    """The exclusive right to write one sweep, acquired on creation. Raises SweepError, OSError."""

    def __init__(self, path: Path) -> None:
        """Acquire the lock. path: the lock file."""
        try:
            super().__init__(path)
        except LockHeld as error:
            raise SweepError(f"{error}, which is writing this sweep") from None

    def check(self) -> None:
        """Raise SweepError if another process has taken over the sweep."""
        try:
            super().check()
        except LockTaken as error:
            raise SweepError(f"{error}. This process stops; the sweep continues there") from None


class Store:
    """The open files of one sweep, used by one thread; made by `create` or `resume`.

    `trouble` is the reason why outcomes cannot be written now, or empty. Meanwhile they are kept in
    memory, so the caller should submit no new points until it is empty again.
    """

    def __init__(
        self,
        path: Path,
        plan: Plan,
        known: PointColumns,
        file: h5py.File,
        journal: Journal,
        lock: SweepLock,
    ) -> None:
        self.path = path
        self.plan = plan
        self.known = known
        self.trouble = ""
        self._file = file
        self._journal = journal
        self._lock = lock
        self._worker_ids = {w.name: w.id for w in known.workers}
        # Not in the journal yet.
        self._unwritten: deque[Row | DoneRows | AnsweringWorker] = deque()
        # In the journal, not in the file yet: the last values of each point, None for a failure.
        self._batch: dict[int, Array | None] = {}
        self._committed = self._synced = time.monotonic()

    @staticmethod
    def create(
        path: Path, plan: Plan, *, lock: SweepLock | None = None, replaces: Plan | None = None
    ) -> Store:
        """Create a new sweep. Raises SweepError, for example if the file exists, and OSError.

        lock: the sweep's lock if it is held already; the store releases it in any case.
        replaces: the plan of the sweep at `path`, which the new one replaces.
        """
        path = resolved(path)
        lock = SweepLock(lock_of(path)) if lock is None else lock
        try:
            if replaces is None:
                Store.refuse_to_overwrite(path)
            else:
                plan = replace(plan, provenance={**plan.provenance, REPLACES: replaces.run_id})
            check_space(path, plan)
            journal = make_files(path, plan)
            status_of(path).unlink(missing_ok=True)  # of a sweep that was replaced
            file = open_file(path, "r+")
        except BaseException as error:
            lock.release()
            if isinstance(error, HDF5_ERRORS):
                while error.__context__:  # closing the file fails too, and names no reason
                    error = error.__context__
                raise SweepError(f"{path} cannot be created: {error}") from error
            raise
        return Store(path, plan, PointColumns.nothing(plan.size), file, journal, lock)

    @staticmethod
    def refuse_to_overwrite(path: Path) -> None:
        """Raise SweepError if a sweep or any other file exists at `path`."""
        there = next((p for p in (path, journal_of(path)) if p.exists()), None)
        if there is None:
            return
        raise SweepError(
            f"{there} exists: continue that sweep with "
            f"{worded(f'--resume {path}', 'resume=True')}, or write to another file"
        )

    @staticmethod
    def resume(
        path: Path, *, lock: SweepLock | None = None, journaled: Journaled | None = None
    ) -> Store:
        """Open a sweep to continue it, repaired after a crash. Raises SweepError, OSError.

        lock: the sweep's lock if it is held already; the store releases it in any case.
        journaled: the journal's content, if it was read under that lock.
        """
        path = resolved(path)
        if lock is None:
            if not is_there(path):
                option = worded(f"-o {path}", f"out={str(path)!r}")
                raise SweepError(f"{path} does not exist; start a new sweep with {option}")
            lock = SweepLock(lock_of(path))
        try:
            plan, known, journal = recover(path, lock.beat, journaled)
            return Store(path, plan, known, open_file(path, "r+"), journal, lock)
        except BaseException as error:
            lock.release()
            if isinstance(error, UnsafeFile):
                raise SweepError(str(error)) from error
            raise

    def finished(self) -> Iterator[Row]:
        """Yield the outcome of each point that has one, failed points first.

        A failed point has its last failure.
        """
        yield from self.known.last_failures.values()
        yield from done_rows(self._file, self.plan, self.known)

    def worker_id(self, name: str) -> int:
        """Return the index of a worker, a new one for a new name."""
        if not name:
            return NO_WORKER
        known = self._worker_ids.get(name)
        if known is None:
            known = self._worker_ids[name] = len(self._worker_ids)
            worker = AnsweringWorker(known, name, time.time())
            self.known.add(worker)
            self._unwritten.append(worker)
        return known

    def add(self, outcome: Row | DoneRows) -> None:
        """Record an outcome, or those of points together.

        On return they are in the journal, unless `trouble` is set. Raises SweepError if another
        process has taken over this sweep.
        """
        size, values = self.plan.row_size, outcome.values
        if values is not None and values.shape[-1] != size:
            raise ValueError(f"got {values.shape[-1]} values, the plan has {size}")
        self._lock.beat()
        self.known.add(outcome)
        self._unwritten.append(outcome)
        if not self.trouble:
            self._journalise()
            self._log_new_trouble("")
        if len(self._batch) >= min(BATCH_ROWS, 1 + BATCH_BYTES // (8 * size + 1)):
            self.commit()

    def commit_if_due(self) -> None:
        """Send a heartbeat and write outcomes older than a second; call at least every second."""
        self._lock.beat()
        if time.monotonic() - self._committed >= BATCH_S:
            self.commit()

    def commit(self) -> None:
        """Write all outcomes to the file and flush it; sets `trouble` if that fails."""
        self._committed = time.monotonic()
        before, self.trouble = self.trouble, ""
        self._write()
        self._log_new_trouble(before)

    def _write(self) -> None:
        self._journalise()
        if self.trouble or not self._batch:
            return
        try:
            if self._committed - self._synced >= BATCH_S:
                self._journal.sync()
                self._synced = self._committed
            self._write_batch()
        except HDF5_ERRORS as error:
            self.trouble = _unwritable(self.path, error)

    def extend(self, plan: Plan) -> None:
        """Extend the sweep to `plan`, which begins with the present points. Raises OSError."""
        self.commit()
        plan = signed(plan) if is_ours(self.plan) else plan
        add_to(self._journal, plan)
        self._journal.sync()
        self.plan = plan
        self.known.grow(plan.size)
        self._file.close()
        restructure(self.path, lambda file: layout.fit(file, plan))
        self._file = open_file(self.path, "r+")

    def close(self, state: str, summary: Mapping[str, Any] | None) -> None:
        """Write everything and close; if `state` is COMPLETE, verify and delete the journal.

        summary: new attributes of /summary; None keeps the old ones.
        Raises SweepError if the file cannot be written or differs from the journal; the journal is
        then kept, and `resume` repairs the file.
        """
        try:
            self.commit()
            if self.trouble:
                raise SweepError(f"{self.trouble}; make room, then {resumed(self.path)}")
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
        """Close a sweep that was opened but not continued. Raises SweepError."""
        pending = self.known.count(PointStatus.PENDING)
        self.close("interrupted" if pending else COMPLETE, None)

    def abandon(self) -> None:
        """Close the files at once; the outcomes are safe in the journal for `resume`."""
        with contextlib.suppress(*HDF5_ERRORS):
            self._file.close()
        self._journal.close()
        self._lock.release()

    def _journalise(self) -> None:
        while self._unwritten:
            item = self._unwritten[0]
            try:
                add_to(self._journal, item)
            except OSError as error:
                self.trouble = _unwritable(self._journal.path, error)
                return
            self._unwritten.popleft()
            if isinstance(item, Row):
                self._batch[item.point] = item.values
            elif isinstance(item, DoneRows):
                self._batch.update(zip(item.heads["point"].tolist(), item.values, strict=True))

    def _write_batch(self) -> None:
        points = sorted(self._batch)
        done = [point for point in points if self._batch[point] is not None]
        if done:
            values = np.array([self._batch[point] for point in done])
            layout.write_points(self._file, self.plan.columns, np.array(done), values)
        layout.write_outcomes(self._file, self.known, np.array(points))
        self._file.flush()  # the number below says that all of them are in the file
        self._file["sequence"][()] = self._journal.sequence
        self._file.flush()
        self._batch.clear()

    def _log_new_trouble(self, before: str) -> None:
        if self.trouble not in ("", before):
            rows = [1 if not isinstance(o, DoneRows) else len(o.heads) for o in self._unwritten]
            log.error("%s; in memory: %s", self.trouble, counted(sum(rows), "outcome"))

    def _finish_file(self, state: str, summary: Mapping[str, Any] | None) -> None:
        def write(file: h5py.File) -> None:
            write_tables(file, self.known)
            if summary is not None:
                layout.write_summary(file, summary)
            layout.mark(file, state)

        try:
            self._file.close()
            restructure(self.path, write)
        except HDF5_ERRORS as error:
            raise SweepError(
                f"{self.path} cannot be finished: {error}; continue with {resumed(self.path)}"
            ) from error


def _unwritable(path: Path, error: Exception) -> str:
    return f"{path} cannot be written: {error}"


def is_there(path: Path) -> bool:
    """Whether a sweep, or any other file, is at `path`: a journal alone is a sweep, too."""
    return path.exists() or journal_of(path).exists()
