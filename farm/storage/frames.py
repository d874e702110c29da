"""The file format of journals: encodes, finds and reads records with length and checksum.

    file    := NAME " " VERSION "\\n" record*
    record  := length u32, crc32 u32, body        crc over the body, length of the body, all
    body    := kind u8, sequence u64, payload     little-endian

Sequence numbers increase by one from record to record. A process that is killed while it writes
leaves at most one torn group of records, at the end. Readers stop at the first torn record.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farm.storage.errors import RecordTooLarge, WrongFormat
from farm.storage.files import open_regular

FRAME = struct.Struct("<II")
HEAD = struct.Struct("<BQ")
START = np.dtype([("length", "<u4"), ("crc", "<u4"), ("kind", "u1"), ("sequence", "<u8")])
"""`FRAME` and `HEAD` together, for many records at once."""
READ_BYTES = 2**20
LARGEST_BODY = 2**32 - 1
LONGEST_MAGIC = 100


class Format(NamedTuple):
    """A kind of journal. name: the start of its file. kinds: the kinds of its records."""

    name: str
    version: int
    kinds: bytes

    @property
    def magic(self) -> bytes:
        """The first line of each file of this kind and version."""
        return f"{self.name} {self.version}\n".encode()


class Record(NamedTuple):
    """A record of a journal. kind: one of the format's kinds, as a number."""

    kind: int
    payload: bytes


class Frame(NamedTuple):
    """An intact record in a file. end: offset of the first byte after it."""

    kind: int
    sequence: int
    payload: memoryview
    end: int


class FrameRun(NamedTuple):
    """Intact records that follow one another, of one kind and length.

    sequence: number of the first one; payloads: a row for each; end: as in Frame, of the last one.
    """

    kind: int
    sequence: int
    payloads: NDArray[np.uint8]
    end: int

    def ends(self) -> NDArray[np.int64]:
        """Return the `end` of each record."""
        count, size = self.payloads.shape
        ends: NDArray[np.int64] = self.end - (START.itemsize + size) * np.arange(count - 1, -1, -1)
        return ends

    def frames(self) -> Iterator[Frame]:
        """Yield the records."""
        for k, end in enumerate(self.ends().tolist()):
            yield Frame(self.kind, self.sequence + k, self.payloads[k].data, end)


class Damage(NamedTuple):
    """Damaged bytes before an intact record, from offset `start` up to `end`.

    start == end if a record is missing entirely.
    """

    start: int
    end: int


def framed(record: Record, sequence: int) -> bytes:
    """Encode a record. Raises RecordTooLarge."""
    kind, payload = record
    head = HEAD.pack(kind, sequence)
    length = len(head) + len(payload)
    if length > LARGEST_BODY:
        raise RecordTooLarge(f"a record of {length} bytes is too large for the journal")
    crc = zlib.crc32(payload, zlib.crc32(head))
    return b"".join((FRAME.pack(length, crc), head, payload))


def framed_all(kind: int, payloads: NDArray[np.uint8], sequence: int) -> bytes:
    """Encode records of one kind and length, of which the first has the number `sequence`.

    payloads: a row for each of them. Raises RecordTooLarge.
    """
    count, size = payloads.shape
    length = HEAD.size + size
    if length > LARGEST_BODY:
        raise RecordTooLarge(f"records of {length} bytes are too large for the journal")
    heads = np.empty(count, START)
    heads["length"], heads["kind"] = length, kind
    heads["sequence"] = np.arange(sequence, sequence + count)
    rows = np.concatenate([heads.view(np.uint8).reshape(count, START.itemsize), payloads], axis=1)
    rows[:, 4:8] = _checksums(rows).view(np.uint8).reshape(count, 4)
    return rows.tobytes()


