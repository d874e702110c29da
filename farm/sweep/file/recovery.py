"""Recovery of a sweep after a crash: replay its journal, rebuild its file, verify the result."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from farm.call import Array
from farm.storage.errors import UnsafeFile
from farm.storage.files import beside, is_full, keep_as, open_regular, replacing, sync
from farm.storage.frames import Damage
from farm.storage.hdf5 import HDF5_ERRORS, open_file
from farm.storage.journal import Journal
from farm.storage.lock import machine
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError, resumed
from farm.sweep.file import layout
from farm.sweep.file.journal import (
    FORMAT,
    NO_WORKER,
    Content,
    DoneRows,
    Kept,
    PointStatus,
    Row,
    read_past_damage,
    start_journal,
)
from farm.sweep.file.point_columns import Journaled, PointColumns, read
from farm.sweep.file.text_tables import write_tables

log = logging.getLogger(__name__)

REPLAY_ROWS = 4096
REPLAY_BYTES = 64 * 2**20
WORTH_READING = 16
"""Read a whole part of a journal if it has at most this many times the bytes that are needed."""
COPIED_BYTES = 2**30
"""Largest file that `restructure` copies: about a second's work."""
SPARE_BYTES = 2**20
RUNNING = "running"

REPLACES = "replaces"
"""The fact of a plan's provenance that names the sweep, by its run_id, whose file it replaces."""

NO_DAMAGE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
)
"""Error numbers that concern access to a file; they do not mean that its content is damaged."""


def lock_of(path: Path) -> Path:
    """Return the path of a sweep file's lock."""
    return beside(path, ".lock")


def journal_of(path: Path) -> Path:
    """Return the path of a sweep file's journal."""
    return beside(path, ".journal")


def recover(
    path: Path, beat: Callable[[], None], journaled: Journaled | None = None
) -> tuple[Plan, PointColumns, Journal]:
    """Repair a sweep: bring the file up to date with the journal, and open the journal to append.

    beat: called regularly. journaled: what the journal holds, if that is known. Raises SweepError
    when there is nothing to recover from, OSError.
    """
    journal, why = journal_of(path), ""
    try:
        journaled = journaled or read(journal)
        why = _unreliable(path, journaled)
    except FileNotFoundError:
        why = "is gone"
    except SweepError:
        if not path.exists():
            raise
        why = "is damaged at its beginning"
    if why or journaled is None:
        _start_anew(path, why, beat)
        journaled = read(journal)
    if not path.exists() or _is_compressed(path) or is_replaced(path, journaled.plan):
        _make_anew(path, journaled, beat)
    else:
        _mend(path, journaled, beat)
    appended = Journal(journal, FORMAT, sequence=journaled.sequence, size=journaled.end)
    return journaled.plan, journaled.known, appended


def make_file(path: Path, plan: Plan) -> None:
    """Create a file with the structure of `plan` atomically. Raises OSError."""
    with replacing(path) as new:
        _write_structure(new, plan)


def make_files(path: Path, plan: Plan) -> Journal:
    """Create file and journal of a new sweep; return the journal, open. Raises SweepError, OSError.

    If `plan` replaces another sweep, that one is there until the journal is; from then on the new
    sweep is, even if this process is killed before the new file has its name.
    """
    with replacing(path) as new:
        _write_structure(new, plan)
        sync(new)
        return start_journal(journal_of(path), [plan])


def is_replaced(path: Path, plan: Plan) -> bool:
    """Whether the file is that of the sweep which `plan`, the one of its journal, replaces."""
    old = plan.provenance.get(REPLACES)
    if old is None:
        return False
    try:
        # Without HDF5's lock, which would block a writer.
        with open_file(path, "r", locking=False) as file:
            return bool(file.attrs["run_id"] == old)
    except HDF5_ERRORS:
        return False


