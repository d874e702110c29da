"""Versions of models by their names."""

from __future__ import annotations

import pytest

from farm.versions import Numbered, Versions, as_asked, is_known, numbered


@pytest.mark.parametrize(
    ("served_as", "name", "version"),
    [
        ("net", "net", "1"),
        ("net/2", "net", "2"),
        ("net/1", "net", "1"),
        ("a/b/12", "a/b", "12"),
        ("a/2/3", "a/2", "3"),
        ("net/2.5", "net/2.5", "1"),
        ("net/v2", "net/v2", "1"),
        ("net/02", "net/02", "1"),
        ("net/0", "net/0", "1"),
        ("net/-1", "net/-1", "1"),
        ("net/\N{FULLWIDTH DIGIT TWO}", "net/\N{FULLWIDTH DIGIT TWO}", "1"),
        ("net/", "net/", "1"),
        ("/2", "/2", "1"),
        ("2", "2", "1"),
        ("net/" + "9" * 18, "net", "9" * 18),
        ("net/" + "9" * 19, "net/" + "9" * 19, "1"),
    ],
)
def test_names(served_as: str, name: str, version: str) -> None:
    assert numbered(served_as, [served_as]) == Numbered(name, version, served_as)


def test_a_plain_name_is_version_1() -> None:
    assert numbered("net/1", ["net", "net/1"]) == Numbered("net/1", "1", "net/1")
    versions = Versions(["net", "net/1", "net/2"])
    assert versions.of("net") == {"1": "net", "2": "net/2"}
    assert versions.of("net/1") == {"1": "net/1"}
    assert versions.served_as("net", "1") == "net"
    assert Versions(["net/1"]).served_as("net", "1") == "net/1"


def test_versions_are_in_the_order_of_their_numbers() -> None:
    versions = Versions(["net/10", "net/9", "net", "net/x"])
    assert list(versions.of("net")) == ["1", "9", "10"]
    assert versions.served_as("net", "") == "net/10"
    assert versions.served_as("net", "", without=["net/10"]) == "net/9"
    assert versions.served_as("net", "", without=["net/10", "net/9", "net"]) == "net/10"
    assert versions.served_as("net/x", "") == "net/x"


def test_names_and_versions_that_are_not_there() -> None:
    versions = Versions(["net", "net/2"])
    assert versions.of("no") == {}
    for name, version in (("no", ""), ("net", "3"), ("net", "x"), ("net", "02"), ("net/2", "2")):
        assert versions.served_as(name, version) is None
    assert versions.served_as("net/2", "1") == "net/2"


def test_the_name_that_a_client_used() -> None:
    assert as_asked("net", "net") == Numbered("net", "1", "net")
    assert as_asked("net", "net/2") == Numbered("net", "2", "net/2")
    assert as_asked("net/2", "net/2") == Numbered("net/2", "1", "net/2")


def test_what_may_be_called() -> None:
    names = ["net/2", "a/b"]
    assert all(is_known(name, names) for name in ("net", "net/2", "a/b"))
    assert not any(is_known(name, names) for name in ("a", "net/3", "ne", ""))
