"""The texts of a sweep file: parameter names, and the tables /failures and /workers.

Each is an array of texts of one length, so that programs without variable-length text, such as
Octave, read the file. The bytes are UTF-8 although the type is called ASCII, because those programs
refuse the other type. netCDF's attribute `_Encoding` would say so, but xarray fails with it where
the netCDF library has decoded the texts. The length is that of the longest text, so a table is
written again for a longer one: only by `write_tables`, when a process ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from farm.call import Array
from farm.sweep.file.journal import MOST_ATTEMPTS, AnsweringWorker, PointStatus, Row
from farm.sweep.file.point_columns import PointColumns

LONGEST_TEXT = 16 * 1024
"""In bytes; a longer text, such as an error with a whole array in it, loses its middle.

Every text of a table has the length of the longest in memory, so one of a megabyte would make ten
thousand failures ten gigabytes."""

CUT = " […] "
"""Stands for the middle that is left out."""

CHUNK_BYTES = 128 * 1024
READ_BYTES = 16 * 2**20
"""Texts are read in portions of this size: in the file they are compressed, in memory not yet."""

TEXT = "text"
DTYPES = {
    **{"row": "i8", "point": "i8", "attempt": "u1", "worker": "u4", "time": "f8"},
    **{"error": TEXT, "traceback": TEXT},
    **{"id": "i8", "name": TEXT, "host": TEXT, "gpus": TEXT, "started": "f8", "ended": "f8"},
}
TIMES = ("time", "started", "ended")


def storable(text: str) -> str:
    """Escape NUL, which ends HDF5 strings, and replace surrogates, which UTF-8 cannot encode."""
    return text.replace("\0", "\\0").encode("utf-8", "replace").decode()


def create_texts(group: h5py.Group, name: str, texts: Sequence[str]) -> h5py.Dataset:
    """Create an array of texts that any HDF5 program reads; it can grow, but not in length."""
    encoded = [_encoded(text) for text in texts]
    longest = max(map(len, encoded), default=0) or 1  # HDF5 has no text of length 0
    rows = max(1, min(256, CHUNK_BYTES // longest))
    return group.create_dataset(
        name,
        data=np.array(encoded, dtype=f"S{longest}"),
        maxshape=(None,),
        chunks=(rows,),
        compression="gzip",  # most is padding; nothing changes in place
    )


def read_texts(data: h5py.Dataset) -> list[str]:
    """Read an array of texts."""
    rows = max(1, READ_BYTES // data.dtype.itemsize)
    starts = range(0, len(data), rows)
    return [text.decode() for start in starts for text in data[start : start + rows].tolist()]


def write_tables(file: h5py.File, known: PointColumns) -> None:
    """Replace /failures and /workers by those of `known`."""
    failures, workers = known.failures, known.workers
    _replace(
        file,
        "failures",
        {
            "row": list(range(len(failures))),
            "point": [row.point for row in failures],
            "attempt": [min(row.attempt, MOST_ATTEMPTS) for row in failures],
            "error": [row.error for row in failures],
            "traceback": [row.traceback for row in failures],
            "worker": [row.worker for row in failures],
            "time": [row.t_start for row in failures],
        },
    )
    _replace(
        file,
        "workers",
        {
            "id": [worker.id for worker in workers],
            "name": [worker.name for worker in workers],
            "host": [worker.host for worker in workers],
            "gpus": [""] * len(workers),
            "started": [worker.started for worker in workers],
            "ended": known.ended,
        },
    )


def read_workers(file: h5py.File) -> list[AnsweringWorker]:
    """Read the workers that answered."""
    table = file["workers"]
    columns = table["id"][:].tolist(), read_texts(table["name"]), table["started"][:].tolist()
    return [AnsweringWorker(*row) for row in zip(*columns, strict=True)]


def read_failures(file: h5py.File, status: Array) -> Iterator[Row]:
    """Read the failures. status: that of all points, as the table does not have it."""
    table = file["failures"]
    columns = [table[name][:].tolist() for name in ("point", "attempt", "worker", "time")]
    columns += [read_texts(table[name]) for name in ("error", "traceback")]
    for point, attempt, worker, time, error, traceback in zip(*columns, strict=True):
        now = PointStatus(int(status[point]))
        # The point failed in this attempt even if a retry was successful.
        how = PointStatus.FAILED if now in (PointStatus.DONE, PointStatus.PENDING) else now
        yield Row(point, how, attempt, worker, time, error=error, traceback=traceback)


def _replace(file: h5py.File, name: str, columns: dict[str, Any]) -> None:
    if name in file:
        del file[name]
    group = file.create_group(name)
    scale: h5py.Dataset | None = None
    for column, values in columns.items():
        dtype = DTYPES[column]
        data = (
            create_texts(group, column, values)
            if dtype == TEXT
            else group.create_dataset(
                column,
                data=np.asarray(values, dtype=dtype),
                maxshape=(None,),
                chunks=(256,),
                fillvalue=np.nan if dtype == "f8" else None,
            )
        )
        if column in TIMES:
            data.attrs["units"] = "seconds since 1970-01-01"
        if scale is None:
            scale = data
            scale.make_scale(column)
        else:
            data.dims[0].attach_scale(scale)


def _encoded(text: str) -> bytes:
    whole = storable(text).encode()
    if len(whole) <= LONGEST_TEXT:
        return whole
    half = (LONGEST_TEXT - len(CUT.encode())) // 2
    # A cut through a character leaves bytes that are not UTF-8: drop them.
    begin, end = (part.decode("utf-8", "ignore") for part in (whole[:half], whole[-half:]))
    return f"{begin}{CUT}{end}".encode()
