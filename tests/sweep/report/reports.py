"""Sweeps for the tests of reports, and the data that a report holds."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.sweep.design.plan import Plan
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.report.report import write_report
from tests.sweep.samples import done, failed

Outcome = Callable[[int], Mapping[str, Any] | None]
"""The outcome of a point: the arguments of `failed` with a key `error`, of `done`, or None."""


def unpacked(column: Mapping[str, str]) -> Array:
    return np.frombuffer(base64.b64decode(column["data"]), f"<{column['type']}")


def every(point: int) -> Mapping[str, Any]:
    return {}


def every_fourth_fails(point: int) -> Mapping[str, Any]:
    return {"error": f"ModelFailed: boom {point % 3}"} if point % 4 == 3 else {}


def made(path: Path, plan: Plan, outcome: Outcome = every, *, close: bool = True) -> Store:
    """Make the file of a sweep; point k ran a second after point k - 1 on worker k % 3."""
    store = Store.create(path, plan)
    for point in range(plan.size):
        settings = outcome(point)
        if settings is None:
            continue
        worker = store.worker_id(f"node1/{point % 3}")
        make = {**settings, "worker": worker}
        store.add(failed(point, **make) if "error" in make else done(plan, point, **make))
    if close:
        store.close(COMPLETE, {})
    return store


def report(path: Path, colour_by: str | None = None) -> str:
    out = path.with_suffix(".html")
    write_report(path, out, colour_by=colour_by)
    return out.read_text(encoding="utf-8")


def data_of(text: str) -> dict[str, Any]:
    (data,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    read: dict[str, Any] = json.loads(data)
    return read


def known_with(size: int, *, failures: Iterable[int] = ()) -> PointColumns:
    """Return the state of a sweep whose points are all done, but for some that failed."""
    known = PointColumns.nothing(size)
    known.status[:] = PointStatus.DONE
    known.status[list(failures)] = PointStatus.FAILED
    return known
