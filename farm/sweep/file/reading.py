"""Reading sweep files in any state: open, copy and export them, and list their failures."""

from __future__ import annotations

import contextlib
import csv
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import h5py
import numpy as np

from farm.call import Array
from farm.machine.private import TemporaryFolder
from farm.storage.errors import UnsafeFile
from farm.storage.files import replacing, resolved
from farm.storage.hdf5 import HDF5_ERRORS, PATIENCE_S, open_file
from farm.storage.lock import lives
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file import layout
from farm.sweep.file.journal import (
    COLUMNS,
    EXPORTED,
    NO_WORKER,
    PointStatus,
    read_journal,
)
from farm.sweep.file.point_columns import Journaled, PointColumns, read
from farm.sweep.file.progress import Meter, Progress, read_status, status_of
from farm.sweep.file.recovery import RUNNING, is_replaced, journal_of, lock_of, rebuild
from farm.sweep.file.unreadable import check_path, described, reading
from farm.sweep.space.parameters import Category
from farm.sweep.space.space import texts_of
from farm.wording import needs

if TYPE_CHECKING:
    import xarray

T = TypeVar("T")

EXPORT_ROWS = 4096
NO_OUTPUTS: Array = np.empty((EXPORT_ROWS, 0))

INTERRUPTED = "interrupted"
SILENT = "silent"
SILENT_S = 15.0
"""Time in seconds without a status update after which a running sweep is reported as silent.

A running sweep updates its status every second; one that is silent was killed, or its disk hangs.
The clock skew between two machines is assumed to be smaller."""


def known_of(path: Path) -> tuple[Plan, PointColumns]:
    """Return the plan of a sweep, which may be running, and the state of its points.

    Raises SweepError.
    """
    plan, known, _ = state_of(path)
    return plan, known


def state_of(path: Path) -> tuple[Plan, PointColumns, Journaled | None]:
    """Return what `known_of` does, and the journal that it is from, if it is from one."""

    def look() -> tuple[Plan, PointColumns, Journaled | None]:
        if _journal_is_newer(path):
            try:
                journaled = read(journal_of(path))
                return journaled.plan, journaled.known, journaled
            except SweepError:  # damaged at its beginning; the file has most of it
                if not path.exists():
                    raise
        with open_file(path, "r") as file:
            return layout.read_plan(file), layout.read_known(file), None

    return _looked_at(path, look)


@contextlib.contextmanager
def open_sweep(path: Path) -> Iterator[h5py.File]:
    """Open a sweep file for reading.

    If the sweep is running or was killed, open a copy that is rebuilt from its journal.
    Raises SweepError.
    """
    with contextlib.ExitStack() as stack:

        def look() -> h5py.File:
            source = path
            if _journal_is_newer(path):
                source = stack.enter_context(TemporaryFolder("farm-sweep-")) / path.name
                rebuild(journal_of(path), source)
            file = stack.enter_context(open_file(source, "r"))
            layout.read_plan(file)
            return file

        file = _looked_at(path, look)
        try:
            yield file
        except UnsafeFile as error:
            raise described(path, error) from error


def _looked_at(path: Path, look: Callable[[], T]) -> T:
    """Return what `look` returns; retry if a writer starts or ends at the same moment."""
    check_path(path)
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return look()
        except HDF5_ERRORS as error:
            in_between = isinstance(error, BlockingIOError | FileNotFoundError)
            if not in_between or time.monotonic() > until:
                raise described(path, error) from error
        time.sleep(0.02)


def snapshot(path: str | Path, target: str | Path) -> None:
    """Write a consistent copy of a sweep, which may be running. Raises SweepError, OSError."""
    path, target = Path(path), resolved(Path(target))
    if target.exists():
        raise SweepError(f"{target} exists; name another file")
    if _journal_is_newer(path):
        rebuild(journal_of(path), target)
    else:
        with open_sweep(path), replacing(target) as new:
            shutil.copyfile(path, new)


def progress_of(path: str | Path) -> Progress:
    """Return the progress of a sweep, as its process reports it or from its files.

    The state is SILENT if the process of a running sweep, on another machine, has stopped
    reporting. A disk that is full may have no status, or an old one. Raises SweepError.
    """
    path = Path(path)
    check_path(path)
    alive = lives(lock_of(path))
    told = read_status(status_of(path))
    is_recent = told is not None and time.time() - told.time < SILENT_S and alive is not False
    if told is not None and (told.state != RUNNING or is_recent):
        return told
    plan, known = known_of(path)
    state = SILENT if alive is None else RUNNING if alive else _state_at_the_end(path)
    shown = Meter(known, plan, 0.0).now(state, 0.0)
    if told is None:
        return shown
    return replace(shown, time=told.time, host=told.host, pid=told.pid, elapsed_s=told.elapsed_s)


def _state_at_the_end(path: Path) -> str:
    """Return the state of a sweep whose process has ended: a killed one wrote none."""
    try:
        with open_file(path, "r") as file:
            state = str(file.attrs["state"])
    except HDF5_ERRORS:
        return INTERRUPTED
    return INTERRUPTED if state == RUNNING else state


def failures_of(path: str | Path, *, all_attempts: bool = False) -> list[dict[str, Any]]:
    """Return the failures of a sweep, sorted by point.

    A row has point, attempt, status, error, traceback, worker and the parameters by name: words as
    text, None for an inactive parameter.
    all_attempts: include failed attempts of points that were retried since.
    """
    plan, known = known_of(Path(path))
    rows = known.failures if all_attempts else known.last_failures.values()
    return [
        {
            "point": row.point,
            "attempt": row.attempt,
            "status": row.status.name.lower(),
            "error": row.error,
            "traceback": row.traceback,
            "worker": known.workers[row.worker].name if row.worker != NO_WORKER else "",
            **plan.values_of(row.point),
        }
        for row in sorted(rows, key=lambda row: (row.point, row.attempt))
    ]


