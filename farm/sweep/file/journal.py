"""The records of a sweep's journal, from which alone the sweep file can be rebuilt.

    'P'     the plan: length u32 of its JSON, the JSON, theta, then unit and cost if it has them
            (float64)
    'W'     a worker: JSON
    'R'     a point's outcome: `HEAD`, then its values as float64 if it is done, else JSON

The first record is the plan. When a sweep is extended, the longer plan is appended.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farm.call import Array
from farm.storage import frames
from farm.storage.errors import StorageError, WrongFormat
from farm.storage.frames import Damage, Format, Frame, FrameRun, Record
from farm.storage.journal import Journal
from farm.sweep.design.plan import Plan, plan_from_text
from farm.sweep.errors import SweepError

FORMAT = Format("farm sweep journal", 1, kinds=b"PWR")
PLAN, WORKER, OUTCOME = FORMAT.kinds
LENGTH = struct.Struct("<I")

MOST_ATTEMPTS = 255
NO_WORKER = 2**32 - 1


class PointStatus(IntEnum):
    """The status of a point; the file stores these numbers."""

    PENDING = 0
    DONE = 1
    FAILED = 2
    CANCELLED = 3
    TIMEOUT = 4


class PointField(NamedTuple):
    """A number that each point has, and its column in the file.

    fill: where nothing is known. attributes: HDF5 attributes beside `long_name`.
    """

    name: str
    dtype: str
    fill: float
    long_name: str
    attributes: dict[str, Any] = {}  # never changed

    @property
    def in_journal(self) -> str:
        """The type in a record of the journal, which has times in full."""
        return "<f8" if self.dtype.startswith("f") else f"<{self.dtype}"


NONE = {"comment": f"{NO_WORKER}: none"}
STATUSES = {
    "flag_values": np.array([int(s) for s in PointStatus], dtype="u1"),
    "flag_meanings": " ".join(s.name.lower() for s in PointStatus),
}
SECONDS, SINCE = {"units": "s"}, {"units": "seconds since 1970-01-01"}
POINT_FIELDS = (
    PointField("status", "u1", PointStatus.PENDING, "status of the point", STATUSES),
    PointField("attempts", "u1", 0, "times the point was submitted to the farm"),
    PointField("worker", "u4", NO_WORKER, "index into /workers/name", NONE),
    PointField("t_start", "f8", np.nan, "start of the model", SINCE),
    PointField("t_run", "f4", np.nan, "time in the model", SECONDS),
    PointField("t_queue", "f4", np.nan, "time in the farm's queue", SECONDS),
    PointField("t_total", "f4", np.nan, "time from submission to answer", SECONDS),
    PointField("copied", "u1", 0, "1: a copy of a slow call ran on another worker"),
    PointField("reused", "u1", 0, "1: the farm answered from its record"),
)
"""The numbers of a point, also in `Row` and, the times, in `times_of` of `run/in_flight.py`.
Others need other versions in `FORMAT` and `LAYOUT`: old files would be misread."""

COLUMNS = tuple(field.name for field in POINT_FIELDS)
EXPORTED = ("attempts", "t_start", "t_run", "t_queue")
"""The columns that tables for other programs have."""

MARKS = {"copied": 0x80, "reused": 0x40}
"""Added to the status in a record, for what is true of the point."""
PLAIN = 0xFF & ~sum(MARKS.values())

HEAD = np.dtype(
    [("point", "<u8")] + [(f.name, f.in_journal) for f in POINT_FIELDS if f.name not in MARKS]
)
HEAD_NAMES = ("point", *(name for name in COLUMNS if name not in MARKS))
"""The numbers of a point in its record of the journal."""


class Row(NamedTuple):
    """The outcome of one point, whose numbers `POINT_FIELDS` explains.

    values: all values of a done point, in the order of the plan's columns.
    """

    # As in `HEAD`.
    point: int
    status: PointStatus
    attempt: int = 1
    worker: int = NO_WORKER
    t_start: float = float("nan")
    t_run: float = float("nan")
    t_queue: float = float("nan")
    t_total: float = float("nan")
    # Not in `HEAD`.
    values: Array | None = None
    error: str = ""
    traceback: str = ""
    copied: bool = False
    reused: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class DoneRows:
    """The outcomes of done points together; iterating yields the Row of each.

    heads: of `HEAD`; values: a row for each of them, as in Row.
    """

    heads: Array
    values: Array

    def __iter__(self) -> Iterator[Row]:
        for head, values in zip(self.heads.tolist(), self.values, strict=True):
            yield _row(head, values)

    def payloads(self) -> NDArray[np.uint8]:
        """Return the records of a journal that have the rows, without their frames."""
        values = np.ascontiguousarray(self.values, dtype="<f8")
        parts = [part.view(np.uint8).reshape(len(part), -1) for part in (self.heads, values)]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, slots=True)
class AnsweringWorker:
    """A worker that answered. started: Unix time of its first answer."""

    id: int
    name: str
    started: float

    @property
    def host(self) -> str:
        """The machine that the worker runs on: its name up to the first slash."""
        return self.name.partition("/")[0]


Content = Plan | AnsweringWorker | Row


class Kept(NamedTuple):
    """One record of a journal: its number, its content, and the byte in the file where it ends."""

    sequence: int
    content: Content
    end: int


def start_journal(path: Path, contents: Iterable[Content], *, sequence: int = 0) -> Journal:
    """Create a journal with `contents`; it replaces the file at `path` once it is on disk.

    Raises SweepError, OSError.
    """
    records = (encoded(content) for content in contents)
    try:
        return Journal.start(path, FORMAT, records, sequence=sequence)
    except StorageError as error:
        raise SweepError(str(error)) from None


def add_to(journal: Journal, content: Content | DoneRows) -> None:
    """Append a record, or those of rows; once this returns, they survive this process's death.

    If it raises SweepError or OSError, the journal is unchanged.
    """
    try:
        if isinstance(content, DoneRows):
            journal.append_rows(OUTCOME, content.payloads())
        else:
            journal.append(encoded(content))
    except StorageError as error:
        raise SweepError(str(error)) from None


def read_journal(path: Path) -> Iterator[Kept]:
    """Yield all intact records in order, as `read_runs` does."""
    for run in read_runs(path):
        for frame in run.frames():
            yield Kept(frame.sequence, content_of(frame), frame.end)


def read_runs(path: Path) -> Iterator[FrameRun]:
    """Yield all intact records in order, also while a sweep writes; the first one is the plan.

    Raises SweepError if the file is not a journal with a plan, and OSError.
    """
    has_plan = False
    try:
        for run in frames.read_runs(path, FORMAT):
            has_plan = has_plan or run.kind == PLAN
            if not has_plan:
                break
            yield run
    except WrongFormat as error:
        why = "is not a journal of a sweep"
        if error.version is not None:
            why = (
                f"has version {error.version}, this farm writes {FORMAT.version}; use the release "
                "that wrote it"
            )
        raise SweepError(f"{path} {why}") from None
    if not has_plan:
        raise SweepError(f"{path} is damaged at its beginning: it holds no plan")


def read_past_damage(path: Path) -> Iterator[Kept | Damage]:
    """Yield all intact records and all damaged places, in order.

    A torn last record, as after the writer died, does not count as damage. The caller must hold the
    sweep's lock. Raises OSError.
    """
    for found in frames.read_past_damage(path, FORMAT):
        if isinstance(found, Damage):
            yield found
        else:
            yield Kept(found.sequence, content_of(found), found.end)


def encoded(content: Content) -> Record:
    """Encode `content` as a journal record."""
    if isinstance(content, Plan):
        data = content.to_json() | {
            "shape": content.theta.shape,
            "has_unit": content.unit is not None,
            "has_cost": content.cost is not None,
        }
        text = json.dumps(data).encode()
        tables = [_doubles(t) for t in (content.theta, content.unit, content.cost) if t is not None]
        return Record(PLAN, b"".join([LENGTH.pack(len(text)), text, *tables]))
    if isinstance(content, AnsweringWorker):
        return Record(WORKER, json.dumps(asdict(content)).encode())
    rest = (
        json.dumps([content.error, content.traceback]).encode()
        if content.values is None
        else _doubles(content.values)
    )
    return Record(OUTCOME, b"".join([head_of(content).data, rest]))


def content_of(frame: Frame) -> Content:
    """Decode a record."""
    kind, _, payload, _ = frame
    if kind == PLAN:
        return _read_plan(payload)
    if kind == WORKER:
        return AnsweringWorker(**json.loads(payload.tobytes()))
    return _read_row(payload)


def head_of(row: Row) -> Array:
    """Return the numbers of an outcome as `HEAD`; shape (1,)."""
    status = row.status | MARKS["copied"] * row.copied | MARKS["reused"] * row.reused
    rest = row[3 : len(HEAD_NAMES)]
    return np.array([(row.point, status, min(row.attempt, MOST_ATTEMPTS), *rest)], HEAD)


def _doubles(array: Array) -> memoryview:
    return np.ascontiguousarray(array, dtype="<f8").data


def _read_plan(payload: memoryview) -> Plan:
    (length,) = LENGTH.unpack_from(payload)
    text = payload[LENGTH.size : LENGTH.size + length].tobytes().decode()
    data = json.loads(text)
    shape = tuple(data["shape"])
    numbers = np.frombuffer(payload[LENGTH.size + length :], dtype="<f8")
    count = int(np.prod(shape, dtype=np.int64))
    unit = numbers[count : 2 * count].reshape(shape) if data["has_unit"] else None
    cost = numbers[-shape[0] :] if data["has_cost"] else None
    return plan_from_text(text, numbers[:count].reshape(shape), unit, cost)


def _read_row(payload: memoryview) -> Row:
    head, rest = np.frombuffer(payload, HEAD, 1)[0].item(), payload[HEAD.itemsize :]
    if head[1] & PLAIN == PointStatus.DONE:
        return _row(head, np.frombuffer(rest, dtype="<f8"))
    return _row(head, None, *json.loads(rest.tobytes()))


def _row(head: Sequence[Any], values: Array | None, error: str = "", traceback: str = "") -> Row:
    point, marked, *rest = head
    marks = [bool(marked & bit) for bit in MARKS.values()]
    status = PointStatus(marked & PLAIN)
    return Row._make([point, status, *rest, values, error, traceback, *marks])