def restructure(path: Path, change: Callable[[h5py.File], None]) -> None:
    """Let `change` write texts and sizes into a closed file, so that a kill leaves it readable.

    HDF5 writes such changes in several pieces, and between two of them the file does not open. So
    they go into a copy that replaces the file. A file of more than COPIED_BYTES, or one that does
    not fit on the disk twice, is changed in place. Raises OSError.
    """
    size = path.stat().st_size
    if size > COPIED_BYTES or shutil.disk_usage(path.parent).free < size + SPARE_BYTES:
        with open_file(path, "r+") as file:
            change(file)
        sync(path)
        return
    with replacing(path) as new:
        shutil.copyfile(path, new)
        shutil.copymode(path, new)
        with open_file(new, "r+") as file:
            change(file)


def rebuild(journal: Path, path: Path) -> None:
    """Write the file that a journal describes to `path`, replacing any file there."""
    journaled = read(journal)
    with replacing(path) as new:
        make_file(new, journaled.plan)
        with open_file(new, "r+") as file:
            _replay(file, journal, journaled, lambda: None)
            write_tables(file, journaled.known)
            layout.mark(file, "snapshot")


def compress(path: Path) -> None:
    """Replace a closed file by a compressed one with the same content. Raises OSError."""
    with (
        open_file(path, "r") as old,
        replacing(path) as new,
        h5py.File(new, "w", locking=False) as file,
    ):
        plan = layout.read_plan(old)
        layout.create(file, plan, gzip=True)
        for column in plan.columns:
            data, rows = old[column.name], file[column.name].chunks[0]
            for start in range(0, plan.size, rows):
                file[column.name][start : start + rows] = data[start : start + rows]
        known = layout.read_known(old)
        layout.write_known(file, known)
        write_tables(file, known)
        layout.write_summary(file, dict(old["summary"].attrs))
        file["sequence"][()] = old["sequence"][()]
        layout.mark(file, old.attrs["state"])


def verify(path: Path) -> None:
    """Compare all values of a closed file with its journal. Raises SweepError if they differ."""
    try:
        with open_file(path, "r") as file:
            # Before the journal is in memory too.
            theta_hash, status = layout.read_plan(file).theta_hash, layout.read_known(file).status
            journaled = read(journal_of(path), ["status"])
            plan = journaled.plan
            same = theta_hash == plan.theta_hash
            same &= np.array_equal(status, journaled.known.status)
            for points, values in _values(journal_of(path), journaled, np.arange(plan.size)):
                there = layout.read_values(file, plan.columns, points)
                done = journaled.known.status[points] == PointStatus.DONE
                same &= np.array_equal(there[done], values[done], equal_nan=True)
        if same:
            return
        why = "differs from its journal"
    except HDF5_ERRORS as error:
        why = f"cannot be read back: {error}"
    with contextlib.suppress(*HDF5_ERRORS), open_file(path, "r+") as file:
        file["sequence"][()] = 0  # so that all is written again
    raise SweepError(f"{path} {why}; repair it with {resumed(path)}")


def check_space(path: Path, plan: Plan) -> None:
    """Raise SweepError if file and journal of `plan` do not fit on the disk."""
    numbers = plan.row_size + plan.theta.shape[1] * (1 if plan.unit is None else 2) + 8
    needed = 2 * 8 * numbers * plan.size
    free = shutil.disk_usage(path.parent).free
    if needed > free and not plan.gzip:
        raise SweepError(
            f"the sweep needs {needed / 1e6:,.0f} MB in {path.parent} (file and journal), "
            f"{free / 1e6:,.0f} MB are free"
        )


def _unreliable(path: Path, journaled: Journaled) -> str:
    """Return why the journal alone is not the complete record of the sweep; "" if it is."""
    journal = journal_of(path)
    if journal.stat().st_size > journaled.end:
        for found in read_past_damage(journal):
            if isinstance(found, Damage):
                return f"is damaged from byte {found.start} to {found.end}"
    try:
        with open_file(path, "r") as file:
            layout.read_plan(file)
            behind = int(file["sequence"][()]) - journaled.sequence
            if behind > 0 and file.attrs["run_id"] == journaled.plan.run_id and _is_whole(file):
                return f"lacks the last {behind} records that the file has"
    except (*HDF5_ERRORS, SweepError):
        pass
    return ""


def _is_whole(file: h5py.File) -> bool:
    """Whether the file contains everything that was written to it.

    It does if it was closed properly, or if its machine has not rebooted since: a process that dies
    loses nothing that it wrote, but a machine that dies may.
    """
    here = machine()
    return bool(file.attrs["state"] != RUNNING or (here and file.attrs.get("machine") == here))


