"""A sweep as one table with a row for each point: as a pandas DataFrame, and as a Parquet file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.call import Array, TensorInfo
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


@dataclass(frozen=True, slots=True, eq=False)
class SweepTable:
    """The columns of a sweep, each with an entry for every point.

    outputs: the names of the columns of outputs, which are NaN where `done` is False. words: the
    columns of words, with all their words in order. facts: about the sweep as a whole.
    units, descriptions: of the parameters and outputs that have one, by column.
    """

    columns: dict[str, Any]
    outputs: frozenset[str]
    done: Array
    facts: dict[str, str]
    words: dict[str, tuple[str, ...]]
    units: dict[str, str]
    descriptions: dict[str, str]
    numbers: tuple[str, ...] = ()
    """The parameters that are numbers."""


def table_of(path: str | Path) -> SweepTable:
    """Return a sweep, which may be running, as columns. Gradients are omitted. Raises SweepError.

    Columns: point, the parameters, the entries of the outputs, status, error, worker, attempts and
    times. A parameter called like another column is `theta_NAME`, as in `load_xarray`.
    """
    with open_sweep(Path(path)) as file, reading(Path(path)):
        plan, known = layout.read_plan(file), layout.read_known(file)
        done = known.status == PointStatus.DONE
        outputs: dict[str, Any] = {}
        tensors: dict[str, TensorInfo | None] = {}
        for column, tensor in plan.outputs:
            values = file[column.name][:]
            entries = {entry_name(tensor, k): values[:, k] for k in range(column.size)}
            outputs |= entries
            tensors |= dict.fromkeys(entries, tensor)
    about = _about(known)
    taken = {"point", *outputs, *about}
    names = [f"theta_{p.name}" if p.name in taken else p.name for p in plan.parameters]
    tensors |= dict(zip(names, map(plan.tensor_of, plan.parameters), strict=True))
    parameters: dict[str, Any] = {}
    for j, (name, parameter) in enumerate(zip(names, plan.parameters, strict=True)):
        spread, values = parameter.spread, plan.column(j)
        parameters[name] = spread.all_words(values) if isinstance(spread, Category) else values
    about = {f"{name}_" if name in outputs else name: column for name, column in about.items()}
    return SweepTable(
        {"point": np.arange(plan.size), **parameters, **outputs, **about},
        frozenset(outputs),
        done,
        {
            "farm_model": plan.info.name,
            "farm_model_version": plan.info.version,
            "farm_title": plan.title,
            "farm_seed": str(plan.seed),
        },
        {
            name: p.spread.words
            for name, p in zip(names, plan.parameters, strict=True)
            if isinstance(p.spread, Category)
        },
        {name: t.unit for name, t in tensors.items() if t is not None and t.unit},
        {name: t.description for name, t in tensors.items() if t is not None and t.description},
        tuple(name for name, column in parameters.items() if not isinstance(column, list)),
    )


def _about(known: PointColumns) -> dict[str, Any]:
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
    columns = dict(table.columns)
    for name, words in table.words.items():
        columns[name] = pandas.Categorical(columns[name], categories=list(words))
    frame = pandas.DataFrame(columns).set_index("point")
    frame.attrs.update(table.facts)
    for name, stated in (("units", table.units), ("long_name", table.descriptions)):
        if stated:
            frame.attrs[name] = stated
    return frame


def write_parquet(path: str | Path, target: str | Path) -> int:
    """Write a sweep as a Parquet table and return its number of rows.

    Outputs are null where the point is not done, parameters where they are inactive.
    Raises SweepError, OSError.
    """
    with needs("parquet", "Parquet needs pyarrow", SweepError):
        import pyarrow
        from pyarrow import parquet
    table = table_of(path)
    missing = {name: np.isnan(table.columns[name]) for name in table.numbers}
    columns = {
        name: pyarrow.array(
            column,
            pyarrow.string() if isinstance(column, list) else None,  # a list may be all None
            # Parameters are NaN where they are inactive, which is null, too.
            mask=~table.done if name in table.outputs else missing.get(name),
        )
        for name, column in table.columns.items()
    }
    facts = dict(table.facts)
    if table.units:
        facts["farm_units"] = json.dumps(table.units)
    with replacing(resolved(Path(target))) as new:
        parquet.write_table(pyarrow.table(columns).replace_schema_metadata(facts), new)
    return len(table.done)
