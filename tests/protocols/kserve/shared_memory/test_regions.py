"""The registered regions: names, bounds, numbers, and descriptors that are closed."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from farm.bodies.unpacking import Refused
from farm.errors import InvalidInput, UnsupportedFeature
from farm.protocols.kserve.shared_memory import regions as regions_module
from farm.protocols.kserve.shared_memory.places import Place
from farm.protocols.kserve.shared_memory.regions import (
    MOST_REGIONS,
    Regions,
    is_offered,
)
from tests.support.shared_objects import SharedObject, open_of, shared_object

pytestmark = pytest.mark.skipif(not is_offered(), reason="this system has no /dev/shm")


@pytest.fixture
def made() -> Iterator[SharedObject]:
    with shared_object(100) as made:
        yield made


def test_regions_are_listed_until_they_are_unregistered(made: SharedObject) -> None:
    regions = Regions()
    assert regions.status() == []
    regions.register("a", made.key, 0, 100)
    regions.register("b/ü", made.key, 40, 60)
    a = {"name": "a", "key": made.key, "offset": 0, "byte_size": 100}
    b = {"name": "b/ü", "key": made.key, "offset": 40, "byte_size": 60}
    assert regions.status() == [a, b]
    assert regions.status("b/ü") == [b]
    with pytest.raises(Refused, match="shared memory region 'a' already in manager") as caught:
        regions.register("a", made.key, 0, 50)
    assert (caught.value.status, caught.value.kind) == (400, "AlreadyExists")
    assert regions.status("a")[0]["byte_size"] == 100
    regions.unregister("nobody")  # Triton answers this with success
    regions.unregister("a")
    assert regions.status() == [b]
    regions.unregister()
    assert regions.status() == []


def test_unknown_regions() -> None:
    for ask, text in (
        (Regions().find, "Unable to find shared memory region: 'r'"),
        (Regions().status, "Unable to find system shared memory region: 'r'"),
    ):
        with pytest.raises(Refused, match=text) as caught:
            ask("r")
        assert caught.value.status == 404


@pytest.mark.parametrize(
    ("name", "key", "offset", "size", "text"),
    [
        ("", None, 0, 1, "name of the region is ''"),
        ("n" * 257, None, 0, 1, "expected 1 to 256 characters"),
        (None, None, 0, 1, "name of the region is None"),
        ("r", 3, 0, 1, "its key is 3; expected a string"),
        (
            "r",
            "no-slash",
            0,
            1,
            "Unable to open shared memory region: 'no-slash': a key is a slash",
        ),
        ("r", "/nobody-made-this", 0, 1, "there is no such object in /dev/shm; create it first"),
        ("r", None, -1, 1, "offset is -1; expected a whole number from 0 to 2"),
        ("r", None, 0, -1, "byte_size is -1; expected"),
        ("r", None, 0, 1.0, "byte_size is 1.0; expected a whole number"),
        ("r", None, 0, 0, "byte_size is 0 at offset 0; expected 1 or more"),
        ("r", None, 2**63 - 1, 2**63 - 1, "the end below 2"),
        ("r", None, 0, 101, "invalid args: its end is 101; the object '.*' has 100 bytes"),
    ],
)
def test_what_is_not_registered(
    made: SharedObject, name: Any, key: Any, offset: Any, size: Any, text: str
) -> None:
    regions = Regions()
    with pytest.raises(InvalidInput, match=text):
        regions.register(name, made.key if key is None else key, offset, size)
    assert regions.status() == []
    assert open_of(made.path) == 0


def test_regions_of_one_object_share_its_descriptor(made: SharedObject) -> None:
    regions = Regions()
    for i in range(10):
        regions.register(f"r{i}", made.key, 10 * i, 10)
    assert open_of(made.path) == 1
    for i in range(9):
        regions.unregister(f"r{i}")
    assert open_of(made.path) == 1
    regions.unregister("r9")
    assert open_of(made.path) == 0
    regions.register("r0", made.key, 0, 1)
    assert open_of(made.path) == 1
    del regions
    gc.collect()
    assert open_of(made.path) == 0


def test_a_key_that_stands_for_another_object_by_now_is_opened_anew(made: SharedObject) -> None:
    regions = Regions()
    regions.register("old", made.key, 0, 100)
    made.path.unlink()
    made.path.write_bytes(b"new")
    regions.register("new", made.key, 0, 3)
    assert regions.find("new").file.size == 3
    assert regions.find("old").file.size == 100


def test_the_number_of_regions_is_bounded(
    made: SharedObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = Regions(most=5)
    for i in range(5):
        regions.register(f"r{i}", made.key, 0, 1)
    with pytest.raises(InvalidInput, match="5 regions are registered or in use, the limit here"):
        regions.register("r5", made.key, 0, 1)
    regions.unregister("r0")
    regions.register("r5", made.key, 0, 1)
    infinite = resource.RLIM_INFINITY
    for soft, most in ((1024, 128), (65536, MOST_REGIONS), (infinite, MOST_REGIONS)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert Regions().most == most, "it follows the open files of the process"


def test_objects_of_unregistered_regions_count_while_they_are_used() -> None:
    """Otherwise, a client that unregisters while its requests run could open any number."""
    regions = Regions(most=2)
    used = []
    with shared_object(1) as a, shared_object(1) as b, shared_object(1) as c:
        for name, made in (("a", a), ("b", b)):
            regions.register(name, made.key, 0, 1)
            used.append(regions.find(name))
        regions.unregister()
        with pytest.raises(InvalidInput, match="2 regions are registered or in use"):
            regions.register("c", c.key, 0, 1)
        used.clear()
        regions.register("c", c.key, 0, 1)


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (60, 1, "Invalid offset for shared memory region: 'r': it has 60 bytes; .* 1 at 60"),
        (60, 0, "Invalid offset for shared memory region: 'r'"),
        (2**63 - 1, 1, "Invalid offset for shared memory region"),
        (0, 61, r"Invalid offset \+ byte size for shared memory region: 'r': it has 60 bytes"),
        (59, 2, r"Invalid offset \+ byte size"),
        (1, 2**63 - 1, r"Invalid offset \+ byte size"),
    ],
)
def test_places_beyond_a_region(made: SharedObject, offset: int, size: int, text: str) -> None:
    regions = Regions()
    regions.register("r", made.key, 20, 60)
    region = regions.find("r")
    region.check(Place("r", 0, 60))
    region.check(Place("r", 59, 1))
    with pytest.raises(InvalidInput, match=text):
        region.check(Place("r", offset, size))


def test_a_place_in_an_object_that_was_cut(made: SharedObject) -> None:
    regions = Regions()
    regions.register("r", made.key, 20, 60)
    region = regions.find("r")
    made.cut(50)
    region.check(Place("r", 0, 30))
    with pytest.raises(
        InvalidInput, match=r"'r' was cut: its object '.*' holds 30 of its 60 bytes"
    ):
        region.check(Place("r", 1, 30))
    made.cut(0)
    with pytest.raises(InvalidInput, match="holds 0 of its 60 bytes; enlarge it, or register"):
        region.check(Place("r", 0, 1))
    made.cut(80)
    region.check(Place("r", 0, 60))


def test_other_systems_have_no_shared_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    assert is_offered()
    monkeypatch.setattr(regions_module, "OBJECTS", tmp_path / "none")
    assert not is_offered()
    with pytest.raises(UnsupportedFeature, match=r"it has no .*none; send the data itself"):
        Regions().register("r", "/r", 0, 1)
