"""HOST:PORT of protocols without a token."""

from __future__ import annotations

import pytest

from farm.machine.addresses import is_loopback, read_host_port, shown
from farm.settings import SettingsError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:5555", ("127.0.0.1", 5555)),
        ("tcp://localhost:0", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_what_is_one(text: str, expected: tuple[str, int]) -> None:
    assert read_host_port(text, said="", expected="", risk="may do harm") == expected


@pytest.mark.parametrize("text", ["", "5555", ":1", "h:", "h:x", "h:65536", "h:-1"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(SettingsError, match="a is so; expected b"):
        read_host_port(text, said="a is so", expected="b", risk="")


def test_beyond_this_machine() -> None:
    assert read_host_port("0.0.0.0:1", said="", expected="", risk="") == ("0.0.0.0", 1)
    with pytest.raises(
        SettingsError,
        match=r"reaches that address may do harm; choose another or add insecure=True",
    ):
        read_host_port("0.0.0.0:1", said="", expected="", risk="may do harm")


def test_where_everybody_is_to_show_a_token() -> None:
    where = {"said": "mip has 'x'", "expected": "", "auth": "always"}
    assert read_host_port("127.0.0.1:1", risk="", **where)  # type: ignore[arg-type]  # of a table
    with pytest.raises(SettingsError, match=r"mip has 'x'.*auth is 'always'.*insecure=True"):
        read_host_port("127.0.0.1:1", risk="may", **where)  # type: ignore[arg-type]  # of a table


def test_how_it_is_shown() -> None:
    assert (shown("::1", 80), shown("h", 80)) == ("[::1]:80", "h:80")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[("127.0.0.1", True), ("127.8.9.1", True), ("localhost", True), ("::1", True)],
        *[("0.0.0.0", False), ("*", False), ("::", False), ("10.0.0.1", False)],
        *[("node1", False), ("", False), ("127.evil.example", False)],
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
