"""The journal of experiments: one file from which all of them can be restored.

    'E'     the events of one `append`: lines of JSON, one event each, see `events.to_json`

`append` confirms after the data is on disk; appends that arrive during a write share the next one.
Other processes may read meanwhile, see `read_journal`. `FILE.lock` keeps a second server out.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import orjson

from farm.errors import InvalidInput, Unavailable
from farm.experiment.state.events import Event, from_json, to_json
from farm.storage import journal as storage
from farm.storage.commits import Commits
from farm.storage.errors import LockHeld, StorageError, WrongFormat
from farm.storage.files import resolved
from farm.storage.frames import Format, Frame, Record, damage_after, read_frames
from farm.storage.lock import Lock, is_held

logger = logging.getLogger(__name__)

FORMAT = Format("farm experiments journal", 2, kinds=b"E")

PRIVATE = 0o600
"""Permissions of the journal: only its owner may read the outcomes."""


class EventCommits(Commits[Sequence[Event]]):
    """Writes events to the journal at `path`."""

    def __init__(self, path: Path, journal: storage.Journal, lock: Lock) -> None:
        self._path = path
        super().__init__(journal, lock)

    def encode(self, item: Sequence[Event]) -> Record:
        """Return the record of events that are written together."""
        return Record(FORMAT.kinds[0], b"\n".join(map(_text, item)))

    def explain(self, error: Exception) -> Unavailable:
        """Return the error that clients get."""
        return Unavailable(f"the journal {self._path} cannot be written: {error}; nothing was done")


class ExperimentJournal:
    """The open journal of a server: `load` once, then `append`, then `close`."""

    def __init__(self, path: Path) -> None:
        """Open or create it. Raises Unavailable if that fails, or another server has it open."""
        self.path = path
        lock = _locked(path)
        try:
            with _explained(path):
                file = _opened(path)
        except BaseException:
            lock.release()
            raise
        self._commits: EventCommits | None = EventCommits(path, file, lock)

    def load(self) -> Iterator[Event]:
        """Yield all events from the first on. Raises Unavailable if the file is damaged."""
        return read_journal(self.path)

    def append(self, events: Sequence[Event]) -> Future[None]:
        """Write these events atomically; the future completes when they are on disk.

        It fails with Unavailable if they cannot be written; later appends may succeed.
        """
        assert self._commits is not None, "it is open"
        return self._commits.append(events)

    def close(self) -> None:
        """Write what was appended and release the lock. May be called twice."""
        if self._commits is not None:
            self._commits.close()
            self._commits = None


def read_journal(path: Path) -> Iterator[Event]:
    """Yield all events in a journal, even while a server writes. Raises Unavailable."""
    if not path.is_file():
        raise Unavailable(f"there is no journal {path}; `farm experiment serve` creates one")
    with _explained(path):
        for frame in _frames(path):
            for line in frame.payload.tobytes().splitlines():
                yield from_json(json.loads(line))


def is_served(path: Path) -> bool:
    """Whether a server or a loop has the journal open."""
    return is_held(_lock_of(path))


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _locked(path: Path) -> Lock:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Lock(_lock_of(path), mode=PRIVATE)
    except LockHeld as error:
        raise Unavailable(
            f"another server has the journal {path}; stop it ({error.holder}), or give this one "
            "its own --journal"
        ) from None
    except OSError as error:
        raise Unavailable(
            f"the journal {path} cannot be created: {error.strerror}; name one in another folder"
        ) from None


def _opened(path: Path) -> storage.Journal:
    """Return the journal, open at its end; create it if needed."""
    path = resolved(path)
    if not path.exists() or not path.stat().st_size:
        return storage.Journal.start(path, FORMAT, [], mode=PRIVATE)
    sequence, end = 0, len(FORMAT.magic)
    for frame in _frames(path):
        sequence, end = frame.sequence, frame.end
    torn = path.stat().st_size - end
    if torn:
        text = "the last %d bytes of the journal %s are no whole record, as after a kill: dropped"
        logger.warning(text, torn, path)
    return storage.Journal(path, FORMAT, sequence=sequence, size=end)


def _frames(path: Path) -> Iterator[Frame]:
    """Yield all records. Raises WrongFormat, OSError, and Unavailable if some are damaged."""
    sequence, end = 0, len(FORMAT.magic)
    for frame in read_frames(path, FORMAT):
        if frame.sequence != sequence + 1:
            break  # the first records are missing
        sequence, end = frame.sequence, frame.end
        yield frame
    if path.stat().st_size > end and (damage := damage_after(path, FORMAT, end, sequence)):
        raise Unavailable(
            f"the journal {path} is damaged from byte {damage.start} to {damage.end}, and events "
            "build on one another: restore a copy, or continue with the part before the damage: "
            f"head -c {damage.start} {path} > NEW"
        )


def _text(event: Event) -> bytes:
    data = to_json(event)
    try:
        # Twenty times as fast, which matters: no other thread runs meanwhile.
        return orjson.dumps(data)
    except TypeError:  # integers of more than 64 bits, or texts that are not valid Unicode
        return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Convert errors into a one-line explanation of why a journal cannot be used."""
    try:
        yield
    except WrongFormat as error:
        if error.version is None:
            raise Unavailable(
                f"{path} is not a journal of experiments; name another file"
            ) from None
        raise Unavailable(
            f"the journal {path} has version {error.version}, this farm writes {FORMAT.version}; "
            "use the release that wrote it, or name another file"
        ) from None
    except (StorageError, OSError, ValueError, InvalidInput) as error:
        raise Unavailable(f"the journal {path} cannot be used: {error}") from None
