"""The HDF5 layout "sweep/2" of sweep files, which h5py, xarray and netCDF tools can read.

docs/sweeps.md has the table. The structure is fixed and fully allocated at the start: while a sweep
runs, only numbers in allocated places change. Together with a flush per batch this keeps the file
of a killed process readable. The two growing tables, failures and workers, change their structure
(`text_tables`): they are written when a process ends, and are in the journal until then. Other
changes of texts or sizes, too, go through `recovery.restructure`, which a kill cannot cut short.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import h5py
import numpy as np

from farm.call import Array, TensorInfo
from farm.storage.lock import machine
from farm.sweep.design.plan import Column, Plan, plan_from_text
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import COLUMNS, NO_WORKER, POINT_FIELDS, PointStatus, Row
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.text_tables import (
    create_texts,
    read_failures,
    read_workers,
    storable,
    write_tables,
)
from farm.sweep.space.parameters import Category

LAYOUT = "sweep/2"
CHUNK_BYTES = 128 * 1024
"""Chunk size, between 64 KiB and 1 MiB: large enough for fast reads, small for random writes."""
FLAG_ROWS = 4096
FEW_RUNS = 8
"""Below this number of contiguous runs, slices are faster than a list of rows (measured)."""
FEW_ENTRIES = 16
"""Up to this number of entries a row, entries are faster than a list of rows (measured)."""

MOST_NAMES = 5
"""Most names of another file's content in a message."""

MOST_BOUNDS = 4000
"""Most parameters whose bounds are attributes, which HDF5 limits to 64 KiB.

For more parameters only /provenance has the bounds."""

TEXT = h5py.string_dtype("utf-8")


def create(file: h5py.File, plan: Plan, *, gzip: bool = False) -> None:
    """Create the structure of `plan` in an empty file, allocated and filled. Raises OSError.

    gzip: compress the data; only for complete files: if a writer is killed while a chunk changes
    its size, the chunk is lost.
    """
    file.attrs["Conventions"] = "CF-1.11"
    file.attrs["farm_layout"] = LAYOUT
    file.attrs["title"] = plan.title
    file.attrs["run_id"] = plan.run_id
    file.attrs["state"] = "new"
    point = _scale(file, "point", _dataset(file, "point", (plan.size,), "i8", -1, FLAG_ROWS))
    param = _scale(file, "param", create_texts(file, "param", [p.name for p in plan.parameters]))
    _describe_parameters(file, plan, param)
    for name, table in (("theta", plan.theta), ("unit", plan.unit)):
        if table is not None:
            _join(_wide(file, name, table.shape, gzip=gzip), point, param)
    describe_theta(file["theta"], plan)
    if plan.cost is not None:
        cost = _dataset(file, "cost", (plan.size,), "f8", np.nan, FLAG_ROWS)
        cost.attrs["long_name"] = "expected run time of the point, in any unit"
        _join(cost, point)
    entries = _entry_scales(file, plan)
    for column in plan.columns:
        data = _wide(file, column.name, (plan.size, *column.shape), gzip=gzip)
        _join(data, point, *(entries[name] for name in _entries_of(column)))
        data.attrs.update(attributes_of(column, plan))
    for field in POINT_FIELDS:
        data = _dataset(file, field.name, (plan.size,), field.dtype, field.fill, FLAG_ROWS)
        data.attrs.update({"long_name": field.long_name, **field.attributes})
        _join(data, point)
    file.create_dataset("sequence", data=np.uint64(0)).attrs["long_name"] = (
        "number of journal records that this file contains"
    )
    write_tables(file, PointColumns.nothing(plan.size))
    file.create_group("summary")
    _write_table(file, plan)
    file.flush()


def mark(file: h5py.File, state: str, boot: str | None = None) -> None:
    """Write the state of the sweep and, if given, the boot of the machine that writes it."""
    file.attrs["state"] = state
    if boot is not None:
        file.attrs["machine"] = boot  # unless it reboots, no write is lost


def marked(file: h5py.File, state: str, boot: str) -> bool:
    """Whether `mark` has written just this."""
    return (file.attrs["state"], file.attrs.get("machine")) == (state, boot)