def write_csv(path: str | Path, out: TextIO) -> int:
    """Write a sweep as a CSV table and return its number of rows.

    Columns: point, parameters, outputs, status, attempts and times. Numbers have full precision;
    gradients are omitted. Raises SweepError.
    """
    with open_sweep(Path(path)) as file:
        plan = layout.read_plan(file)
        outputs = plan.outputs
        writer = csv.writer(out, lineterminator="\n")
        names = [p.name for p in plan.parameters]
        for column, tensor in outputs:
            name = tensor.name
            names += [name] if column.size == 1 else [f"{name}[{k}]" for k in range(column.size)]
        writer.writerow(["point", *names, "status", *EXPORTED])
        for start in range(0, plan.size, EXPORT_ROWS):
            rows = slice(start, start + EXPORT_ROWS)
            with reading(Path(path)):
                found = [file[c.name][rows] for c, _ in outputs] or [NO_OUTPUTS]
                numbers = np.concatenate(found, axis=1)
                cells = [cells_of(plan, j, rows) for j in range(len(plan.parameters))]
                status = [PointStatus(int(s)).name.lower() for s in file["status"][rows]]
                rest = zip(*(file[n][rows].tolist() for n in EXPORTED), strict=True)
            for k, (word, more) in enumerate(zip(status, rest, strict=True)):
                values = [*(column[k] for column in cells), *_cells(numbers[k].tolist())]
                writer.writerow([start + k, *values, word, *_cells(more)])
        return plan.size


def cells_of(plan: Plan, column: int, rows: slice) -> list[str]:
    """Return values of a parameter as the cells of a CSV table; inactive ones are empty."""
    spread, values = plan.parameters[column].spread, plan.column(column)[rows]
    if isinstance(spread, Category):
        return [word or "" for word in spread.all_words(values)]
    return _cells(values.tolist())


def write_netcdf(path: str | Path, target: str | Path) -> None:
    """Write a sweep as netCDF with variables named as the outputs. Raises SweepError."""
    dataset = load_xarray(path)
    with replacing(resolved(Path(target))) as new:
        dataset.to_netcdf(new, engine="h5netcdf")


def load_xarray(path: str | Path) -> xarray.Dataset:
    """Load a sweep as an xarray.Dataset in memory, with parameters and outputs by name.

    Each parameter is a coordinate along `point`: words as text, "" for an inactive parameter of
    words, NaN for another one. An output of shape (a, b) has the dimensions
    (point, NAME_0, NAME_1), an output of size 1 only (point). Raises SweepError.
    """
    with needs("xarray", "xarray is needed for this", SweepError):
        import xarray
    with open_sweep(Path(path)) as file, reading(Path(path)):
        plan = layout.read_plan(file)
        data: dict[str, Any] = {}
        for column in plan.columns:
            name, dims, shape = _labels(column, plan)
            values = file[column.name][:].reshape(shape)
            data[name] = (dims, values, layout.attributes_of(column, plan))
        for name in filter(file.__contains__, COLUMNS):
            data.setdefault(name, ("point", file[name][:], dict(_plain_attrs(file[name]))))
        coords: dict[str, Any] = {"point": file["point"][:]}
        for j, parameter in enumerate(plan.parameters):
            # An output may have the same name as a parameter.
            name = parameter.name if parameter.name not in data else f"theta_{parameter.name}"
            values = plan.column(j)
            if isinstance(parameter.spread, Category):
                values = texts_of(parameter.spread, values)
            tensor = plan.tensor_of(parameter)
            attrs = layout.cf_attributes(replace(tensor, name=parameter.name)) if tensor else {}
            coords[name] = ("point", values, attrs)
        attrs = dict(_plain_attrs(file)) | {"model": plan.info.name, "seed": plan.seed}
        return xarray.Dataset(data, coords, attrs)


def _labels(column: Any, plan: Plan) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    output = plan.info.outputs[column.output]
    axes = [(output.name, output.shape)]
    name = output.name
    if column.input is not None:
        tensor = plan.info.inputs[column.input]
        name = f"d_{output.name}_d_{tensor.name}"
        axes.append((tensor.name, tensor.shape))
    dims: list[str] = ["point"]
    shape: list[int] = [plan.size]
    for tensor_name, tensor_shape in axes:
        long = tensor_shape if np.prod(tensor_shape, dtype=np.int64) > 1 else ()
        dims += [f"{tensor_name}_{k}" for k in range(len(long))]
        shape += long
    return name, tuple(dims), tuple(shape)


def _plain_attrs(item: Any) -> Iterator[tuple[str, Any]]:
    for name, value in item.attrs.items():
        if name not in ("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST"):
            yield name, value


def _cells(numbers: Sequence[float]) -> list[str]:
    return ["" if number != number else repr(number) for number in numbers]


def _journal_is_newer(path: Path) -> bool:
    """Whether the journal is more recent than the file.

    It is if the file is being written, was not closed, or belongs to a sweep that was replaced.
    """
    if not journal_of(path).exists():
        return False
    try:
        # Without HDF5's lock, which would block the writer; a torn read shows as an error.
        with open_file(path, "r", locking=False) as file:
            if file.attrs["state"] == RUNNING:
                return True
    except HDF5_ERRORS:
        return True
    first = next(iter(read_journal(journal_of(path)))).content
    return isinstance(first, Plan) and is_replaced(path, first)