def _mend(path: Path, journaled: Journaled, beat: Callable[[], None]) -> None:
    """Bring the file up to date with the journal; recreate the file if it cannot be repaired.

    Only the records after the file's sequence number are replayed, unless its machine died: then
    it is unknown which pages of the file reached the disk.
    """
    try:
        with open_file(path, "r+") as file:
            fits = layout.fits(file, journaled.plan) and layout.marked(file, RUNNING, machine())
            layout.read_known(file)  # raises if a kill at the very end has damaged the tables
            held = int(file["sequence"][()]) if _is_whole(file) else 0
        if not fits:
            restructure(path, partial(layout.fit, plan=journaled.plan, state=RUNNING))
        with open_file(path, "r+") as file:
            _replay(file, journal_of(path), journaled, beat, held)
    except HDF5_ERRORS as error:
        _refuse_unless_damaged(path, error)
        broken = path.with_name(path.name + ".broken")
        os.replace(path, broken)
        log.warning("%s did not open (%s): moved to %s and rebuilt", path, error, broken.name)
        _make_anew(path, journaled, beat)


def _write_structure(path: Path, plan: Plan) -> None:
    with h5py.File(path, "w", locking=False) as file:
        layout.create(file, plan)
        layout.mark(file, RUNNING, machine())


def _make_anew(path: Path, journaled: Journaled, beat: Callable[[], None]) -> None:
    make_file(path, journaled.plan)
    with open_file(path, "r+") as file:
        _replay(file, journal_of(path), journaled, beat)


def _is_compressed(path: Path) -> bool:
    try:
        with open_file(path, "r") as file:
            return file["theta"].compression is not None
    except HDF5_ERRORS:
        return False


def _refuse_unless_damaged(path: Path, error: Exception) -> None:
    """Raise SweepError if `error` does not mean that the file is damaged."""
    if isinstance(error, UnsafeFile):
        raise SweepError(str(error)) from error
    if isinstance(error, BlockingIOError) or "already open" in str(error):
        raise SweepError(
            f"{path} is open in another program or notebook; close it there"
        ) from error
    if is_full(error):
        raise SweepError(f"{path} cannot be written: {error}; make room and resume") from error
    if isinstance(error, OSError) and error.errno in NO_DAMAGE:
        raise SweepError(f"{path} cannot be opened: {error}") from error


def _replay(
    file: h5py.File, journal: Path, journaled: Journaled, beat: Callable[[], None], held: int = 0
) -> None:
    """Write what the journal has into the file, which has the content of its records up to `held`.

    The number of a record is at least 1, so that 0 means none.
    """
    columns, points = journaled.plan.columns, np.arange(journaled.plan.size)
    if held:
        points = np.flatnonzero(journaled.records > held)
    else:
        layout.write_theta(file, journaled.plan)
    for some, values in _values(journal, journaled, points):
        layout.write_points(file, columns, some, values)
        beat()
    layout.write_known(file, journaled.known)
    file.flush()  # the number below says that all of them are in the file
    file["sequence"][()] = journaled.sequence
    file.flush()


