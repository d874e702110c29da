"""The claim to a sweep file, from before a model is started until the sweep runs.

Of two processes that are started with the same command line one gets the claim, and the other is
refused before it evaluates anything.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from farm.storage.files import resolved
from farm.storage.lock import BEAT_S
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.point_columns import Journaled, PointColumns
from farm.sweep.file.provenance import is_of_restarted_job
from farm.sweep.file.reading import state_of
from farm.sweep.file.recovery import journal_of, lock_of
from farm.sweep.file.store import Store, SweepLock, is_there
from farm.wording import worded


class Claim:
    """The exclusive right to write the sweep at `path`; as a context manager it is given up.

    plan, known: those of the sweep that is there; None if there is none.
    """

    def __init__(self, path: Path) -> None:
        """Wait for a lock that may be stale. Raises SweepError, OSError.

        A file that is not a sweep is refused: it is neither continued nor replaced.
        """
        if not path.parent.is_dir():
            raise SweepError(f"{path}: there is no folder {path.parent}; make it first")
        self.path = path = resolved(path)
        self.plan: Plan | None = None
        self.known: PointColumns | None = None
        self._journaled: Journaled | None = None
        self._lock: SweepLock | None = SweepLock(lock_of(path))
        self._handed_over = threading.Event()
        try:
            if is_there(path):
                self.plan, self.known, self._journaled = state_of(path)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, SweepError):
                raise SweepError(
                    f"{path} exists, and no sweep can be read from it, so it is neither continued "
                    f"nor replaced: {error}. Name another file"
                ) from error
            raise
        # A model may load for minutes, in which another machine would take a silent lock.
        self._beats = threading.Thread(target=self._beat, args=(self._lock,), daemon=True)
        self._beats.start()

    @property
    def pending(self) -> int:
        """Number of points of the sweep that is there without an outcome."""
        return 0 if self.known is None else self.known.count(PointStatus.PENDING)

    @property
    def failed(self) -> int:
        """Number of points of the sweep that is there that failed."""
        if self.known is None:
            return 0
        return len(self.known.status) - self.pending - self.known.count(PointStatus.DONE)

    def is_complete(self, *, retry_failed: bool) -> bool:
        """Whether no point of the sweep that is there is left to evaluate."""
        return not self.pending and not (retry_failed and self.failed)

    def existing(self) -> Plan:
        """Return the plan of the sweep that is there. Raises SweepError if there is none."""
        if self.plan is None:
            start = worded(f"-o {self.path}", f"farm.sweep(..., out={str(self.path)!r})")
            raise SweepError(f"{self.path} does not exist; start a new sweep with {start}")
        return self.plan

    def continued(self, *, overwrite: bool) -> Plan | None:
        """Return the plan of the sweep to continue; None if a new one is to be created.

        overwrite: replace a sweep that is there, unless this very job has begun it before it was
        requeued.
        """
        if self.plan is None or not overwrite or is_of_restarted_job(self.plan.provenance):
            return self.plan
        return None

    def create(self, plan: Plan) -> Store:
        """Create a new sweep, which replaces one that is there. Raises SweepError, OSError."""
        return Store.create(self.path, plan, lock=self._hand_over(), replaces=self.plan)

    def resume(self) -> Store:
        """Open the sweep that is there to continue it. Raises SweepError, OSError."""
        return Store.resume(self.path, lock=self._hand_over(), journaled=self._journaled)

    def extend(self, plan: Plan) -> Store:
        """Open the sweep that is there to continue it as `plan`, which begins with its points.

        Raises SweepError, OSError.
        """
        store = self.resume()
        try:
            store.extend(plan)
        except BaseException:
            store.abandon()
            raise
        return store

    def tidy(self) -> None:
        """Finish a complete sweep whose process was killed before it deleted the journal."""
        if journal_of(self.path).exists():
            self.resume().leave()

    def release(self) -> None:
        """Give up the claim, unless it was used. May be called twice."""
        if (lock := self._end_beats()) is not None:
            lock.release()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _hand_over(self) -> SweepLock:
        """Return the lock. Raises SweepError if another process took it over meanwhile."""
        lock = self._end_beats()
        assert lock is not None, "a claim is used once"
        lock.check()
        return lock

    def _end_beats(self) -> SweepLock | None:
        self._handed_over.set()
        self._beats.join()
        lock, self._lock = self._lock, None
        return lock

    def _beat(self, lock: SweepLock) -> None:
        while not self._handed_over.wait(BEAT_S):
            with contextlib.suppress(SweepError, OSError):  # the end of the claim reports it
                lock.beat()
