"""The lock: one holder at a time; a live one is respected, a dead or silent one replaced."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from farm.storage import lock as lock_module
from farm.storage.errors import LockHeld, LockTaken
from farm.storage.lock import Lock, is_held, lives
from tests.support.coroutines import LIMIT_S

SILENCE_S = 0.3


def hold(path: Path) -> BaseProcess:
    """Return a process that holds the lock."""
    context = multiprocessing.get_context("fork")
    held = context.Event()
    process = context.Process(target=_hold, args=(path, held), daemon=True)
    process.start()
    assert held.wait(LIMIT_S)
    return process


def _hold(path: Path, held: Any) -> None:
    Lock(path)
    held.set()
    signal.pause()


def end(process: BaseProcess) -> None:
    process.kill()
    process.join()


def of_elsewhere(path: Path, **more: Any) -> None:
    """Turn a lock into one of another machine, whose processes are not visible here."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": "other", **more}))


OTHER = json.dumps({"token": "other", "host": "node7", "pid": 4711})


def sees_first(patch: pytest.MonkeyPatch, holder: dict[str, Any]) -> None:
    """Let the first look at a lock find this holder."""
    seen, real = [holder], lock_module._read
    patch.setattr(lock_module, "_read", lambda path: seen.pop() if seen else real(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.lock"


def test_it_is_there_while_held_and_a_second_one_is_refused(path: Path) -> None:
    lock = Lock(path, mode=0o600)
    assert json.loads(path.read_text())["pid"] == os.getpid()
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(LockHeld, match=f"^{path} is held by process {os.getpid()} on"):
        Lock(path)
    lock.release()
    assert not path.exists()
    Lock(path).release()


def test_a_living_process_is_respected_and_a_dead_one_replaced_at_once(path: Path) -> None:
    process = hold(path)
    try:
        with pytest.raises(LockHeld, match=f"process {process.pid} on"):
            Lock(path, silence_s=60)
    finally:
        end(process)
    lock = Lock(path, silence_s=60)
    assert json.loads(path.read_text())["pid"] == os.getpid()
    lock.release()


def test_a_holder_that_is_seen_before_it_wrote_its_name_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = hold(path)
    sees_first(monkeypatch, {})
    try:
        with pytest.raises(LockHeld, match=f"process {process.pid} on"):
            Lock(path, silence_s=60)
    finally:
        end(process)


def test_a_killed_process_that_nobody_has_buried_is_dead(path: Path) -> None:
    process = hold(path)
    process.kill()
    assert process.pid is not None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    Lock(path, silence_s=60).release()
    process.join()


def test_the_number_of_a_dead_process_may_be_in_use_again(path: Path) -> None:
    lock = Lock(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"born": "1"}))
    other = Lock(path, silence_s=60)
    lock.release()
    assert path.exists()
    other.release()


def test_a_silent_lock_of_elsewhere_is_taken_over(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Lock(path)
    of_elsewhere(path)
    Lock(path, silence_s=SILENCE_S).release()
    assert "which may be gone: waiting 0.3 s for a sign of life" in caplog.text


def test_a_lock_of_elsewhere_that_beats_is_respected(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "BEAT_S", 0.0)
    holder = Lock(path)
    original = lock_module._self
    monkeypatch.setattr(lock_module, "_self", lambda: original() | {"machine": "other"})
    holder.beat()
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            holder.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(LockHeld, match="is held by process"):
            Lock(path, silence_s=30)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("content", ["", "no json", "[]"])
def test_a_file_that_names_no_holder_is_no_lock_and_stale_when_it_stays_so(
    path: Path, content: str
) -> None:
    path.write_text(content)
    assert not is_held(path)
    assert lives(path) is False
    Lock(path, silence_s=SILENCE_S).release()
    assert not path.exists()


def test_a_frozen_holder_notices_that_it_was_taken_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "BEAT_S", 0.0)
    frozen = Lock(path)
    of_elsewhere(path)
    taker = Lock(path, silence_s=SILENCE_S)
    with pytest.raises(LockTaken, match=f"^{path} is now held by process .*: "):
        frozen.beat()
    frozen.release()
    taker.beat()
    taker.release()
    assert not path.exists()


def test_a_lock_that_was_deleted_by_hand_is_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "BEAT_S", 0.0)
    lock = Lock(path)
    path.unlink()
    lock.beat()
    with pytest.raises(LockHeld):
        Lock(path)
    lock.release()