def _values(journal: Path, journaled: Journaled, points: Array) -> Iterator[tuple[Array, Array]]:
    """Yield `points`, which ascend, in portions with the values in the journal; NaN for none."""
    size = journaled.plan.row_size
    portion = max(1, min(REPLAY_ROWS, REPLAY_BYTES // (8 * size + 1)))
    with open_regular(journal) as file:
        for start in range(0, len(points), portion):
            some = points[start : start + portion]
            values = np.full((len(some), size), np.nan)
            ends = journaled.ends[some]
            rows = np.flatnonzero(ends)
            starts = ends[rows] - 8 * size
            length = int(np.ptp(starts)) + 8 * size if len(rows) else 0
            if 0 < length <= WORTH_READING * 8 * size * len(rows):
                part = os.pread(file.fileno(), length, np.min(starts))
                all_starts = sliding_window_view(np.frombuffer(part, np.uint8), 8 * size)
                values[rows] = all_starts[starts - np.min(starts)].view("<f8")
            else:
                for row, start in zip(rows, starts, strict=True):
                    data = os.pread(file.fileno(), 8 * size, start)
                    values[row] = np.frombuffer(data, dtype="<f8", count=size)
            yield some, values


def _start_anew(path: Path, why: str, beat: Callable[[], None]) -> None:
    """Write a new journal from the intact parts of the old one and of the file."""
    journal = journal_of(path)
    plan: Plan | None = None
    sequence = 0
    for record in intact(journal):
        sequence = record.sequence
        plan = record.content if isinstance(record.content, Plan) else plan
    needed = plan is None
    with contextlib.ExitStack() as stack:
        file, from_file = _if_it_opens(path, stack, needed=needed), None
        if file is not None:
            of_file = layout.read_plan(file)
            if plan is None or (_is_whole(file) and of_file.run_id == plan.run_id):
                from_file = _contents(file, of_file, layout.read_known(file))
                plan = of_file if plan is None or of_file.size > plan.size else plan
                sequence = max(sequence, int(file["sequence"][()]))
                if needed and file.attrs["state"] == RUNNING:
                    log.warning(
                        "%s was not closed and its journal %s: the file is used as it is", path, why
                    )
        assert plan is not None, "from the journal, or from the file, which is needed then"
        contents = merged(plan, from_file or (), (record.content for record in intact(journal)))
        if journal.exists():
            broken = keep_as(journal, ".broken")
            used = "" if from_file is None else " and the file's content"
            log.warning(
                "%s %s: kept as %s. Its intact records%s are used, other points run again",
                *(journal, why, broken.name, used),
            )
        start_journal(journal, _beating(contents, beat), sequence=sequence).close()


def _if_it_opens(path: Path, stack: contextlib.ExitStack, *, needed: bool) -> h5py.File | None:
    """Open a sweep file; None if it is damaged. Raises SweepError if it is damaged but `needed`."""
    try:
        file = stack.enter_context(open_file(path, "r"))
        layout.read_plan(file)
        layout.read_known(file)
    except (*HDF5_ERRORS, SweepError) as error:
        if isinstance(error, SweepError) and needed:
            raise
        if path.exists():
            _refuse_unless_damaged(path, error)
        if needed:
            raise SweepError(
                f"{path} cannot be opened ({error}), and it has no journal to rebuild it from"
            ) from error
        return None
    return file


def _beating(contents: Iterable[Content], beat: Callable[[], None]) -> Iterator[Content]:
    for content in contents:
        yield content
        beat()


def _contents(file: h5py.File, plan: Plan, known: PointColumns) -> Iterator[Content]:
    """Yield the journal contents that rebuild a file.

    Failures come first, because a later outcome of the same point replaces them.
    """
    yield plan
    yield from known.workers
    yield from known.failures
    yield from done_rows(file, plan, known)


def done_rows(file: h5py.File, plan: Plan, known: PointColumns) -> Iterator[Row]:
    """Yield the outcomes of all done points, in order."""
    columns = plan.columns
    done = np.flatnonzero(known.status == PointStatus.DONE)
    for points in np.split(done, range(REPLAY_ROWS, len(done), REPLAY_ROWS)):
        yield from DoneRows(known.heads(points), layout.read_values(file, columns, points))


def intact(journal: Path) -> Iterator[Kept]:
    """Yield the intact records of a journal, which may be missing. Raises OSError."""
    if journal.exists() and journal.stat().st_size:
        for found in read_past_damage(journal):
            if not isinstance(found, Damage):
                yield found


def merged(plan: Plan, *sources: Iterable[Content]) -> Iterator[Content]:
    """Yield the contents of a journal that holds all of `sources`; later outcomes replace earlier.

    plan: the longest plan among the sources, which the new journal is for.
    """
    yield plan
    workers: set[int] = set()
    for source in sources:
        for content in source:
            if isinstance(content, Plan):
                continue
            if isinstance(content, Row):
                if content.point < plan.size:
                    known = content.worker in workers  # the worker's record may be damaged
                    yield content if known else content._replace(worker=NO_WORKER)
            elif content.id not in workers:
                workers.add(content.id)
                yield content
