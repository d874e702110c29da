"""Functions that all doors share: the hints of a request, and values of headers."""

from __future__ import annotations

import pytest

from farm.call import Hints
from farm.errors import InvalidInput
from farm.http1.request import header_value, hints_of


def hints(*headers: tuple[bytes, bytes], user: str = "", peer: str = "10.0.0.7") -> Hints:
    return hints_of(dict(headers), peer, user)


def test_a_client_is_its_own_name_or_its_user_name_or_its_host() -> None:
    assert hints() == Hints(client="10.0.0.7")
    assert hints(user="ann") == Hints(client="ann")
    assert hints((b"farm-client", b"chain 3"), user="ann") == Hints(client="chain 3")
    assert len(hints((b"farm-client", b"x" * 1000)).client) == 100
    assert hints((b"farm-chain", b"7"), user="ann") == Hints(client="ann", chain="7")
    assert hints((b"farm-chain", b"")) == Hints(client="10.0.0.7", chain="")
    assert len(hints((b"farm-chain", b"x" * 1000)).chain or "") == 100
    assert hints(peer="") == Hints(client="")
    assert hints((b"farm-priority", b"2"), user="ann") == Hints(client="ann", priority=2)


def test_the_end_of_the_connection_is_known_whatever_the_name() -> None:
    for headers in ({}, {b"farm-client": b"me"}):
        given = hints_of(headers, "10.0.0.7", "ann", "10.0.0.7 (uid 4)")
        assert (given.end, given.client) == ("10.0.0.7 (uid 4)", "me" if headers else "ann")


def test_only_a_name_that_the_caller_gives_is_shown() -> None:
    assert hints().shown_as is None
    assert hints((b"farm-priority", b"2"), user="ann").shown_as is None
    assert hints((b"farm-chain", b"")).shown_as is None
    assert hints((b"farm-client", b"me")).shown_as == ("me", None)
    assert hints((b"farm-client", b"me"), (b"farm-chain", b"")).shown_as == ("me", "")
    assert hints((b"farm-chain", b"7"), user="ann").shown_as == ("ann", "7")
    assert hints((b"farm-chain", b"7")).shown_as == ("10.0.0.7", "7")


def test_priority_and_deadline_are_numbers() -> None:
    given = hints((b"farm-priority", b"-3"), (b"farm-deadline", b"2.5"))
    assert (given.priority, given.deadline_s) == (-3, 2.5)


@pytest.mark.parametrize("text", [b"", b"high", b"1.5", b"1001", b"-1001", b"9" * 5000, b"\xff"])
def test_other_priorities_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="expected a whole number from -1000 to 1000"):
        hints((b"farm-priority", text))


@pytest.mark.parametrize("text", [b"", b"soon", b"0", b"-1", b"nan", b"inf", b"1e999", b"\xff"])
def test_other_deadlines_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="expected seconds above 0"):
        hints((b"farm-deadline", text))


def test_header_values_are_printable() -> None:
    assert header_value("node3/4412-a1b2") == b"node3/4412-a1b2"
    assert header_value("n\u00f6de\r\nx: y") == b"n?de??x: y"
