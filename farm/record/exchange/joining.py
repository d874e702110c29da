"""Brings evaluations into a record: those of other records, and those of a sweep file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from farm.call import Array, Call
from farm.record.entry import MODEL, Entry, encoded, entry_of, status_of
from farm.record.exchange.survey import Tick
from farm.record.file import RecordFile, entries_in
from farm.record.key import keys_of
from farm.record.recorder import model_record
from farm.storage.frames import Damage, Record
from farm.sweep.design.plan import Plan
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.reading import known_of, open_sweep
from farm.sweep.file.unreadable import reading

AT_ONCE = 200
"""Records per write."""


def merge(
    paths: Sequence[Path], out: Path, damage: Callable[[Path, Damage], None], tick: Tick
) -> tuple[int, int]:
    """Append the records of files to another; return the numbers of those new and those there.

    Evaluations that agree in everything are kept once. Raises Unavailable.
    """
    with closing(RecordFile(out, indexed=False)) as file:
        seen = {_digest(_record(e.content)) for e in entries_in(out, lambda place: None)}
        added = left_out = 0
        batch: list[Record] = []
        for path in paths:
            before = 0

            def report(place: Damage, path: Path = path) -> None:
                damage(path, place)

            for content, _, end in entries_in(path, report):
                tick(end - before)
                before = end
                record = _record(content)
                digest = _digest(record)
                if digest in seen:
                    left_out += record.kind != MODEL
                    continue
                seen.add(digest)
                added += record.kind != MODEL
                batch.append(record)
                if len(batch) >= AT_ONCE:
                    _write(file, batch)
        _write(file, batch)
    return added, left_out


def _record(content: Entry | bytes) -> Record:
    return Record(MODEL, content) if isinstance(content, bytes) else encoded(content)


def _digest(record: Record) -> bytes:
    return blake2b(record.payload, digest_size=12, salt=bytes([record.kind])).digest()


def _write(file: RecordFile, batch: list[Record]) -> None:
    file.add(batch)
    batch.clear()
    if file.trouble:
        raise OSError(f"{file.path} cannot be written: {file.trouble}")


def import_sweep(path: Path, out: Path, version: str, tick: Tick) -> tuple[int, int]:
    """Add the finished points of a sweep to a record; return how many are new, and were there.

    version: of the model that the sweep ran. tick: called with the number of points done.
    Raises Unavailable, SweepError.
    """
    plan, known = known_of(path)
    done = np.flatnonzero(known.status == PointStatus.DONE)
    names = {worker.id: worker.name for worker in known.workers}
    added = left_out = 0
    batch: list[Record] = []
    with closing(RecordFile(out, indexed=True)) as file, open_sweep(path) as sweep:
        info = replace(plan.info, version=version)
        batch.append(model_record(info))
        for first in range(0, len(done), AT_ONCE):
            some = done[first : first + AT_ONCE]
            with reading(path):
                columns = {column.name: sweep[column.name][some] for column in plan.columns}
            for number, point in enumerate(map(int, some)):
                run_time_s = float(known.t_run[point])
                for call, outputs in _answered(plan, point, columns, number):
                    (key,) = keys_of(call, plan.info, version)
                    if file.find(key) is not None:
                        left_out += 1
                        continue
                    added += 1
                    entry = entry_of(
                        call,
                        key,
                        version,
                        outputs=outputs,
                        time=float(known.t_start[point]) + run_time_s,
                        run_time_s=run_time_s,
                        status=status_of(outputs),
                        worker=names.get(int(known.worker[point]), ""),
                        client="sweep",
                    )
                    batch.append(encoded(entry))
            _write(file, batch)
            tick(len(some))
    return added, left_out


def _answered(
    plan: Plan, point: int, columns: dict[str, Array], number: int
) -> Iterator[tuple[Call, tuple[Array, ...]]]:
    """Yield the calls of a point with their outputs: the evaluation, then its gradients."""
    evaluate, *gradients = plan.calls(point)
    outputs = tuple(
        columns[f"out_{i}"][number].astype(tensor.dtype).reshape(tensor.shape)
        for i, tensor in enumerate(plan.info.outputs)
    )
    yield evaluate, outputs
    for call in gradients:
        wrt = call.derivative
        assert wrt is not None, "the calls after the first are gradients"
        assert wrt.sens is not None, "as gradients have one"
        rows = columns[f"grad_{wrt.out_wrt}_{wrt.in_wrt}"][number]
        yield call, (np.ascontiguousarray(rows[int(np.argmax(wrt.sens))]),)
