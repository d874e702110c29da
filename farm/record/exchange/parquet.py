"""Exports the evaluations of one model as a Parquet table, for pandas, Polars, DuckDB and R."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import UnsupportedFeature
from farm.record.exchange.export import RecordedPoints, entry_name, table_of

ABOUT = ("status", "error", "run_time_s", "time", "worker", "client", "chain", "config")
"""Columns beside those of inputs and outputs."""


def write_parquet(points: RecordedPoints, path: Path) -> int:
    """Write evaluations as a table with one row per point; return their number.

    Columns: inputs and config entries that differ; the entries of all outputs, null for a failed
    point; status, error, run_time_s, time (Unix), worker, client, chain, config. Raises
    InvalidInput, OSError, and UnsupportedFeature if pyarrow is missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UnsupportedFeature(
            'Parquet needs pyarrow: pip install "modelfarm[parquet]"'
        ) from None
    table = table_of(points)
    columns: dict[str, Any] = {
        parameter.name: table.theta[:, j] for j, parameter in enumerate(table.parameters)
    }
    outputs = points.info.outputs
    numbers = [array("d") for _ in outputs]
    blanks = [np.full(tensor.size, np.nan).tobytes() for tensor in outputs]
    failed = np.zeros(len(points.entries), bool)
    about: dict[str, list[Any]] = {name: [] for name in ABOUT}
    for number, entry in enumerate(points.entries):
        failed[number] = not entry.outputs
        given = [a.astype(np.float64).tobytes() for a in entry.outputs] or blanks
        for kept, row in zip(numbers, given, strict=True):
            kept.frombytes(row)
        said = entry.status.name.lower(), entry.error[1] if entry.error else None
        origin = entry.worker, entry.client, entry.chain, entry.config
        row_about = *said, entry.run_time_s, entry.time, *origin
        for column, value in zip(about.values(), row_about, strict=True):
            column.append(value)
    for tensor, kept in zip(outputs, numbers, strict=True):
        values = np.frombuffer(kept, np.float64).reshape(len(failed), tensor.size)
        for place in range(tensor.size):
            name = _free(entry_name(tensor, place), columns)
            columns[name] = pyarrow.array(values[:, place], mask=failed)
    for name, column in about.items():
        kind = pyarrow.float64() if name in ("run_time_s", "time") else pyarrow.string()
        columns[_free(name, columns)] = pyarrow.array(column, kind)
    version = next(iter(points.entries)).version
    facts = {"farm_model": points.info.name, "farm_model_version": version}
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(facts), path)
    return len(failed)


def _free(name: str, taken: dict[str, Any]) -> str:
    """Return the name, or one with underscores where an input has it already."""
    while name in taken:
        name += "_"
    return name