def _checksums(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the CRC that belongs to each record, a row."""
    data, width = rows.reshape(-1).data, rows.shape[1]
    starts = range(0, len(data), width)
    return np.array([zlib.crc32(data[i + FRAME.size : i + width]) for i in starts], "<u4")


def intact_record(data: bytes) -> memoryview | None:
    """Return the payload of the record at the start of `data`; None if it is not intact."""
    found = _frame_at(data, 0, None)
    return None if found is None else found.payload


def read_frames(path: Path, format: Format) -> Iterator[Frame]:
    """Yield the intact records of a file, up to the first one that is not intact.

    Another process may be writing the file. Raises WrongFormat, OSError.
    """
    with open_regular(path) as file:
        check_format(file, path, format)
        end = file.tell()
        size = os.fstat(file.fileno()).st_size
        last: int | None = None
        while len(frame := file.read(FRAME.size)) == FRAME.size:
            length, crc = FRAME.unpack(frame)
            if length < HEAD.size or end + FRAME.size + length > size:
                return
            body = file.read(length)
            if len(body) < length or zlib.crc32(body) != crc:
                return
            kind, sequence = HEAD.unpack_from(body)
            if last is not None and sequence != last + 1:
                return
            last = sequence
            end += FRAME.size + length
            yield Frame(kind, sequence, memoryview(body)[HEAD.size :], end)


def read_runs(path: Path, format: Format) -> Iterator[FrameRun]:
    """Yield the same records as `read_frames`, those of one kind and length together.

    This is slower if most records differ in length.
    """
    with open_regular(path) as file:
        check_format(file, path, format)
        end = file.tell()
        size = os.fstat(file.fileno()).st_size
        data, at, most, last = b"", 0, 1, None
        while True:
            if len(data) - at < START.itemsize:
                data, at = data[at:] + file.read(READ_BYTES), 0
            if len(data) - at < START.itemsize:
                return
            length, _ = FRAME.unpack_from(data, at)
            kind, sequence = HEAD.unpack_from(data, at + FRAME.size)
            width = FRAME.size + length
            if length < HEAD.size or end + width > size or last not in (None, sequence - 1):
                return
            if len(data) - at < width:
                head = data[at : at + START.itemsize]
                file.seek(end)
                data, at = file.read(max(READ_BYTES, width)), 0
                if not data.startswith(head):
                    return  # the writer took that record back
            rows = _alike(data, at, width, most)
            if not len(rows):
                return
            # Look further ahead only while there is something: records may all differ in length.
            most = 4 * most if len(rows) == most else len(rows)
            at, end, last = at + rows.size, end + rows.size, sequence + len(rows) - 1
            yield FrameRun(kind, sequence, rows[:, START.itemsize :], end)


def _alike(data: bytes, at: int, width: int, most: int) -> NDArray[np.uint8]:
    """Return the intact records from an offset on, a row for each, that are like the first one."""
    count = min(most, (len(data) - at) // width)
    rows = np.frombuffer(data, np.uint8, count * width, at).reshape(count, width)
    heads = rows[:, : START.itemsize].copy().view(START)[:, 0]
    first = heads[:1]
    alike = (heads["length"] == first["length"]) & (heads["kind"] == first["kind"])
    alike &= heads["sequence"] - first["sequence"] == np.arange(count, dtype=np.uint64)
    rows = rows[: count if alike.all() else int(np.argmin(alike))]
    intact = heads["crc"][: len(rows)] == _checksums(rows)
    return rows if intact.all() else rows[: int(np.argmin(intact))]


def check_format(file: BinaryIO, path: Path, format: Format) -> None:
    """Read the first line of a file. Raises WrongFormat if it does not match the format."""
    line = file.readline(LONGEST_MAGIC)
    if line != format.magic:
        other = re.fullmatch(re.escape(format.name.encode()) + rb" (\d+)\n", line)
        raise WrongFormat(path, format.name, int(other[1]) if other else None)


def read_past_damage(path: Path, format: Format) -> Iterator[Frame | Damage]:
    """Yield all intact records, even after damage, and the damaged places between them.

    A torn end, as after the writer died, does not count as damage. The first line may be damaged
    too. The caller must hold the file's lock: if the file shrinks meanwhile, the process is killed.
    Raises OSError.
    """
    with open_regular(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield from _frames_and_damage(data, len(format.magic), None, format)


def damage_after(path: Path, format: Format, end: int, sequence: int) -> Damage | None:
    """Find damage after the last record of `read_frames`; None: the rest is torn or empty.

    end, sequence: of that record; 0 if there is none. Another process may be writing the file.
    Raises OSError.
    """
    with open_regular(path) as file:
        file.seek(end)
        rest = file.read()
    for found in _frames_and_damage(rest, 0, sequence, format):
        if isinstance(found, Damage):
            return Damage(end + found.start, end + found.end)
    return None


Bytes = mmap.mmap | bytes


def _frames_and_damage(
    data: Bytes, end: int, last: int | None, format: Format
) -> Iterator[Frame | Damage]:
    kinds = re.compile(b"[" + re.escape(format.kinds) + b"]")
    while end < len(data):
        start, found = _next_frame(data, end, last, kinds)
        if found is None:
            return
        if start > end or (last is not None and found.sequence != last + 1):
            yield Damage(end, start)
        yield found
        end, last = found.end, found.sequence


def _next_frame(
    data: Bytes, start: int, last: int | None, kinds: re.Pattern[bytes]
) -> tuple[int, Frame | None]:
    """Return the first intact record from an offset on, and where it starts."""
    if found := _frame_at(data, start, last):
        return start, found
    for candidate in kinds.finditer(data, start + 1 + FRAME.size):
        begin = candidate.start() - FRAME.size
        if found := _frame_at(data, begin, last):
            return begin, found
    return start, None


def _frame_at(data: Bytes, start: int, last: int | None) -> Frame | None:
    """Return the intact record at an offset with a number above `last`; None if there is none."""
    head = start + FRAME.size
    if head + HEAD.size > len(data):
        return None
    length, crc = FRAME.unpack_from(data, start)
    end = head + length
    if length < HEAD.size or end > len(data):
        return None
    kind, sequence = HEAD.unpack_from(data, head)
    if last is not None and sequence <= last:
        return None
    body = data[head:end]
    if zlib.crc32(body) != crc:
        return None
    return Frame(kind, sequence, memoryview(body)[HEAD.size :], end)
