"""Exports the evaluations of one model as a sweep file, which reports, xarray and others read."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from farm.call import Array, Call, ModelInfo, Operation, TensorInfo
from farm.errors import InvalidInput
from farm.record.entry import Entry, Status, status_of
from farm.record.exchange.survey import Tick, described
from farm.record.file import StoredEntries, entries_in
from farm.record.key import keys_of
from farm.storage.frames import Damage
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import Design
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.space.binding import BoundParameter, entry_name
from farm.wording import worded

NOTHING: Array = np.empty(0)


@dataclass(frozen=True, slots=True)
class Selection:
    """The evaluations to export. None: the only one there is. config: entries that all have."""

    model: str | None = None
    version: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


class Entries(Sized, Iterable[Entry], Protocol):
    """Evaluations that can be counted, and read one after another as often as needed."""


@dataclass(slots=True)
class RecordedPoints:
    """Evaluations of one version of one model: of each point the last one, finite if there is one.

    damage: the damaged places of the record.
    """

    info: ModelInfo
    entries: Entries
    damage: list[Damage]


def points_of(path: Path, asked: Selection, tick: Tick = lambda done: None) -> RecordedPoints:
    """Read the selected evaluations. Raises InvalidInput, which says what there is, Unavailable."""
    damage: list[Damage] = []
    places: dict[bytes, int] = {}
    offsets, statuses = array("Q"), bytearray()  # of the points, in the order of their first entry
    infos: dict[tuple[str, str], ModelInfo] = {}
    models: set[tuple[str, str]] = set()
    known: Entry | None = None
    before = 0
    for content, start, end in entries_in(path, damage.append):
        tick(end - before)
        before = end
        if isinstance(content, bytes):
            if info := described(content):
                infos[info.name, info.version] = info
            continue
        if not _is_selected(content, asked):
            continue
        content = evaluation_of(content, infos.get((content.model, content.version)))
        models.add((content.model, content.version))
        if known is None or (content.outputs and not known.outputs):
            known = content
        place = places.setdefault(content.key, len(places))
        if place == len(offsets):
            offsets.append(start)
            statuses.append(content.status)
        elif content.status <= statuses[place]:
            offsets[place], statuses[place] = start, content.status
    for i, name in enumerate(("model", "version")):
        values = sorted({model[i] for model in models})
        if len(values) > 1:
            there = ", ".join(map(repr, values))
            raise InvalidInput(
                f"{path} holds several {name}s: {there}; choose one with "
                f"{worded(f'--{name}', f'{name}=')}"
            )
    if known is None:
        raise InvalidInput(f"{path} holds no such evaluation; see farm record status {path}")
    info = infos.get((known.model, known.version), ModelInfo(known.model, (), ()))
    return RecordedPoints(_as_recorded(info, known), _Evaluations(path, offsets), damage)


class _Evaluations(StoredEntries):
    def __iter__(self) -> Iterator[Entry]:
        return map(evaluation_of, super().__iter__())


def evaluation_of(entry: Entry, info: ModelInfo | None = None) -> Entry:
    """Return an entry of value_and_gradient as one of the evaluation in it; others as they are.

    info: the model's description, with which the key is that of the evaluation alone.
    """
    if entry.operation is Operation.EVALUATE:
        return entry
    outputs = entry.outputs[:-1]  # the last one is the gradient
    asked = Call(entry.model, Operation.EVALUATE, entry.inputs, config=entry.config)
    return replace(
        entry,
        key=keys_of(asked, info, entry.version)[0],
        operation=Operation.EVALUATE,
        derivative=None,
        outputs=outputs,
        status=status_of(outputs) if entry.outputs else entry.status,
    )


def _is_selected(entry: Entry, asked: Selection) -> bool:
    if entry.operation not in (Operation.EVALUATE, Operation.VALUE_AND_GRADIENT):
        return False
    if asked.model not in (None, entry.model) or asked.version not in (None, entry.version):
        return False
    if not asked.config:
        return True
    config = json.loads(entry.config)
    return all(key in config and config[key] == value for key, value in asked.config.items())


def _as_recorded(info: ModelInfo, entry: Entry) -> ModelInfo:
    """Return the description with the shapes of an evaluation; a config may have changed them."""

    def tensors(
        declared: Sequence[TensorInfo], arrays: Sequence[Array], what: str
    ) -> tuple[TensorInfo, ...]:
        names = [f"{what}_{i}" for i in range(len(arrays))]
        if len(declared) == len(arrays):
            names = [tensor.name for tensor in declared]
        return tuple(
            TensorInfo(name, array.shape, "bytes" if array.dtype.hasobject else array.dtype.name)
            for name, array in zip(names, arrays, strict=True)
        )

    return replace(
        info,
        inputs=tensors(info.inputs, entry.inputs, "input"),
        outputs=tensors(info.outputs, entry.outputs, "output"),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """RecordedPoints as columns of numbers. config: the entries that all points have in common."""

    parameters: tuple[BoundParameter, ...]
    theta: Array
    config: Mapping[str, Any]


def table_of(points: RecordedPoints) -> Table:
    """Return inputs, and config entries that differ, as columns. Raises InvalidInput."""
    inputs, outputs = points.info.inputs, points.info.outputs
    for tensor in (*inputs, *outputs):
        if tensor.dtype == "bytes" or np.dtype(tensor.dtype).kind == "c":
            raise InvalidInput(
                f"{tensor.name!r} is {tensor.dtype}; a sweep file holds real numbers"
            )
    numbers = array("d")
    texts: dict[str, int] = {}  # the place of each config among those that differ
    of_row = array("q")
    for entry in points.entries:
        _check_shapes(entry, points.info)
        for given in entry.inputs:
            numbers.frombytes(given.astype(np.float64).tobytes())
        of_row.append(texts.setdefault(entry.config, len(texts)))
    parameters = [
        BoundParameter(entry_name(tensor, place), input=i, entry=place)
        for i, tensor in enumerate(inputs)
        for place in range(tensor.size)
    ]
    theta = np.frombuffer(numbers, np.float64).reshape(len(of_row), len(parameters))
    common, varying = _configs(texts)
    for key, values in varying.items():
        column = _column(key, values)[np.frombuffer(of_row, np.int64)]
        theta = np.column_stack([theta, column])
        parameters.append(BoundParameter(key, whole=all(type(value) is int for value in values)))
    return Table(tuple(parameters), theta, common)


def _check_shapes(entry: Entry, info: ModelInfo) -> None:
    shapes = [tensor.shape for tensor in info.inputs], [tensor.shape for tensor in info.outputs]
    actual = [a.shape for a in entry.inputs], [a.shape for a in entry.outputs]
    if actual[0] != shapes[0] or (actual[1] and actual[1] != shapes[1]):
        raise InvalidInput(
            f"points differ in shape: {[*actual[0], *actual[1]]} and {[*shapes[0], *shapes[1]]}; "
            f"choose those of one config with {worded('--config', 'config=')}"
        )


def _configs(texts: Iterable[str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the entries that all configs have in common, and those that differ: the value in each.

    A value is None where a config does not have the entry.
    """
    configs = [json.loads(text) for text in texts]
    common = {
        key: value
        for key, value in configs[0].items()
        if all(key in config and config[key] == value for config in configs)
    }
    keys = sorted({key for config in configs for key in config} - set(common))
    return common, {key: [config.get(key) for config in configs] for key in keys}


