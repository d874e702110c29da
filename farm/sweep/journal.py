"""The journal beside a sweep file: append-only records that alone can rebuild the file.

    file    := b"farm sweep journal 1\\n" record*
    record  := length u32, crc32 u32, body        crc over the body, length of the body, all
    body    := kind u8, sequence u64, payload     little-endian
    'P'     the plan: length u32 of its JSON, the JSON, theta, then unit if it has one (float64)
    'W'     a worker: JSON
    'R'     a point's outcome: `ROW`, then its numbers as float64 when it is done, else JSON

Each record is one write, so a killed process leaves at most one torn record, at the end. Readers
stop at the first record that is not whole. The plan may come again, longer, when a sweep grows.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from farm.call import Array
from farm.sweep.errors import SweepError
from farm.sweep.plan import Plan, plan_from_text

MAGIC = b"farm sweep journal 1\n"
FRAME = struct.Struct("<II")
HEAD = struct.Struct("<BQ")
ROW = struct.Struct("<QBBIdddd")
LENGTH = struct.Struct("<I")
LARGEST_BODY = 2**32 - 1
NO_WORKER = 2**32 - 1
_KIND = re.compile(b"[PWR]")


class Status(IntEnum):
    """What is known of a point; the numbers are those in the file."""

    PENDING = 0
    DONE = 1
    FAILED = 2
    CANCELLED = 3
    TIMEOUT = 4


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The outcome of one point.

    t_start: Unix time at which the model began; t_run, t_queue: seconds in the model and in the
    farm's queue; t_total: seconds from giving the point to its answer; worker: an index.
    values: all numbers of a done point, in the order of the plan's columns.
    """

    point: int
    status: Status
    attempt: int = 1
    worker: int = NO_WORKER
    t_start: float = float("nan")
    t_run: float = float("nan")
    t_queue: float = float("nan")
    t_total: float = float("nan")
    values: Array | None = None
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that answered: `host` is what stands before the slash of its name."""

    id: int
    name: str
    started: float

    @property
    def host(self) -> str:
        """The machine it runs on."""
        return self.name.partition("/")[0]


Content = Plan | Worker | Row


class Record(NamedTuple):
    """One whole record: its number, what it holds, and where in the file it ends."""

    sequence: int
    content: Content
    end: int


class Damage(NamedTuple):
    """Where bytes between whole records are none: from byte `start` up to `end`."""

    start: int
    end: int


class Journal:
    """Appends records; one write each. After an OSError the file ends with the last whole record.

    `sequence` is the number of the last record.
    """

    @staticmethod
    def start(path: Path, contents: Iterable[Content], *, sequence: int = 0) -> Journal:
        """A journal that holds `contents`, replacing what is at `path` when all of it is on disk.

        So nobody ever finds a journal without its plan. Raises OSError.
        """
        new = path.with_name(path.name + ".new")
        new.unlink(missing_ok=True)
        journal = Journal(new, sequence=sequence)
        try:
            for content in contents:
                journal.append(content)
            journal.sync()
            os.replace(new, path)
        except BaseException:
            journal.close()
            new.unlink()
            raise
        journal.path = path
        return journal

    def __init__(self, path: Path, *, sequence: int = 0, size: int | None = None) -> None:
        """Open for appending after `size` bytes, dropping what follows; None: a new file.

        Raises OSError; FileExistsError when a new file is asked for and there is one.
        """
        self.path = path
        self.sequence = sequence
        new = os.O_CREAT | os.O_EXCL if size is None else 0
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | new, 0o644)
        try:
            if size is None:
                self._size = 0
                self._write(MAGIC)
            else:
                os.ftruncate(self._fd, size)
                self._size = size
        except OSError:
            os.close(self._fd)
            raise

    def append(self, content: Content) -> None:
        """Write one record; it survives the death of this process when this returns.

        Raises OSError, and then the journal is as before.
        """
        body = HEAD.pack(_kind(content), self.sequence + 1) + _payload(content)
        if len(body) > LARGEST_BODY:
            raise SweepError(f"a record of {len(body)} bytes is too large for the journal")
        self._write(FRAME.pack(len(body), zlib.crc32(body)) + body)
        self.sequence += 1

    def sync(self) -> None:
        """Make all records survive the death of the machine. Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            done = 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], self._size + done)
        except OSError:
            # A torn record would hide all that come after it.
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)


