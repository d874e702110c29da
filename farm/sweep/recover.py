"""From what a crash has left to a sound file: replay the journal, rebuild the file, verify it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from farm.sweep import layout
from farm.sweep.errors import SweepError
from farm.sweep.journal import Content, Damage, Journal, Row, Status, read_journal, read_past_damage
from farm.sweep.known import Known
from farm.sweep.lock import machine
from farm.sweep.plan import Plan
from farm.sweep.salvage import keep_broken, left_in, merged

log = logging.getLogger(__name__)

REPLAY_ROWS = 4096
PATIENCE_S = 5.0
"""A look at a file takes less; a program that keeps it open longer is told of."""
RUNNING = "running"

HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""What h5py raises on a damaged file or a full disk, depending on the call that meets it."""

NO_DAMAGE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
)
"""Errors of the system around a file, which say nothing of what is in it."""

Beat = Callable[[], None]


def journal_of(path: Path) -> Path:
    """Where the journal of a sweep file is."""
    return path.with_name(path.name + ".journal")


def open_file(path: Path, mode: str, *, patience_s: float = PATIENCE_S) -> h5py.File:
    """Open a sweep file; HDF5's lock is used where the file system has one.

    To write, wait for others who read it, for so long. Raises OSError.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return h5py.File(path, mode, locking="best-effort")
        except BlockingIOError:
            if mode == "r" or time.monotonic() > until:
                raise
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Journaled:
    """All but the numbers of a journal: its last plan, what it knows, and where it ends."""

    plan: Plan
    known: Known
    sequence: int
    end: int


def read(journal: Path) -> Journaled:
    """A journal, also one that is being written or was cut short. Raises SweepError, OSError."""
    plan: Plan | None = None
    known = Known.nothing(0)
    for sequence, content, end in read_journal(journal):
        last = sequence, end
        if isinstance(content, Plan):
            plan = content
            known.grow(plan.size)
        else:
            known.add(content)
    assert plan is not None, "read_journal gives a plan first"
    return Journaled(plan, known, *last)


def recover(path: Path, beat: Beat) -> tuple[Plan, Known, Journal]:
    """Make a sweep sound: afterwards the file has what the journal has, which is open at its end.

    beat: called now and then. Raises SweepError when there is nothing to recover from, OSError.
    """
    if why := _unreliable(path):
        _start_anew(path, why, beat)
    journaled = read(journal_of(path))
    if not path.exists() or _is_compressed(path):
        _make_anew(path, journaled, beat)
    else:
        _mend(path, journaled, beat)
    journal = Journal(journal_of(path), sequence=journaled.sequence, size=journaled.end)
    return journaled.plan, journaled.known, journal


def make_file(path: Path, plan: Plan) -> None:
    """A new file with the structure of `plan`, there whole or not at all. Raises OSError."""
    new = path.with_name(path.name + ".new")
    try:
        with h5py.File(new, "w", locking="best-effort") as file:
            layout.create(file, plan)
        sync(new)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def rebuild(journal: Path, path: Path) -> None:
    """Write to `path` the file that a journal describes, replacing what is there."""
    journaled = read(journal)
    new = path.with_name(path.name + ".rebuilt")
    try:
        make_file(new, journaled.plan)
        with open_file(new, "r+") as file:
            _replay(file, journal, journaled, lambda: None)
            layout.write_tables(file, journaled.known)
            file.attrs["state"] = "snapshot"
        sync(new)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def compress(path: Path) -> None:
    """Replace a closed file by a compressed one that holds the same. Raises OSError."""
    new = path.with_name(path.name + ".new")
    try:
        with open_file(path, "r") as old, h5py.File(new, "w", locking="best-effort") as file:
            plan = layout.read_plan(old)
            layout.create(file, plan, gzip=True)
            for column in plan.columns:
                data, rows = old[column.name], file[column.name].chunks[0]
                for start in range(0, plan.size, rows):
                    file[column.name][start : start + rows] = data[start : start + rows]
            known = layout.read_known(old)
            layout.write_known(file, known)
            layout.write_tables(file, known)
            layout.write_summary(file, dict(old["summary"].attrs))
            file["sequence"][()] = old["sequence"][()]
            file.attrs["state"] = old.attrs["state"]
        sync(new)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def verify(path: Path) -> None:
    """Compare a closed file with its journal, number by number. Raises SweepError."""
    try:
        with open_file(path, "r") as file:
            journaled = read(journal_of(path))
            columns = journaled.plan.columns
            same = layout.read_plan(file).theta_hash == journaled.plan.theta_hash
            same &= np.array_equal(layout.read_known(file).status, journaled.known.status)
            for rows in _batches(journal_of(path), journaled.end):
                done = [row for row in rows if row.values is not None]
                points = np.array([row.point for row in done])
                there = layout.read_values(file, columns, points)
                expected = [row.values for row in done if row.values is not None]
                if done and not np.array_equal(there, np.stack(expected), equal_nan=True):
                    same = False
    except HDF5_ERRORS as error:
        raise SweepError(f"{path} cannot be read again: {error}; --resume mends it") from error
    if not same:
        raise SweepError(f"{path} differs from its journal; --resume {path} mends it")


def sync(path: Path) -> None:
    """Make a file and its name survive the death of the machine. Raises OSError."""
    for target, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        fd = os.open(target, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def check_space(path: Path, plan: Plan) -> None:
    """Raise SweepError when file and journal of `plan` do not fit on the disk."""
    numbers = plan.row_size + plan.theta.shape[1] * (1 if plan.unit is None else 2) + 8
    needed = 2 * 8 * numbers * plan.size
    free = shutil.disk_usage(path.parent).free
    if needed > free and not plan.gzip:
        raise SweepError(
            f"the sweep needs {needed / 1e6:,.0f} MB in {path.parent} (file and journal), "
            f"{free / 1e6:,.0f} MB are free"
        )


def _unreliable(path: Path) -> str:
    """Why the journal alone does not say all that is known; "" when it does."""
    journal = journal_of(path)
    if not journal.exists():
        return "is gone"
    try:
        journaled = read(journal)
    except SweepError:
        if not path.exists():
            raise
        return "is damaged at its beginning"
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
    """Whether all that was written to a file is in it.

    So it is when it was closed well, or when its machine runs since: the death of a process loses
    nothing that it has written, that of a machine may.
    """
    here = machine()
    return bool(file.attrs["state"] != RUNNING or (here and file.attrs.get("machine") == here))


def _mend(path: Path, journaled: Journaled, beat: Beat) -> None:
    """Bring the file to what the journal says; a file that cannot be mended is made anew.

    All is written again, not only what came after the file's sequence number: after the death of a
    machine nobody knows which pages of the file have reached the disk.
    """
    try:
        with open_file(path, "r+") as file:
            layout.read_known(file)  # a kill at the very end may have torn its tables
            _replay(file, journal_of(path), journaled, beat)
    except HDF5_ERRORS as error:
        _refuse_unless_damaged(path, error)
        broken = path.with_name(path.name + ".broken")
        os.replace(path, broken)
        log.warning("%s did not open (%s): moved to %s and rebuilt", path, error, broken.name)
        _make_anew(path, journaled, beat)


def _make_anew(path: Path, journaled: Journaled, beat: Beat) -> None:
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
    """Raise SweepError for errors that a sound file meets as well."""
    if isinstance(error, BlockingIOError) or "already open" in str(error):
        raise SweepError(
            f"{path} is open in another program or notebook; close it there"
        ) from error
    if is_full(error):
        raise SweepError(f"{path} cannot be written: {error}; make room and resume") from error
    if isinstance(error, OSError) and error.errno in NO_DAMAGE:
        raise SweepError(f"{path} cannot be opened: {error}") from error


def is_full(error: Exception) -> bool:
    """Whether a full disk or quota is the cause; HDF5 may say so in its text alone."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left" in str(error) or "quota exceeded" in str(error).lower()


