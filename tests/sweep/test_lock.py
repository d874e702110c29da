"""The lock: one holder; a living one is respected, a dead or silent one is taken over."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from farm.sweep import lock as lock_module
from farm.sweep.errors import LockLost, SweepBusy
from farm.sweep.lock import Lock

SILENCE_S = 0.3

HOLD = """
import sys, time
from pathlib import Path
from farm.sweep.lock import Lock
Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def hold(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def of_elsewhere(path: Path, **more: Any) -> None:
    """Turn a lock into that of a machine whose processes cannot be seen from here."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": "other", **more}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.h5.lock"


def test_it_is_there_while_held(path: Path) -> None:
    lock = Lock(path)
    assert json.loads(path.read_text())["pid"] == os.getpid()
    lock.release()
    assert not path.exists()
    Lock(path).release()


def test_a_second_one_of_the_same_process_is_refused(path: Path) -> None:
    lock = Lock(path)
    with pytest.raises(SweepBusy, match=f"process {os.getpid()} on"):
        Lock(path)
    lock.release()


def test_a_living_process_is_respected_at_once(path: Path) -> None:
    process = hold(path)
    try:
        with pytest.raises(SweepBusy, match=f"process {process.pid} on"):
            Lock(path, silence_s=60)
    finally:
        end(process)


def test_a_dead_process_is_taken_over_at_once(path: Path) -> None:
    end(hold(path))
    lock = Lock(path, silence_s=60)
    assert json.loads(path.read_text())["pid"] == os.getpid()
    lock.release()


def test_a_killed_process_that_nobody_has_buried_is_dead(path: Path) -> None:
    process = hold(path)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    Lock(path, silence_s=60).release()
    process.communicate()


def test_the_number_of_a_dead_process_may_be_in_use_again(path: Path) -> None:
    lock = Lock(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"born": "1"}))
    other = Lock(path, silence_s=60)
    lock.release()
    assert path.exists()
    other.release()


def test_a_silent_lock_of_elsewhere_is_taken_over(path: Path) -> None:
    Lock(path)
    of_elsewhere(path)
    Lock(path, silence_s=SILENCE_S).release()


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
        with pytest.raises(SweepBusy, match="is writing this sweep"):
            Lock(path, silence_s=30)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("content", ["", "no json", "[]"])
def test_a_lock_that_cannot_be_read_is_stale_when_it_stays_so(path: Path, content: str) -> None:
    path.write_text(content)
    Lock(path, silence_s=SILENCE_S).release()


def test_a_frozen_holder_notices_that_it_was_taken_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "BEAT_S", 0.0)
    frozen = Lock(path)
    of_elsewhere(path)
    taker = Lock(path, silence_s=SILENCE_S)
    with pytest.raises(LockLost, match="now held by process"):
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
    with pytest.raises(SweepBusy):
        Lock(path)
    lock.release()


def test_the_lock_of_a_quicker_one_is_put_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two saw the same stale lock; one has taken it over before the other puts it aside."""
    end(hold(path))
    stale = json.loads(path.read_text())
    quicker = Lock(path)
    before = path.read_bytes()
    seen = [stale]
    real = lock_module._read
    monkeypatch.setattr(lock_module, "_read", lambda path: seen.pop() if seen else real(path))
    with pytest.raises(SweepBusy):
        Lock(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    quicker.release()


def test_beats_show_in_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "BEAT_S", 0.0)
    lock = Lock(path)
    before = json.loads(path.read_text())
    lock.beat()
    after = json.loads(path.read_text())
    assert before["token"] == after["token"]
    assert before["beat"] < after["beat"]
    lock.release()


def test_beats_are_a_second_apart(path: Path) -> None:
    lock = Lock(path)
    before = path.read_bytes()
    lock.beat()
    assert path.read_bytes() == before
    lock.release()


def _race(path: Path, begin: Any, all_tried: Any, won: Any) -> None:
    begin.wait()
    with contextlib.suppress(SweepBusy):
        Lock(path, silence_s=SILENCE_S)
        with won.get_lock():
            won.value += 1
    all_tried.wait()


def test_of_many_that_take_over_one_wins(path: Path) -> None:
    end(hold(path))
    context = multiprocessing.get_context("fork")
    begin, all_tried, won = context.Barrier(4), context.Barrier(5), context.Value("i", 0)
    takers = [context.Process(target=_race, args=(path, begin, all_tried, won)) for _ in range(4)]
    for taker in takers:
        taker.start()
    all_tried.wait(20)
    for taker in takers:
        taker.join(20)
    assert won.value == 1


def test_a_lock_that_another_puts_aside_while_it_settles_is_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two took the same stale lock over; the later one's stands when both have looked."""
    end(hold(path))
    other = json.dumps({"token": "other", "host": "node7", "pid": 4711})
    monkeypatch.setattr(time, "sleep", lambda _: path.write_text(other))
    with pytest.raises(SweepBusy, match="process 4711 on node7, which was quicker"):
        Lock(path)
    assert path.read_text() == other