def fits(file: h5py.File, plan: Plan) -> bool:
    """Whether the file is structured for `plan`. Raises SweepError if it is of another sweep."""
    _check_layout(file)
    if file.attrs.get("run_id") != plan.run_id:
        raise SweepError(
            f"{file.filename} holds sweep {file.attrs.get('run_id')}, its journal {plan.run_id}"
        )
    facts, there = facts_of(plan), file["provenance"].attrs
    return len(file["point"]) == plan.size and all(there.get(k) == facts[k] for k in facts)


def fit(file: h5py.File, plan: Plan, state: str = "") -> None:
    """Adapt a file to `plan`, which may have more points, and mark it. Raises SweepError, OSError.

    state: the new state, "" to keep the old one.
    """
    if not fits(file, plan) and len(file["point"]) != plan.size:
        per_point = ["point", "theta", "unit", "cost", *COLUMNS, *(c.name for c in plan.columns)]
        for name in per_point:
            if name in file:
                file[name].resize(plan.size, axis=0)
    _write_table(file, plan)
    if state:
        mark(file, state, machine())
    file.flush()


def read_plan(file: h5py.File) -> Plan:
    """Read the plan of an open sweep file. Raises SweepError if it is not a sweep file."""
    _check_layout(file)
    unit = file["unit"][:] if "unit" in file else None
    plan = plan_from_text(file["provenance"].attrs["plan"], file["theta"][:], unit)
    return replace(plan, cost=file["cost"][:]) if plan.cost_rule else plan


def _check_layout(file: h5py.File) -> None:
    """Raise SweepError unless an open HDF5 file is a sweep file of this layout."""
    found = file.attrs.get("farm_layout")
    if found is None:
        names = ", ".join(list(file)[:MOST_NAMES]) or "nothing"
        raise SweepError(
            f"{file.filename} is not a sweep file of farm: it is another HDF5 file, with {names}; "
            "read it with h5py"
        )
    if found != LAYOUT:
        raise SweepError(
            f"{file.filename} is not a sweep file of layout {LAYOUT} but of {found}: read it with "
            "the release of farm that wrote it"
        )


def read_known(file: h5py.File) -> PointColumns:
    """Read the state of points, workers and failures from an open sweep file.

    Raises KeyError with the name of a column that is missing.
    """
    columns = {name: file[name][:] for name in COLUMNS if name in file}
    known = PointColumns({name: columns[name] for name in COLUMNS})
    known.workers.extend(read_workers(file))
    known.failures.extend(read_failures(file, known.status))
    # The writer may have been killed, and its journal lost.
    known.worker[known.worker >= len(known.workers)] = NO_WORKER
    with_text = {row.point for row in known.failures}
    for point in np.flatnonzero(known.status > PointStatus.DONE).tolist():
        if point not in with_text:
            status, attempt = PointStatus(int(known.status[point])), int(known.attempts[point])
            known.failures.append(Row(point, status, attempt, error="lost with the journal"))
    return known


def read_values(file: h5py.File, columns: Sequence[Column], points: Array) -> Array:
    """Read the values of `points`, which ascend; shape (points, values per point)."""
    if not len(points):
        return np.empty((0, sum(column.size for column in columns)))
    parts = [_get(file[c.name], points).reshape(len(points), c.size) for c in columns]
    return np.concatenate(parts, axis=1) if parts else np.empty((len(points), 0))


def write_points(file: h5py.File, columns: Sequence[Column], points: Array, values: Array) -> None:
    """Write the values of `points`, which ascend, as `read_values` returns them. Raises OSError."""
    start = 0
    for column in columns:
        part = values[:, start : start + column.size].reshape(len(points), *column.shape)
        _put(file[column.name], points, part)
        start += column.size


def write_outcomes(file: h5py.File, known: PointColumns, points: Array) -> None:
    """Write what is known of `points`, which ascend, except their values; the status last."""
    for name in reversed(COLUMNS):
        _put(file[name], points, known.columns[name][points])


def write_known(file: h5py.File, known: PointColumns) -> None:
    """Replace the small columns of all points, but not their values and the two tables."""
    for name in reversed(COLUMNS):
        file[name][:] = known.columns[name]


def write_summary(file: h5py.File, summary: Mapping[str, Any]) -> None:
    """Replace the attributes of /summary."""
    attrs = file["summary"].attrs
    for name in list(attrs):
        del attrs[name]
    for name, value in summary.items():
        attrs[name] = value


