"""A farm's memory: writes its evaluations to a record file, and finds those that may be reused."""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from farm.call import (
    EMPTY_CONFIG,
    QUESTIONS,
    VERSION_OF_FILE,
    Array,
    Call,
    ModelInfo,
    Operation,
    Result,
    WorkerInfo,
)
from farm.errors import FarmError, InvalidOutput, ModelFailed, TimeLimitExceeded, WorkerLost
from farm.record.entry import MODEL, Entry, Status, encoded, entry_of, status_of
from farm.record.file import RecordFile
from farm.record.key import keys_of
from farm.scheduler.actions import Outcome, Reply
from farm.storage.frames import Record

log = logging.getLogger(__name__)

NOT_KEPT = QUESTIONS | {Operation.STREAM}
FAILURES = (ModelFailed, InvalidOutput, TimeLimitExceeded, WorkerLost)
"""Errors of evaluations that began; others say nothing about the model."""

FORMER_WORKERS = 1000
"""Most workers that left whose versions are known; an answer of theirs may still come."""

SMALL_BYTES, MOST_ASKED = 4096, 4096
"""Keys of the last MOST_ASKED calls of up to SMALL_BYTES are kept until their answers come, so
that most keys are computed once. Calls that are never answered drop out."""


class _AskedKeys(NamedTuple):
    """The keys of a call for a version of its model."""

    call: Call
    version: str
    keys: Sequence[bytes]


