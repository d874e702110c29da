"""A client's own record: a line that keeps every evaluation, and answers repeats itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from farm.call import Call, Hints, ModelInfo, Result
from farm.client.line import Line, Outcome, Receiver
from farm.errors import Unavailable
from farm.machine.forks import renew_in_children
from farm.record.entry import encoded, entry_of
from farm.record.file import RecordFile
from farm.record.key import keys_of
from farm.record.recorder import NOT_KEPT, is_kept, model_record, rows_of

log = logging.getLogger(__name__)

CONFIGS_KEPT = 1000
"""Most descriptions cached by config."""


@dataclass(eq=False, slots=True)
class _Asked:
    """A call that was sent, what is recorded of it, and who waits for its outcome.

    id: the line's; None until it is known.
    """

    call: Call
    hints: Hints
    evaluation: bytes
    version: str
    id: int | None = None
    waiting: dict[int, tuple[Any, Receiver]] = field(default_factory=dict)

    def takes(self, hints: Hints) -> bool:
        """Whether a call with these hints may wait for this one."""
        return self.hints.priority >= hints.priority and not hints.is_limited


class RecordedLine:
    """A line over another one. Threads may share it; a forked process has it without the record.

    reuse: answer exact repeats from the record, and send calls for the same evaluation once.
    version: of all models; otherwise each model's own. A call of a model without a version is
    recorded and always sent.
    """

    def __init__(self, line: Line, path: Path, *, reuse: bool, version: str) -> None:
        """Open the record. Raises Unavailable."""
        self._line = line
        self._reuse = reuse
        self._version = version
        self._file = RecordFile(path, indexed=reuse)
        self._infos: dict[tuple[str, str], ModelInfo] = {}
        self._told: set[str] = set()
        self._ids = count(1)
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start without open calls; also called in a forked process, which leaves them behind."""
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._open: dict[bytes, _Asked] = {}
        self._asked: dict[int, _Asked] = {}

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        """Send the calls that are not in the record, and deliver the outcomes of the others.

        A call for an evaluation that is under way waits for that one's outcome.
        Returns an id for each call. Raises Unavailable if the line is closed.
        """
        ids: list[int] = []
        unknown: list[tuple[_Asked, Call]] = []
        found: list[tuple[Any, Result]] = []
        identities = [self._identity(call) for _, call in calls]
        for (key, call), (version, evaluation) in zip(calls, identities, strict=True):
            call_id = next(self._ids)
            ids.append(call_id)
            with self._lock:
                asked = self._open.get(evaluation)
                if asked is None and self._reuse and version:
                    known = self._file.find(evaluation)
                    if known is not None:
                        result = Result(known.outputs, known.run_time_s, worker=known.worker)
                        found.append((key, replace(result, reused=True)))
                        continue
                if asked is None or not asked.takes(hints):
                    asked = _Asked(call, hints, evaluation, version)
                    unknown.append((asked, call))
                    if self._reuse and version and not hints.is_limited:
                        self._open.setdefault(evaluation, asked)
                asked.waiting[call_id] = key, receiver
                self._asked[call_id] = asked
        if unknown:
            self._send(unknown, hints)
        for key, result in found:
            receiver.put(key, result)
        if found:
            receiver.flush()
        return ids

    def _send(self, unknown: Sequence[tuple[_Asked, Call]], hints: Hints) -> None:
        try:
            sent = self._line.send(unknown, hints, self)
        except BaseException:
            for asked, _ in unknown:
                self._deliver(asked, Unavailable("the call that this one waited for was not sent"))
            raise
        given_up = []
        with self._lock:
            for (asked, _), call_id in zip(unknown, sent, strict=True):
                asked.id = call_id
                if not asked.waiting:
                    given_up.append(call_id)
        if given_up:
            self._line.cancel(given_up)

    def cancel(self, ids: Iterable[int]) -> bool:
        """Cancel calls; they then get no outcome. False if each of them already had one.

        A call that others wait for goes on.
        """
        is_cancelled = False
        given_up = []
        with self._lock:
            for call_id in ids:
                asked = self._asked.pop(call_id, None)
                if asked is None:
                    continue
                is_cancelled = True
                del asked.waiting[call_id]
                if not asked.waiting:
                    self._close(asked)
                    if asked.id is not None:
                        given_up.append(asked.id)
        if given_up:
            self._line.cancel(given_up)
        return is_cancelled

    def _close(self, asked: _Asked) -> None:
        """Let no more calls wait for this one. Needs the lock."""
        if self._open.get(asked.evaluation) is asked:
            del self._open[asked.evaluation]

    def _deliver(self, asked: _Asked, outcome: Outcome) -> None:
        """Deliver an outcome to all who wait for it; for all but the first it is reused."""
        with self._lock:
            self._close(asked)
            waiting, asked.waiting = asked.waiting, {}
            for call_id in waiting:
                del self._asked[call_id]
        for key, receiver in waiting.values():
            receiver.put(key, outcome)
            receiver.flush()
            if isinstance(outcome, Result) and not outcome.reused:
                outcome = replace(outcome, reused=True)

    def names(self) -> list[str]:
        """Return the names of the models that are served. Raises FarmError."""
        return self._line.names()

    def status(self) -> dict[str, Any]:
        """Return the server's status, and under `client_record` that of the record."""
        return {**self._line.status(), "client_record": self._file.status()}

    def ask(self, what: str, arguments: Mapping[str, str]) -> Any:
        """Return the server's answer to a question about itself. Raises FarmError."""
        return self._line.ask(what, arguments)

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
        self._deliver(key, outcome)

    def flush(self) -> None:
        """Do nothing: each outcome wakes its own receiver."""

    def _keep(self, asked: _Asked, outcome: Outcome) -> None:
        call = asked.call
        if not asked.evaluation or not is_kept(call, outcome):
            return
        for _, status, outputs, run_time_s, error in rows_of(call, outcome):
            entry = entry_of(
                call,
                asked.evaluation,
                asked.version,
                outputs=outputs,
                time=time.time(),
                run_time_s=run_time_s,
                status=status,
                error=error,
                worker=outcome.worker if isinstance(outcome, Result) else "",
                client=asked.hints.client,
                chain=asked.hints.chain or "",
            )
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