def _replay(file: h5py.File, journal: Path, journaled: Journaled, beat: Beat) -> None:
    columns = journaled.plan.columns
    layout.fit(file, journaled.plan)
    file.attrs["state"] = RUNNING
    for rows in _batches(journal, journaled.end):
        layout.write_values(file, columns, rows)
        beat()
    layout.write_known(file, journaled.known)
    file["sequence"][()] = journaled.sequence
    file.flush()


def _start_anew(path: Path, why: str, beat: Beat) -> None:
    """Make a new journal of what is left in the old one and in the file."""
    journal = journal_of(path)
    left = left_in(journal)
    with contextlib.ExitStack() as stack:
        file = _if_it_opens(path, stack, needed=left.plan is None)
        plan, from_file, sequence = left.plan, None, left.sequence
        if file is not None:
            of_file = layout.read_plan(file)
            if plan is None or (_is_whole(file) and of_file.run_id == plan.run_id):
                from_file = _contents(file, of_file, layout.read_known(file))
                plan = of_file if plan is None or of_file.size > plan.size else plan
                sequence = max(sequence, int(file["sequence"][()]))
                if left.plan is None and file.attrs["state"] == RUNNING:
                    log.warning("%s was not closed and its journal %s: taken as it is", path, why)
        assert plan is not None, "of the journal, or of the file that is needed then"
        contents = merged(plan, from_file or (), left.contents())
        if journal.exists():
            broken = keep_broken(journal)
            used = "" if from_file is None else " and what the file holds"
            log.warning(
                "%s %s: kept as %s. Its whole records%s are taken, other points run again",
                *(journal, why, broken.name, used),
            )
        Journal.start(journal, _with_beats(contents, beat), sequence=sequence).close()


def _if_it_opens(path: Path, stack: contextlib.ExitStack, *, needed: bool) -> h5py.File | None:
    """The open sweep file, None when it is damaged. Raises SweepError when it is `needed`."""
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
                f"{path} cannot be opened ({error}), and no journal is there to rebuild it from"
            ) from error
        return None
    return file


def _with_beats(contents: Iterable[Content], beat: Beat) -> Iterator[Content]:
    for content in contents:
        yield content
        beat()


def _contents(file: h5py.File, plan: Plan, known: Known) -> Iterator[Content]:
    """What a journal needs to rebuild a file; failures come first, as a later outcome counts."""
    yield plan
    yield from known.workers
    yield from known.failures
    columns = plan.columns
    done = np.flatnonzero(known.status == Status.DONE)
    for points in np.split(done, range(REPLAY_ROWS, len(done), REPLAY_ROWS)):
        for point, values in zip(
            points.tolist(), layout.read_values(file, columns, points), strict=True
        ):
            yield Row(
                point=point,
                status=Status.DONE,
                attempt=int(known.attempts[point]),
                worker=int(known.worker[point]),
                t_start=float(known.t_start[point]),
                t_run=float(known.t_run[point]),
                t_queue=float(known.t_queue[point]),
                t_total=float(known.t_total[point]),
                values=values,
            )


def _batches(journal: Path, end: int) -> Iterator[list[Row]]:
    """The outcomes up to `end`, in batches with each point at most once and in rising order."""
    batch: dict[int, Row] = {}
    for record in read_journal(journal):
        if record.end > end:
            break
        if isinstance(record.content, Row):
            batch[record.content.point] = record.content
            if len(batch) >= REPLAY_ROWS:
                yield [batch[point] for point in sorted(batch)]
                batch = {}
    yield [batch[point] for point in sorted(batch)]
