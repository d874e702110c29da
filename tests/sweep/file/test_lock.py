"""The lock of a sweep reports its holder in words for the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farm.sweep.errors import LockLost, SweepBusy
from farm.sweep.file.lock import SweepLock


def test_who_writes_the_sweep_is_named(tmp_path: Path) -> None:
    lock = SweepLock(tmp_path / "s.h5.lock")
    with pytest.raises(SweepBusy, match=f"process {os.getpid()} on .*, which is writing this swee"):
        SweepLock(lock.path)
    lock.release()
    SweepLock(lock.path).release()


def test_a_lock_that_was_taken_over_ends_the_writer(tmp_path: Path) -> None:
    lock = SweepLock(tmp_path / "s.h5.lock")
    lock.path.write_text('{"token": "another", "pid": 1, "host": "elsewhere"}')
    lock._last = 0.0
    with pytest.raises(LockLost, match=r"process 1 on elsewhere.*the sweep continues there"):
        lock.beat()