def read_journal(path: Path) -> Iterator[Record]:
    """All whole records, in order; the first one holds the plan.

    Also while a sweep writes. Raises SweepError when the file is no journal with a plan, and
    OSError.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise SweepError(f"{path} is not a journal of a sweep")
        plan: Plan | None = None
        for kind, sequence, payload, end in _frames(file):
            content = _content(kind, payload)
            if isinstance(content, Plan):
                plan = content
            elif plan is None:
                break
            yield Record(sequence, content, end)
    if plan is None:
        raise SweepError(f"{path} is damaged at its beginning: it holds no plan")


def read_past_damage(path: Path) -> Iterator[Record | Damage]:
    """All records that are whole, in order, and the places where some are not.

    What is torn at the very end, as by the death of the writer, is no damage. Raises OSError.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end, last = len(MAGIC), 0
        while end < len(data):
            start, found = _next_record(data, end, last)
            if found is None:
                return
            if start > end:
                yield Damage(end, start)
            yield found
            end, last = found.end, found.sequence


def _next_record(data: mmap.mmap, start: int, last: int) -> tuple[int, Record | None]:
    """The first whole record from a place on, and where it begins."""
    if found := _record_at(data, start, last):
        return start, found
    for candidate in _KIND.finditer(data, start + 1 + FRAME.size):
        begin = candidate.start() - FRAME.size
        if found := _record_at(data, begin, last):
            return begin, found
    return start, None


def _record_at(data: mmap.mmap, start: int, last: int) -> Record | None:
    """The whole record at a place, of a later number than `last`; None: there is none."""
    head = start + FRAME.size
    if head + HEAD.size > len(data):
        return None
    length, crc = FRAME.unpack_from(data, start)
    end = head + length
    if length < HEAD.size or end > len(data):
        return None
    kind, sequence = HEAD.unpack_from(data, head)
    if sequence <= last:
        return None
    body = data[head:end]
    if zlib.crc32(body) != crc:
        return None
    return Record(sequence, _content(kind, memoryview(body)[HEAD.size :]), end)


def _content(kind: int, payload: memoryview) -> Content:
    if kind == ord("P"):
        return _read_plan(payload)
    if kind == ord("W"):
        return Worker(**json.loads(payload.tobytes()))
    return _read_row(payload)


def _frames(file: BinaryIO) -> Iterator[tuple[int, int, memoryview, int]]:
    end = file.tell()
    last: int | None = None
    while len(frame := file.read(FRAME.size)) == FRAME.size:
        length, crc = FRAME.unpack(frame)
        body = file.read(length)
        if len(body) < max(length, HEAD.size) or zlib.crc32(body) != crc:
            return
        kind, sequence = HEAD.unpack_from(body)
        if last is not None and sequence != last + 1:
            return
        last = sequence
        end += FRAME.size + length
        yield kind, sequence, memoryview(body)[HEAD.size :], end


def _kind(content: Content) -> int:
    return ord("P" if isinstance(content, Plan) else "W" if isinstance(content, Worker) else "R")


def _payload(content: Content) -> bytes:
    if isinstance(content, Plan):
        data = content.to_json() | {
            "shape": content.theta.shape,
            "has_unit": content.unit is not None,
        }
        text = json.dumps(data).encode()
        tables = [content.theta] if content.unit is None else [content.theta, content.unit]
        return LENGTH.pack(len(text)) + text + b"".join(_doubles(t) for t in tables)
    if isinstance(content, Worker):
        data = {"id": content.id, "name": content.name, "started": content.started}
        return json.dumps(data).encode()
    row = content
    fixed = ROW.pack(
        row.point,
        row.status,
        min(row.attempt, 255),
        row.worker,
        row.t_start,
        row.t_run,
        row.t_queue,
        row.t_total,
    )
    if row.values is not None:
        return fixed + _doubles(row.values)
    return fixed + json.dumps([row.error, row.traceback]).encode()


def _doubles(array: Array) -> bytes:
    return np.ascontiguousarray(array, dtype="<f8").tobytes()


def _read_plan(payload: memoryview) -> Plan:
    (length,) = LENGTH.unpack_from(payload)
    text = payload[LENGTH.size : LENGTH.size + length].tobytes().decode()
    data = json.loads(text)
    shape = tuple(data["shape"])
    numbers = np.frombuffer(payload[LENGTH.size + length :], dtype="<f8").astype(np.float64)
    count = int(np.prod(shape, dtype=np.int64))
    unit = numbers[count:].reshape(shape) if data["has_unit"] else None
    return plan_from_text(text, numbers[:count].reshape(shape), unit)


def _read_row(payload: memoryview) -> Row:
    point, status, attempt, worker, t_start, t_run, t_queue, t_total = ROW.unpack_from(payload)
    rest = payload[ROW.size :]
    values, error, traceback = None, "", ""
    if status == Status.DONE:
        values = np.frombuffer(rest, dtype="<f8")
    else:
        error, traceback = json.loads(rest.tobytes())
    return Row(
        point=point,
        status=Status(status),
        attempt=attempt,
        worker=worker,
        t_start=t_start,
        t_run=t_run,
        t_queue=t_queue,
        t_total=t_total,
        values=values,
        error=error,
        traceback=traceback,
    )