class Recorder:
    """Keeps the evaluations of repeatable models in a file; see `dispatcher.reuse.Memory`.

    reuses: whether calls are answered from the record. Only those of a model whose workers all
    report the same version are.
    """

    def __init__(self, path: Path, *, reuses: bool) -> None:
        """Open the file. Raises Unavailable."""
        self.reuses = reuses
        self._note: Callable[[str, str, str], None] = lambda kind, subject, text: None
        self.file = RecordFile(path, indexed=reuses)
        self._describe: Callable[[str, str], ModelInfo | None] = lambda model, config: None
        self._here: dict[str, dict[str, str]] = {}  # of each model: version by worker
        self._former: OrderedDict[str, dict[str, str]] = OrderedDict()
        self._agreed: dict[str, str] = {}
        self._told: set[tuple[str, str]] = set()
        self._described: dict[tuple[str, str], ModelInfo] = {}
        self._asked: dict[int, _AskedKeys] = {}  # by the id of their call, until it is answered

    def start(
        self,
        describe: Callable[[str, str], ModelInfo | None],
        note: Callable[[str, str, str], None],
    ) -> None:
        """Use the descriptions and the events of a farm. Reports damage found in the file."""
        self._describe = describe
        self._note = note
        path = str(self.file.path)
        for place in self.file.damage:
            text = f"damaged from byte {place.start} to byte {place.end}; the rest of it is used"
            note("record", path, text)

    # The dispatcher's interface: Memory

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Report that a worker joined, with the versions of its models; `before`: earlier start."""
        for model in info.models:
            self._here.setdefault(model.name, {})[info.name] = model.version
            self._agree(model.name)
            self._tell_about(model)

    def left(self, info: WorkerInfo, departure: object) -> None:
        """Report that a worker left."""
        for model, versions in self._here.items():
            version = versions.pop(info.name, None)
            if version is not None:
                self._former.setdefault(info.name, {})[model] = version
                self._agree(model)
        while len(self._former) > FORMER_WORKERS:
            self._former.popitem(last=False)

    def keep(self, replies: Iterable[Reply]) -> None:
        """Write the evaluations that these replies answer; they then survive this process."""
        if not self.file.trouble:
            now = time.time()
            try:
                records = [record for reply in replies for record in self._records(reply, now)]
            except Exception as error:  # a mistake here must cost no answer
                log.exception("record %s: an evaluation cannot be encoded", self.file.path)
                self.file.stop(f"an evaluation cannot be encoded: {error!r}")
            else:
                self.file.add(records)
        if self.file.trouble and (reason := self.file.new_trouble()):
            text = f"nothing more is recorded: {reason}; calls are answered as before"
            self._note("record", str(self.file.path), text)

    def keys(self, call: Call) -> Sequence[bytes] | None:
        """Return the key of each row of a call; None if it must not be answered from memory."""
        version = self._agreed.get(call.model)
        if version is None or call.operation in NOT_KEPT:
            return None
        info = self._describe(call.model, call.config)
        known = info or self._describe(call.model, EMPTY_CONFIG)
        if known is None or not known.repeatable:
            return None
        # Rows of different shapes form no array.
        if (call.rows or 1) > 1 and (info is None or any(t.varies for t in info.outputs)):
            return None
        keys = keys_of(call, info, version)
        if sum([array.nbytes for array in call.inputs]) <= SMALL_BYTES:
            if len(self._asked) >= MOST_ASKED:
                del self._asked[next(iter(self._asked))]
            self._asked[id(call)] = _AskedKeys(call, version, keys)
        return keys

    def find(self, key: bytes) -> Result | None:
        """Return the kept evaluation of a key, without a batch axis."""
        entry = self.file.find(key)
        if entry is None or not self._fits(entry):
            return None
        return Result(entry.outputs, entry.run_time_s, worker=entry.worker, reused=True)

    # Details

    def status(self) -> dict[str, Any]:
        """Return the state of the record, and which models are answered from it, as JSON data."""
        models = {}
        for model, versions in self._here.items():
            info = self._describe(model, EMPTY_CONFIG)
            may_be = model in self._agreed and (info is None or info.repeatable)
            reused = self.reuses and may_be
            models[model] = {"versions": sorted(set(versions.values())), "reused": reused}
        return {**self.file.status(), "reuse": self.reuses, "models": models}

    def close(self) -> None:
        """Write everything to disk and release the file."""
        self.file.close()

    def _agree(self, model: str) -> None:
        versions = set(self._here[model].values())
        if len(versions) == 1 and (version := next(iter(versions))):
            self._agreed[model] = version
            return
        self._agreed.pop(model, None)
        if len(versions) > 1 and self.reuses:
            shown = " and ".join(repr(version) for version in sorted(versions))
            text = f"its workers have the versions {shown}: no answers are reused until they agree"
            self._warn(model, text)

    def _tell_about(self, model: ModelInfo) -> None:
        if not self.reuses or (model.name, model.version) in self._told:
            return
        self._told.add((model.name, model.version))
        if not model.repeatable:
            self._warn(
                model.name, "it is not repeatable: its calls are neither recorded nor reused"
            )
        elif not model.version:
            self._warn(
                model.name,
                "it has no version, so its calls are recorded, but no answer is reused. Set "
                '`version = "1"` in the model, and another one whenever its answers may change',
            )
        elif model.version.startswith(VERSION_OF_FILE):
            text = (
                f"its version is {model.version}, derived from its file and the packages that it "
                "imports; set `version` in the model if it depends on anything else"
            )
            log.info("model %r: %s", model.name, text)
            self._note("record", model.name, text)

    def _warn(self, model: str, text: str) -> None:
        log.warning("model %r: %s", model, text)
        self._note("record", model, text)

    def _version(self, model: str, worker: str | None) -> str | None:
        """Return the version of a model at a worker; None: unknown."""
        if worker is None:
            return self._agreed.get(model)
        here = self._here.get(model, {}).get(worker)
        return here if here is not None else self._former.get(worker, {}).get(model)

    def _fits(self, entry: Entry) -> bool:
        """Whether outputs have the shapes that the model declares now."""
        info = self._describe(entry.model, entry.config)
        if info is None or entry.operation is not Operation.EVALUATE:
            return True
        if len(entry.outputs) != len(info.outputs):
            return False
        return all(
            tensor.varies or array.shape == tensor.shape
            for array, tensor in zip(entry.outputs, info.outputs, strict=True)
        )

    def _records(self, reply: Reply, now: float) -> Iterator[Record]:
        task, outcome = reply.task, reply.outcome
        call = task.call
        model = self._describe(call.model, EMPTY_CONFIG)
        if model is None or not model.repeatable or not is_kept(call, outcome):
            return
        worker = None if reply.worker is None else str(reply.worker)
        version = self._version(call.model, worker) or ""  # without one kept, and never reused
        described = self._described.get((call.model, version))
        if described is not model:  # comparing descriptions entry by entry takes microseconds
            self._described[call.model, version] = model
            if described != model:
                yield model_record(replace(model, version=version))
        keys = self._keys_of(call, version)
        came_from = outcome.worker if isinstance(outcome, Result) else ""
        for row, status, outputs, run_time_s, error in rows_of(call, outcome):
            inputs = call.inputs if call.rows is None else tuple([a[row, ...] for a in call.inputs])
            entry = entry_of(
                call,
                keys[row],
                version,
                inputs=inputs,
                outputs=outputs,
                time=now,
                run_time_s=run_time_s,
                status=status,
                error=error,
                worker=came_from or worker or "",
                client=task.account.client.name,
                chain=task.chain or "",
            )
            yield encoded(entry)

    def _keys_of(self, call: Call, version: str) -> Sequence[bytes]:
        asked = self._asked.pop(id(call), None)
        if asked is not None and asked.call is call and asked.version == version:
            return asked.keys
        return keys_of(call, self._describe(call.model, call.config), version)


def is_kept(call: Call, outcome: Outcome) -> bool:
    """Whether an outcome of a call belongs into a record."""
    if call.operation in NOT_KEPT:
        return False
    if isinstance(outcome, Result):
        return not outcome.more or bool(outcome.row_times_s)  # otherwise no row is answered yet
    return isinstance(outcome, FAILURES)


def model_record(info: ModelInfo) -> Record:
    """Return the record of a model's description."""
    return Record(MODEL, json.dumps(info.to_json()).encode())


RowOutcome = tuple[int, Status, tuple[Array, ...], float, tuple[str, str, str] | None]


def rows_of(call: Call, outcome: Outcome) -> Iterator[RowOutcome]:
    """Yield the outcome of each row of a call that has one."""
    rows = call.rows or 1
    if isinstance(outcome, FarmError):
        if rows == 1 or outcome.row is not None:
            yield _failed(outcome.row or 0, outcome)
        return
    if call.rows is None:
        run_time_s = outcome.run_time_s / outcome.batch_rows
        yield 0, status_of(outcome.outputs), outcome.outputs, run_time_s, None
        return
    done = outcome.rows_done(rows)
    run_time_s = outcome.run_time_s / max(outcome.batch_rows, done, 1)
    for row in range(done):
        outputs = tuple([array[row, ...] for array in outcome.outputs])
        yield row, status_of(outputs), outputs, run_time_s, None
    if outcome.failed is not None and done < rows:
        yield _failed(done, outcome.failed)


def _failed(row: int, error: FarmError) -> RowOutcome:
    told = type(error).__name__, error.message, error.detail
    return row, Status.FAILED, (), 0.0, told
