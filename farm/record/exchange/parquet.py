"""Exports the evaluations of one model as a Parquet table, for pandas, Polars, DuckDB and R."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import UnsupportedFeature
from farm.record.exchange.export import RecordedPoints, entry_name, table_of


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
    entries = points.entries
    columns: dict[str, Any] = {
        parameter.name: table.theta[:, j] for j, parameter in enumerate(table.parameters)
    }
    for i, tensor in enumerate(points.info.outputs):
        blank: Array = np.full(tensor.size, np.nan)
        rows = [
            e.outputs[i].astype(np.float64).reshape(-1) if e.outputs else blank for e in entries
        ]
        values = np.stack(rows)
        failed = np.array([not entry.outputs for entry in entries])
        for entry in range(tensor.size):
            name = _free(entry_name(tensor, entry), columns)
            columns[name] = pyarrow.array(values[:, entry], mask=failed)
    about = {
        "status": [entry.status.name.lower() for entry in entries],
        "error": [entry.error[1] if entry.error else None for entry in entries],
        "run_time_s": [entry.run_time_s for entry in entries],
        "time": [entry.time for entry in entries],
        "worker": [entry.worker for entry in entries],
        "client": [entry.client for entry in entries],
        "chain": [entry.chain for entry in entries],
        "config": [entry.config for entry in entries],
    }
    for name, column in about.items():
        kind = pyarrow.float64() if name in ("run_time_s", "time") else pyarrow.string()
        columns[_free(name, columns)] = pyarrow.array(column, kind)
    origin = {"farm_model": points.info.name, "farm_model_version": entries[0].version}
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(origin), path)
    return len(entries)


def _free(name: str, taken: dict[str, Any]) -> str:
    """Return the name, or one with underscores where an input has it already."""
    while name in taken:
        name += "_"
    return name
