"""Errors of stored files name the file and the reason."""

from __future__ import annotations

from pathlib import Path

from farm.storage.errors import LockHeld, LockTaken, WrongFormat

HOLDER = "process 7 on node3"


def test_they_name_the_file_and_the_cause() -> None:
    path = Path("a.lock")
    assert str(LockHeld(path, HOLDER)) == "a.lock is held by process 7 on node3"
    assert str(LockTaken(path, HOLDER)).startswith("a.lock is now held by process 7 on node3: ")
    assert str(WrongFormat(path, "journal")) == "a.lock: expected a journal, found not one"
    assert str(WrongFormat(path, "journal", 7)) == "a.lock: expected a journal, found version 7"
