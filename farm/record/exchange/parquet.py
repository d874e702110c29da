"""The evaluations of one model as a table: as a pandas DataFrame, and as a Parquet file."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.errors import UnsupportedFeature
from farm.record.exchange.export import RecordedPoints, table_of
from farm.sweep.file.tables import Columns, plain_columns, write_columns
from farm.sweep.space.binding import entry_name
from farm.wording import needs

if TYPE_CHECKING:
    import pandas

ABOUT = ("status", "error", "run_time_s", "time", "worker", "client", "chain", "config")
"""Columns beside those of inputs and outputs."""


def columns_of(points: RecordedPoints) -> tuple[Columns, dict[str, str]]:
    """Return evaluations as columns with one entry per point, and facts about all of them.

    Columns: inputs and config entries that differ; the entries of all outputs, masked for a failed
    point; status, error, run_time_s, time (Unix), worker, client, chain, config. Raises
    InvalidInput.
    """
    table = table_of(points)
    columns: Columns = {
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
            columns[name] = np.ma.MaskedArray(values[:, place], failed)
    for name, column in about.items():
        is_number = name in ("run_time_s", "time")
        columns[_free(name, columns)] = np.array(column, np.float64) if is_number else column
    version = next(iter(points.entries)).version
    return columns, {"farm_model": points.info.name, "farm_model_version": version}


def to_pandas(points: RecordedPoints) -> pandas.DataFrame:
    """Return evaluations as a DataFrame with one row per point; the columns are in `columns_of`.

    Outputs of a failed point are NaN. Raises InvalidInput, and UnsupportedFeature if pandas is
    missing.
    """
    with needs("pandas", "pandas is needed for this", UnsupportedFeature):
        import pandas
    columns, facts = columns_of(points)
    frame = pandas.DataFrame(plain_columns(columns))
    frame.attrs.update(facts)
    return frame


def write_parquet(points: RecordedPoints, path: Path) -> int:
    """Write evaluations as a table with one row per point; return their number.

    The columns are in `columns_of`; outputs of a failed point are null. Raises InvalidInput,
    OSError, and UnsupportedFeature if pyarrow is missing.
    """
    return write_columns(path, lambda: columns_of(points), UnsupportedFeature)


def _free(name: str, taken: Columns) -> str:
    """Return the name, or one with underscores where an input has it already."""
    while name in taken:
        name += "_"
    return name