def _write_table(file: h5py.File, plan: Plan) -> None:
    """Write the data that depends on the number of points: theta, unit, cost and provenance."""
    write_theta(file, plan)
    write_words(file, plan)
    provenance = file.require_group("provenance").attrs
    for name, text in facts_of(plan).items():
        provenance[name] = text


def write_theta(file: h5py.File, plan: Plan) -> None:
    """Write the points into a file that has room for them."""
    file["point"][:] = np.arange(plan.size)
    file["theta"][:] = plan.theta
    if plan.unit is not None:
        file["unit"][:] = plan.unit
    if plan.cost is not None:
        file["cost"][:] = plan.cost


def _entry_scales(file: h5py.File, plan: Plan) -> dict[str, h5py.Dataset]:
    scales: dict[str, h5py.Dataset] = {}
    for column in plan.columns:
        for name, size in zip(_entries_of(column), column.shape, strict=True):
            if name not in scales:
                scales[name] = _scale(
                    file, name, file.create_dataset(name, data=np.arange(size, dtype="i8"))
                )
                tensors = plan.info.outputs if name.startswith("out") else plan.info.inputs
                tensor = tensors[column.output if name.startswith("out") else column.input or 0]
                scales[name].attrs["long_name"] = f"entry of {tensor.name}"
                scales[name].attrs["tensor_shape"] = tensor.shape or (1,)
    return scales


def _entries_of(column: Column) -> tuple[str, ...]:
    """Return the names of a column's axes after the axis of points."""
    if column.input is None:
        return (f"out_{column.output}_entry",)
    return f"out_{column.output}_entry", f"in_{column.input}_entry"


def attributes_of(column: Column, plan: Plan) -> dict[str, str]:
    """Return what an array of a sweep is, by the names of the CF conventions."""
    output = plan.info.outputs[column.output]
    if column.input is None:
        return cf_attributes(output)
    by = plan.info.inputs[column.input]
    stated = {"long_name": f"derivative of {output.name} with respect to {by.name}"}
    if output.unit and by.unit:
        stated["units"] = f"({output.unit})/({by.unit})"
    return stated


def cf_attributes(tensor: TensorInfo) -> dict[str, str]:
    """Return the name and unit of a model's input or output as the CF conventions have them."""
    stated = {"long_name": storable(tensor.description or tensor.name)}
    return {**stated, "units": storable(tensor.unit)} if tensor.unit else stated


def _describe_parameters(file: h5py.File, plan: Plan, param: h5py.Dataset) -> None:
    """Write units and descriptions of the parameters beside their names, if any has one."""
    tensors = [plan.tensor_of(parameter) for parameter in plan.parameters]
    units = [t.unit if t else "" for t in tensors]
    descriptions = [t.description if t else "" for t in tensors]
    for name, long_name, texts in (
        ("param_units", "units of the parameters", units),
        ("param_long_name", "descriptions of the parameters", descriptions),
    ):
        if any(texts):
            data = create_texts(file, name, texts)
            data.attrs["long_name"] = long_name
            _join(data, param)


def _wide(file: h5py.File, name: str, shape: tuple[int, ...], *, gzip: bool) -> h5py.Dataset:
    row_bytes = 8 * int(np.prod(shape[1:], dtype=np.int64))
    rows = max(1, CHUNK_BYTES // row_bytes)
    return _dataset(file, name, shape, "f8", np.nan, rows, gzip=gzip)


def _dataset(
    file: h5py.File,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    fill: float,
    chunk_rows: int,
    *,
    gzip: bool = False,
) -> h5py.Dataset:
    """Create a dataset that can grow along its first axis; space is allocated and filled now."""
    kind = np.dtype(dtype)
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    # A short sweep may be extended, so its chunks may be longer than it is.
    settings.set_chunk((min(chunk_rows, max(shape[0], 64)), *shape[1:]))
    settings.set_fill_value(np.array(fill, dtype=kind))
    if gzip:
        # Space cannot be allocated early: a chunk's compressed size is known only when written.
        settings.set_shuffle()
        settings.set_deflate(4)
    else:
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED, *shape[1:]))
    file_type = h5py.h5t.py_create(kind, logical=True)
    h5py.h5d.create(file.id, name.encode(), file_type, space, settings)
    return file[name]


def _scale(group: h5py.Group, name: str, data: h5py.Dataset) -> h5py.Dataset:
    data.make_scale(name)
    return data