def test_the_lock_of_a_quicker_one_is_put_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes saw the same stale lock; one took it over before the other renamed it."""
    end(hold(path))
    stale = json.loads(path.read_text())
    quicker = Lock(path)
    before = path.read_bytes()
    sees_first(monkeypatch, stale)
    with pytest.raises(LockHeld):
        Lock(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    quicker.release()


def test_beats_show_in_the_file_and_are_a_second_apart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(path)
    text = path.read_text()
    lock.beat()
    assert path.read_text() == text
    monkeypatch.setattr(lock_module, "BEAT_S", 0.0)
    lock.beat()
    before, after = json.loads(text), json.loads(path.read_text())
    assert before["token"] == after["token"]
    assert before["beat"] < after["beat"]
    lock.release()


def _race(path: Path, begin: Any, all_tried: Any, won: Any) -> None:
    begin.wait()
    lock = None
    with contextlib.suppress(LockHeld):
        lock = Lock(path, silence_s=SILENCE_S)
    all_tried.wait()
    # One that was not run for longer than a lock settles learns of it by a check, as by a beat.
    with contextlib.suppress(LockTaken):
        if lock is not None:
            lock.check()
            with won.get_lock():
                won.value += 1


def test_of_many_that_take_over_one_wins(path: Path) -> None:
    end(hold(path))
    context = multiprocessing.get_context("fork")
    begin, all_tried, won = context.Barrier(4), context.Barrier(5), context.Value("i", 0)
    takers = [context.Process(target=_race, args=(path, begin, all_tried, won)) for _ in range(4)]
    for taker in takers:
        taker.start()
    all_tried.wait(LIMIT_S)
    for taker in takers:
        taker.join(LIMIT_S)
    assert won.value == 1


def test_a_lock_that_another_puts_aside_while_it_settles_is_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes took over the same stale lock; the later one holds it in the end."""
    end(hold(path))
    monkeypatch.setattr(time, "sleep", lambda _: path.write_text(OTHER))
    with pytest.raises(LockHeld, match="process 4711 on node7"):
        Lock(path)
    assert path.read_text() == OTHER


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_it_needs_no_flock_of_the_file_system(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def none(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", none)
    monkeypatch.setattr(fcntl, "lockf", none)
    monkeypatch.setattr(lock_module, "NAMELESS_S", 0.1)
    path.touch()
    lock = Lock(path)
    assert is_held(path)
    with pytest.raises(LockHeld):
        Lock(path)
    lock.release()
    assert not is_held(path)


def test_it_needs_no_hard_links_of_the_file_system(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the test above, but without hard links: the faster process's next beat decides."""
    monkeypatch.setattr(lock_module, "BEAT_S", 0.0)
    end(hold(path))
    stale = json.loads(path.read_text())
    quicker = Lock(path)

    def none(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    sees_first(monkeypatch, stale)
    slower = Lock(path)
    with pytest.raises(LockTaken):
        quicker.beat()
    slower.release()
    assert list(path.parent.iterdir()) == []


def test_a_lock_that_has_no_room_on_the_disk_is_not_left_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:9]))
    with pytest.raises(OSError, match="No space left"):
        Lock(path)
    assert not path.exists()


def test_one_that_is_replaced_while_it_is_written_is_not_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def stalled(fd: int, data: bytes) -> int:
        path.unlink()
        path.write_text(OTHER)
        return real(fd, data)

    monkeypatch.setattr(os, "write", stalled)
    with pytest.raises(LockHeld, match="process 4711 on node7"):
        Lock(path)


def test_whether_it_is_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_held(path)
    assert lives(path) is False
    process = hold(path)
    assert is_held(path)
    assert lives(path)
    end(process)
    assert not is_held(path, silence_s=60)
    assert lives(path) is False
    lock = Lock(path)
    of_elsewhere(path)
    assert lives(path) is None
    assert not is_held(path, silence_s=SILENCE_S), "it does not beat"
    beats = iter(range(1, 100))
    monkeypatch.setattr(time, "sleep", lambda _: of_elsewhere(path, beat=next(beats)))
    assert is_held(path, silence_s=60)
    lock.release()


def test_check_says_who_took_a_lock_over_without_a_heartbeat(path: Path) -> None:
    lock = Lock(path)
    lock.check()
    before = path.read_text()
    lock.check()
    assert path.read_text() == before
    of_elsewhere(path, token="theirs", pid=4711, host="node7")
    with pytest.raises(LockTaken, match="process 4711 on node7"):
        lock.check()
