"""Identities of peers."""

from __future__ import annotations

import pytest

from farm.transports.identity import name_in, worker_identity


def test_a_worker_is_known_by_its_name_and_a_secret_that_is_fresh() -> None:
    first, second = worker_identity("node3/4412-a1b2"), worker_identity("node3/4412-a1b2")
    assert first != second
    assert name_in(first.encode()) == name_in(second.encode()) == "node3/4412-a1b2"
    assert len(first) - len("node3/4412-a1b2#") == 32
    assert len(worker_identity(64 * "h" + "/4194304-a1b2")) < 256, "ZeroMQ's limit (RFC 23)"


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        (b"client:login1/8-9c", "client:login1/8-9c"),
        (b"a#b#c", "a"),
        (b"", ""),
        (b"\xff#", "\ufffd"),
    ],
)
def test_the_name_in_whatever_a_peer_says(identity: bytes, name: str) -> None:
    assert name_in(identity) == name
