"""A client's own record: a line that keeps every evaluation, and answers repeats itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from farm.call import Call, Hints, ModelInfo, Result
from farm.record.entry import Entry, Status, encoded, status_of
from farm.record.file import RecordFile
from farm.record.key import keys_of
from farm.record.recorder import FAILURES, NOT_KEPT, model_record
from farm.transports.line import Line, Outcome, Receiver

log = logging.getLogger(__name__)

CONFIGS_KEPT = 1000
"""Most descriptions cached by config."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call that was sent: for whom, and what is recorded of it."""

    key: Any
    receiver: Receiver
    hints: Hints
    call: Call
    evaluation: bytes
    version: str


class RecordedLine:
    """A line over another one. Threads may share it.

    reuse: answer exact repeats from the record. version: of all models; otherwise each model's own.
    A call of a model without a version is recorded and always sent.
    """

    def __init__(self, line: Line, path: Path, *, reuse: bool, version: str) -> None:
        """Open the record. Raises Unavailable."""
        self._line = line
        self._reuse = reuse
        self._version = version
        self._file = RecordFile(path, indexed=reuse)
        self._infos: dict[tuple[str, str], ModelInfo] = {}
        self._told: set[str] = set()
        self._ids = count(-1, -1)  # of calls that are not sent; a line's own ids are positive

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send the calls that are not in the record, and deliver the outcomes of the others.

        Returns an id for each call. Raises Unavailable if the line is closed.
        """
        ids: list[int] = []
        unknown: list[tuple[_Asked, Call]] = []
        found: list[tuple[Any, Result]] = []
        for key, call in calls:
            version, evaluation = self._identity(call)
            known = self._file.find(evaluation) if self._reuse and version else None
            if known is None:
                unknown.append((_Asked(key, receiver, hints, call, evaluation, version), call))
                ids.append(0)
            else:
                result = Result(known.outputs, known.run_time_s, worker=known.worker, reused=True)
                found.append((key, result))
                ids.append(next(self._ids))
        sent = iter(self._line.send(unknown, hints, self) if unknown else ())
        for key, result in found:
            receiver.put(key, result)
        if found:
            receiver.flush()
        return [call_id or next(sent) for call_id in ids]

    def cancel(self, ids: Iterable[int]) -> bool:
        """Cancel calls; they then get no outcome. False if each of them already had one."""
        sent = [call_id for call_id in ids if call_id > 0]
        return bool(sent) and self._line.cancel(sent)

    def names(self) -> list[str]:
        """Return the names of the models that are served. Raises FarmError."""
        return self._line.names()

    def status(self) -> dict[str, Any]:
        """Return the server's status, and under `client_record` that of the record."""
        return {**self._line.status(), "client_record": self._file.status()}

    def close(self) -> None:
        """Release all resources; calls without an outcome fail with Cancelled."""
        self._line.close()
        self._file.close()

    # The interface of a Receiver, for the line below

    def put(self, key: _Asked, outcome: Outcome) -> None:
        """Record an outcome, then deliver it."""
        try:
            self._keep(key, outcome)
        except Exception as error:  # a mistake here must cost no answer
            log.exception("record %s: an evaluation cannot be kept", self._file.path)
            self._file.stop(f"an evaluation cannot be kept: {error!r}")
        key.receiver.put(key.key, outcome)
        key.receiver.flush()

    def flush(self) -> None:
        """Do nothing: each outcome wakes its own receiver."""

    def _keep(self, asked: _Asked, outcome: Outcome) -> None:
        call = asked.call
        if not asked.evaluation or (
            not isinstance(outcome, Result) and not isinstance(outcome, FAILURES)
        ):
            return
        entry = Entry(
            key=asked.evaluation,
            model=call.model,
            version=asked.version,
            operation=call.operation,
            config=call.config,
            inputs=call.inputs,
            derivative=call.derivative,
            time=time.time(),
            client=asked.hints.client,
            chain=asked.hints.chain or "",
        )
        if isinstance(outcome, Result):
            entry = replace(
                entry,
                outputs=outcome.outputs,
                status=status_of(outcome.outputs),
                run_time_s=outcome.run_time_s / outcome.batch_rows,
                worker=outcome.worker,
            )
        else:
            told = type(outcome).__name__, outcome.message, outcome.detail
            entry = replace(entry, status=Status.FAILED, error=told)
        self._file.add([encoded(entry)])

    def _identity(self, call: Call) -> tuple[str, bytes]:
        """Return version and key of a call; an empty key if it is not recorded."""
        if call.operation in NOT_KEPT or call.rows is not None:
            return "", b""
        info = self.describe(call.model, call.config)
        if not info.repeatable:
            return "", b""
        return info.version, keys_of(call, info, info.version)[0]

    def describe(self, model: str, config: str) -> ModelInfo:
        """Return the description of one model for a config, from a cache. Raises FarmError."""
        known = self._infos.get((model, config))
        if known is not None:
            return known
        info = self._line.describe(model, config)
        if self._version:
            info = replace(info, version=self._version)
        if len(self._infos) >= CONFIGS_KEPT:
            self._infos.clear()
        self._infos[model, config] = info
        if model not in self._told:
            self._told.add(model)
            self._file.add([model_record(info)])
            if self._reuse and not info.version:
                log.warning(
                    "model %r has no version, so its calls are recorded and none is answered from "
                    'the record; pass farm.connect(..., version="1"), and another one whenever '
                    "its answers may change",
                    model,
                )
        return info
