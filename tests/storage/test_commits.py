"""Group commit: many appends share a sync, each is atomic, and the lock keeps its heartbeat."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from farm.storage import commits as commits_module
from farm.storage import lock as lock_module
from farm.storage.commits import Commits
from farm.storage.frames import Format, Record, read_frames
from farm.storage.journal import Journal
from farm.storage.lock import Lock
from tests.support.coroutines import LIMIT_S

FORMAT = Format("test journal", 1, kinds=b"T")


class Numbers(Commits[int]):
    def encode(self, item: int) -> Record:
        if item < 0:
            raise ValueError("it is negative")
        return Record(FORMAT.kinds[0], str(item).encode())

    def explain(self, error: Exception) -> Exception:
        return RuntimeError(f"not kept: {error}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j"


@pytest.fixture
def commits(path: Path) -> Iterator[Commits[int]]:
    commits = Numbers(Journal(path, FORMAT), Lock(path.with_name("j.lock")))
    yield commits
    commits.close()


def kept(path: Path) -> list[int]:
    return [int(frame.payload.tobytes()) for frame in read_frames(path, FORMAT)]


def test_many_appends_share_a_commit(
    path: Path, commits: Commits[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, all_asked = [], threading.Event()
    append_all = Journal.append_all

    def counted(self: Journal, records: Sequence[Record], *, durable: bool) -> list[int]:
        assert all_asked.wait(LIMIT_S)
        sizes.append(len(records))
        return append_all(self, records, durable=durable)

    monkeypatch.setattr(Journal, "append_all", counted)
    pending = [commits.append(k) for k in range(500)]
    all_asked.set()
    for one in pending:
        one.result(LIMIT_S)
    assert sum(sizes) == 500
    assert len(sizes) <= 2, "what came before all were asked, and the rest"
    assert kept(path) == list(range(500))


def test_one_that_cannot_be_kept_takes_no_other_with_it(path: Path, commits: Commits[int]) -> None:
    pending = [commits.append(-1 if k == 7 else k) for k in range(20)]
    with pytest.raises(RuntimeError, match="not kept: it is negative"):
        pending[7].result(LIMIT_S)
    for one in pending[:7] + pending[8:]:
        one.result(LIMIT_S)
    assert kept(path) == [k for k in range(20) if k != 7]


def test_what_was_appended_is_kept_at_the_end(path: Path) -> None:
    commits = Numbers(Journal(path, FORMAT), Lock(path.with_name("j.lock")))
    pending = [commits.append(k) for k in range(3000)]
    commits.close()
    assert all(one.done() for one in pending)
    assert kept(path) == list(range(3000))
    assert [p.name for p in path.parent.iterdir()] == ["j"]


def test_from_many_threads(path: Path, commits: Commits[int]) -> None:
    def append(thread: int) -> None:
        for k in range(50):
            commits.append(100 * thread + k).result(LIMIT_S)

    threads = [threading.Thread(target=append, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread_number in range(8):
        of_one = [k % 100 for k in kept(path) if k // 100 == thread_number]
        assert of_one == list(range(50))


def test_an_idle_one_beats_its_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "BEAT_S", 0.01)
    monkeypatch.setattr(lock_module, "BEAT_S", 0.0)
    beaten = threading.Event()
    beat = Lock.beat

    def watched(self: Lock) -> None:
        beat(self)
        if int(json.loads(self.path.read_text())["beat"]) > 2:
            beaten.set()
        raise OSError("whatever a beat meets, the thread lives")

    monkeypatch.setattr(Lock, "beat", watched)
    commits = Numbers(Journal(path, FORMAT), Lock(path.with_name("j.lock")))
    assert beaten.wait(LIMIT_S)
    monkeypatch.setattr(Lock, "beat", beat)
    commits.append(1).result(LIMIT_S)
    commits.close()
    assert kept(path) == [1]
