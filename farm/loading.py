"""The results in sweep files and records, loaded by the libraries that analyse them.

A path names a sweep file, also of a sweep that runs or was killed, or a record of evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError
from farm.machine.private import TemporaryFolder
from farm.record.exchange import parquet
from farm.record.exchange.export import Selection, points_of, write_sweep
from farm.record.file import is_record
from farm.sweep.errors import SweepError
from farm.sweep.file import reading, tables
from farm.sweep.file.progress import Progress
from farm.sweep.sensitivity.analysis import AUTO, Sensitivity, analyse
from farm.wording import briefly

if TYPE_CHECKING:
    import pandas
    import xarray


@briefly(SweepError, FarmError)
def load_pandas(
    path: str | Path,
    *,
    model: str | None = None,
    version: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> pandas.DataFrame:
    """Load a sweep file or a record as a table with a row for each point.

    Columns: parameters, the entries of the outputs such as `x[0]`, then status, error, worker and
    times. Outputs of points without a result are NaN. model, version, config: select the
    evaluations of a record that has several models or versions; config: entries that all have.
    Raises SweepError, FarmError.
    """
    asked = _selection(path, model, version, config)
    if asked is None:
        return tables.load_pandas(path)
    return parquet.to_pandas(points_of(Path(path), asked))


@briefly(SweepError, FarmError)
def load_xarray(
    path: str | Path,
    *,
    model: str | None = None,
    version: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> xarray.Dataset:
    """Load a sweep file or a record with parameters and outputs by name and in their shapes.

    Each parameter is a coordinate along `point`. An output of shape (a, b) has the dimensions
    (point, NAME_0, NAME_1), an output of size 1 only (point). model, version, config: as in
    `load_pandas`. Raises SweepError, FarmError.
    """
    asked = _selection(path, model, version, config)
    if asked is None:
        return reading.load_xarray(path)
    with TemporaryFolder("farm-record-") as folder:
        copy = folder / "record.h5"
        write_sweep(points_of(Path(path), asked), copy, {"record": str(Path(path).absolute())})
        return reading.load_xarray(copy)


@briefly(SweepError, FarmError)
def load_failures(path: str | Path, *, all_attempts: bool = False) -> list[dict[str, Any]]:
    """Return the failures of a sweep file, sorted by point.

    An entry has point, attempt, status, error, traceback, worker and the parameters by name.
    all_attempts: include failed attempts of points that were retried since. Raises SweepError.
    """
    return reading.failures_of(path, all_attempts=all_attempts)


@briefly(SweepError, FarmError)
def load_progress(path: str | Path) -> Progress:
    """Return the progress of a sweep file, which another process may be writing.

    Raises SweepError.
    """
    return reading.progress_of(path)


@briefly(SweepError, FarmError)
def sensitivity(
    path: str | Path, *, method: str = AUTO, output: str | None = None, seed: int = 0
) -> list[Sensitivity]:
    """Rank the parameters of a sweep file by their influence on its outputs, by SALib.

    method: "sobol" for a design saltelli, "morris", "ff", "delta" or "pawn" for any design; "auto":
    the one that fits the design. output: like "u", the mean of its entries if there are several,
    "u[3]", or "u[:]", each entry; None: every output that varies. seed: of the resampling that
    intervals come from. Returns an object for each scalar, with `to_pandas()`.
    Raises SweepError, FarmError.
    """
    return analyse(Path(path), method=method, output=output, seed=seed)


def _selection(
    path: str | Path, model: str | None, version: str | None, config: Mapping[str, Any] | None
) -> Selection | None:
    """Return what is asked of a record; None if the path is not that of a record."""
    if is_record(Path(path)):
        return Selection(model, version, config or {})
    if model is not None or version is not None or config is not None:
        raise SweepError(f"{path} is not a record; model, version and config select from records")
    return None
