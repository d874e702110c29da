"""The begun calls that a front door leaves to the next one, for any death of it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from farm.machine.memory_file import new_file
from farm.transports import begun
from farm.transports.begun import Begun


class Keeper:
    """Holds the files, as `farm.machine.keeper` does."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}

    def take_file(self, name: str) -> int | None:
        return self.files.get(name)

    def hand(self, name: str, descriptor: int) -> None:
        self.files[name] = descriptor


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    keeper = Keeper()
    monkeypatch.setattr(begun, "keeper", lambda: keeper)
    return keeper


def known(of: Begun, key: str, ids: range) -> set[int]:
    calls = of.of(key)
    assert calls.are_all
    return {i for i in ids if i in calls}


def test_the_next_front_door_knows_what_began(keeper: Keeper) -> None:
    first = Begun()
    for key in "ab":
        assert not first.of(key).are_all
        first.are_all(key)
        assert first.of(key).are_all
    first.of("c")  # it may have sent calls to a front door before this one
    first.add("c", 7)
    for i in (1, 2, 5):
        first.add("a", i)
    for later in (Begun(), Begun()):
        assert known(later, "a", range(10)) == {1, 2, 5}
        assert known(later, "b", range(10)) == set()
        assert [later.of(key).are_all for key in "cd"] == [False, False]


def test_without_a_keeper_the_next_one_knows_nothing() -> None:
    first = Begun()
    first.of("a")
    first.are_all("a")
    assert not Begun().of("a").are_all


def test_what_began_is_known_after_any_death(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every write of a front door a process may have died; ids are kept as few intervals."""
    monkeypatch.setattr(begun, "IDS_KEPT", 40)
    monkeypatch.setattr(begun, "FILE_BYTES", 500)
    chance = random.Random(4711)
    front_door, waiting, sent, started = Begun(), set(range(10)), 10, set[int]()
    front_door.of("a")
    front_door.are_all("a")
    write, cut = os.write, os.ftruncate
    left: list[list[bytes]] = []  # in the files, after each step

    def look() -> None:
        left.append([os.pread(f, os.fstat(f).st_size, 0) for f in keeper.files.values()])

    def cut_and_look(file: int, size: int) -> None:
        cut(file, size)
        look()

    def write_and_look(file: int, data: bytes) -> int:
        done = write(file, data[: len(data) // 2])
        look()
        done += write(file, data[done:])
        look()
        return done

    for _ in range(300):
        call_id = chance.choice(sorted(waiting)[:4])
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", cut_and_look)
            patch.setattr(os, "write", write_and_look)
            if chance.random() < 0.1:
                front_door = Begun()
            front_door.add("a", call_id)
        for texts in left:
            copies = Keeper()
            for name, text in zip(keeper.files, texts, strict=True):
                copies.files[name] = new_file()
                write(copies.files[name], text)
            with monkeypatch.context() as patch:
                patch.setattr(begun, "keeper", lambda copies=copies: copies)
                assert started <= known(Begun(), "a", range(sent))
            for file in copies.files.values():
                os.close(file)
        left.clear()
        waiting.remove(call_id)
        started.add(call_id)
        waiting.add(sent)
        sent += 1
    assert known(front_door, "a", range(sent)) == started  # those that wait are not among them
    assert max(os.fstat(file).st_size for file in keeper.files.values()) < 2000


def test_few_of_those_that_left_are_known_when_they_come_back(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun, "CLIENTS_KEPT", 2)
    front_door = Begun()
    for key in "abcd":
        front_door.of(key)
        front_door.are_all(key)
        front_door.add(key, 1)
        front_door.left(key, for_good=key == "c")
    assert [front_door.of(key).are_all for key in "abcd"] == [False, True, False, True]
    assert known(front_door, "b", range(3)) == {1}


def test_a_file_that_cannot_grow_says_nothing(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A front door that knew a part would take the rest for calls that have not begun."""
    front_door = Begun()
    front_door.of("a")
    front_door.are_all("a")
    front_door.add("a", 1)

    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        front_door.add("a", 2)
    assert not Begun().of("a").are_all
    front_door.add("a", 3)
    assert not front_door.of("b").are_all