def _column(key: str, values: Sequence[Any]) -> Array:
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        odd = next(v for v in values if isinstance(v, bool) or not isinstance(v, int | float))
        raise InvalidInput(
            f"the config entry {key!r} differs between points and is not always a number, such as "
            f"{json.dumps(odd)}; choose one value with "
            f"{worded('--config', 'config=')}"
        )
    return np.array(values, dtype=np.float64)


def write_sweep(points: RecordedPoints, path: Path, provenance: Mapping[str, str]) -> int:
    """Write evaluations as a complete sweep file; return their number.

    Raises InvalidInput, SweepError, OSError.
    """
    table = table_of(points)
    info = points.info
    first = next(iter(points.entries))
    plan = Plan(
        run_id=f"record {first.key.hex()}",
        info=info,
        parameters=table.parameters,
        fixed=tuple(np.full(tensor.size, np.nan) for tensor in info.inputs),
        config=table.config,
        design=Design("file", option=provenance.get("record", "record")),
        seed=0,
        theta=table.theta,
        title=info.name,
        provenance={**provenance, "model_version": first.version},
    )
    store = Store.create(path, plan)
    try:
        for number, entry in enumerate(points.entries):
            store.add(_row(number, entry, store))
        store.close(COMPLETE, None)
    except BaseException:
        store.abandon()
        raise
    return plan.size


def _row(number: int, entry: Entry, store: Store) -> Row:
    worker = store.worker_id(entry.worker)
    if entry.status is Status.FAILED:
        kind, message, detail = entry.error or ("", "no outcome recorded", "")
        status = PointStatus.TIMEOUT if kind == "TimeLimitExceeded" else PointStatus.FAILED
        return Row(
            number, status, worker=worker, t_start=entry.time, error=message, traceback=detail
        )
    values = [array.astype(np.float64).reshape(-1) for array in entry.outputs]
    return Row(
        number,
        PointStatus.DONE,
        worker=worker,
        t_start=entry.time - entry.run_time_s,
        t_run=entry.run_time_s,
        t_queue=math.nan,
        t_total=math.nan,
        values=np.concatenate([NOTHING, *values]),
    )
