"""A sweep as one table with a row for each point: as a pandas DataFrame, and as a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.call import TensorInfo
from farm.storage.files import replacing, resolved
from farm.sweep.errors import SweepError
from farm.sweep.file import layout
from farm.sweep.file.journal import EXPORTED, NO_WORKER, PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.reading import open_sweep
from farm.sweep.file.unreadable import reading
from farm.sweep.space.binding import entry_name
from farm.sweep.space.parameters import Category
from farm.wording import needs

if TYPE_CHECKING:
    import pandas


Columns = dict[str, Any]
"""Arrays of numbers, or lists of texts and None. A masked array has NaN where it is masked."""


@dataclass(frozen=True, slots=True, eq=False)
class SweepTable:
    """The columns of a sweep, each with an entry for every point.

    words: the columns of words, with all their words in order. facts: about the sweep as a whole.
    units, descriptions: of the parameters and outputs that have one, by column.
    """

    columns: Columns
    facts: dict[str, str]
    words: dict[str, tuple[str, ...]]
    units: dict[str, str]
    descriptions: dict[str, str]


def table_of(path: str | Path) -> SweepTable:
    """Return a sweep, which may be running, as columns. Gradients are omitted. Raises SweepError.

    Columns: point, the parameters, the entries of the outputs, status, error, worker, attempts and
    times. A parameter called like another column is `theta_NAME`, as in `load_xarray`.
    """
    with open_sweep(Path(path)) as file, reading(Path(path)):
        plan, known = layout.read_plan(file), layout.read_known(file)
        is_missing = known.status != PointStatus.DONE
        outputs: Columns = {}
        tensors: dict[str, TensorInfo | None] = {}
        for column, tensor in plan.outputs:
            values = file[column.name][:]
            entries = {
                entry_name(tensor, k): np.ma.MaskedArray(values[:, k], is_missing)
                for k in range(column.size)
            }
            outputs |= entries
            tensors |= dict.fromkeys(entries, tensor)
    about = _about(known)
    taken = {"point", *outputs, *about}
    names = [f"theta_{p.name}" if p.name in taken else p.name for p in plan.parameters]
    tensors |= dict(zip(names, map(plan.tensor_of, plan.parameters), strict=True))
    parameters: Columns = {}
    words: dict[str, tuple[str, ...]] = {}
    for j, (name, parameter) in enumerate(zip(names, plan.parameters, strict=True)):
        spread, values = parameter.spread, plan.column(j)
        if isinstance(spread, Category):
            parameters[name], words[name] = spread.all_words(values), spread.words
        else:
            parameters[name] = np.ma.MaskedArray(values, np.isnan(values))
    about = {f"{name}_" if name in outputs else name: column for name, column in about.items()}
    return SweepTable(
        {"point": np.arange(plan.size), **parameters, **outputs, **about},
        {
            "farm_model": plan.info.name,
            "farm_model_version": plan.info.version,
            "farm_title": plan.title,
            "farm_seed": str(plan.seed),
        },
        words,
        {name: t.unit for name, t in tensors.items() if t is not None and t.unit},
        {name: t.description for name, t in tensors.items() if t is not None and t.description},
    )


def _about(known: PointColumns) -> Columns:
    errors = {point: row.error for point, row in known.last_failures.items()}
    names = [PointStatus(int(s)).name.lower() for s in known.status]
    workers = [None if w == NO_WORKER else known.workers[w].name for w in known.worker]
    return {
        "status": names,
        "error": [errors.get(point) for point in range(len(names))],
        "worker": workers,
        **{name: known.columns[name] for name in EXPORTED},
    }


def load_pandas(path: str | Path) -> pandas.DataFrame:
    """Load a sweep as a pandas.DataFrame with a row for each point. Raises SweepError.

    Outputs are NaN where the point is not done; the column `status` says why. A parameter of words
    is a categorical column. Parameters are missing (NaN) where they are inactive. If the model
    states units and descriptions, `attrs["units"]` and `attrs["long_name"]` have them by column.
    """
    with needs("pandas", "pandas is needed for this", SweepError):
        import pandas
    table = table_of(path)
    columns = plain_columns(table.columns)
    for name, words in table.words.items():
        columns[name] = pandas.Categorical(columns[name], categories=list(words))
    frame = pandas.DataFrame(columns).set_index("point")
    frame.attrs.update(table.facts)
    for name, stated in (("units", table.units), ("long_name", table.descriptions)):
        if stated:
            frame.attrs[name] = stated
    return frame


def plain_columns(columns: Columns) -> Columns:
    """Return columns without masks."""
    return {n: c if isinstance(c, list) else np.ma.getdata(c) for n, c in columns.items()}


def write_parquet(path: str | Path, target: str | Path) -> int:
    """Write a sweep as a Parquet table and return its number of rows.

    Outputs are null where the point is not done, parameters where they are inactive.
    Raises SweepError, OSError.
    """

    def read() -> tuple[Columns, dict[str, str]]:
        table = table_of(path)
        units = {"farm_units": json.dumps(table.units)} if table.units else {}
        return table.columns, table.facts | units

    return write_columns(Path(target), read, SweepError)


def write_columns(
    target: Path, read: Callable[[], tuple[Columns, dict[str, str]]], missing: type[Exception]
) -> int:
    """Write columns as a Parquet table, null where masked; return the number of rows.

    read: returns the columns, and facts about all of them. Raises `missing` without pyarrow,
    OSError.
    """
    with needs("parquet", "Parquet needs pyarrow", missing):
        import pyarrow
        from pyarrow import parquet
    columns, facts = read()
    masks = {name: getattr(column, "mask", None) for name, column in columns.items()}
    arrays = {
        name: pyarrow.array(
            column,
            pyarrow.string() if isinstance(column, list) else None,  # a list may be all None
            mask=masks[name],
        )
        for name, column in plain_columns(columns).items()
    }
    table = pyarrow.table(arrays).replace_schema_metadata(facts)
    with replacing(resolved(target)) as new:
        parquet.write_table(table, new)
    return int(table.num_rows)