def _join(data: h5py.Dataset, *scales: h5py.Dataset) -> None:
    for axis, scale in enumerate(scales):
        data.dims[axis].attach_scale(scale)


def _put(data: h5py.Dataset, points: Array, values: Array) -> None:
    """Set data[points] = values, for ascending points."""
    runs = _runs(points)
    if runs is None and values[:1].size <= FEW_ENTRIES:
        at = np.indices(values.shape).reshape(values.ndim, -1)
        at[0] = points[at[0]]
        space = data.id.get_space()
        space.select_elements(at.T)
        data.id.write(h5py.h5s.create_simple((values.size,)), space, np.ravel(values))
        return
    if runs is None:
        data[points] = values
        return
    start = 0
    for run in runs:
        data[run] = values[start : start + run.stop - run.start]
        start += run.stop - run.start


def _get(data: h5py.Dataset, points: Array) -> Array:
    """Return data[points], for ascending points."""
    runs = _runs(points)
    if runs is None:
        listed: Array = data[points]
        return listed
    return np.concatenate([data[run] for run in runs])


def _runs(points: Array) -> list[slice] | None:
    """Return ascending points as slices of contiguous ones; None if there are FEW_RUNS or more."""
    cuts = (np.flatnonzero(np.diff(points) != 1) + 1).tolist()
    if len(cuts) >= FEW_RUNS:
        return None
    ends = [0, *cuts, len(points)]
    return [slice(int(points[i]), int(points[j - 1]) + 1) for i, j in pairwise(ends)]


def facts_of(plan: Plan) -> dict[str, str]:
    """Return the attributes of /provenance."""
    facts = {
        **plan.provenance,
        "model": plan.info.name,
        "model_info": json.dumps(plan.info.to_json()),
        "config": json.dumps(dict(plan.config)),
        "design": str(plan.design),
        "seed": str(plan.seed),
        "theta_sha256": plan.theta_hash,
        "plan": json.dumps(plan.to_json()),
    }
    if_any = {
        "correlations": "; ".join(map(str, plan.correlations)),
        "conditions": "; ".join(f"{name}: {text}" for name, text in plan.when),
        "constraints": "; ".join(plan.where),
        "designs": json.dumps(_parts_of(plan)) if plan.parts else "",
    }
    facts |= {name: text for name, text in if_any.items() if text}
    return {name: storable(text) for name, text in facts.items()}


def _parts_of(plan: Plan) -> list[dict[str, Any]]:
    starts = np.cumsum([0, *(part.size for part in plan.parts)]).tolist()
    return [
        {"design": str(p.design), "seed": p.seed, "first_point": start, "points": p.size}
        for p, start in zip(plan.parts, starts, strict=False)
    ]


def describe_theta(theta: h5py.Dataset, plan: Plan) -> None:
    """Write bounds and scales of the parameters as attributes of /theta."""
    columns = zip(plan.parameters, plan.theta.T, strict=True)
    bounds = [p.spread.bounds if p.spread is not None else _range_of(c) for p, c in columns]
    theta.attrs["long_name"] = "parameters of the points"
    if len(bounds) <= MOST_BOUNDS:
        theta.attrs["lower"] = [low for low, _ in bounds]
        theta.attrs["upper"] = [high for _, high in bounds]
        scales = ["table" if p.spread is None else p.spread.scale for p in plan.parameters]
        theta.attrs["scale"] = np.array(scales, dtype=TEXT)
    if "unit" in theta.parent:
        theta.parent["unit"].attrs["long_name"] = "positions of the points in the unit cube"


def _range_of(column: Array) -> tuple[float, float]:
    """Return the smallest and the largest number of a column; NaN if it has none."""
    there = column[~np.isnan(column)]
    return (float(np.min(there)), float(np.max(there))) if len(there) else (np.nan, np.nan)


def write_words(file: h5py.File, plan: Plan) -> None:
    """Write the words of each parameter that has words: theta has the index of one."""
    for j, parameter in enumerate(plan.parameters):
        if not isinstance(parameter.spread, Category):
            continue
        name, words = f"param_{j}", parameter.spread.words
        group = file.require_group("words")
        if name in group:
            if len(group[name]) == len(words):
                continue
            del group[name]  # a table brought more
        data = create_texts(group, name, words)
        data.attrs["long_name"] = f"words of {parameter.name}"
        data.make_scale(name)
