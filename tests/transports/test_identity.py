"""Identities of peers."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from farm.transports import identity
from farm.transports.identity import (
    CLIENT_PREFIX,
    client_identity,
    client_in,
    name_in,
    worker_identity,
)


def test_a_worker_is_known_by_its_name_and_a_secret_that_is_fresh() -> None:
    first, second = worker_identity("node3/4412-a1b2"), worker_identity("node3/4412-a1b2")
    assert first != second
    assert name_in(first.encode()) == name_in(second.encode()) == "node3/4412-a1b2"
    assert len(first) - len("node3/4412-a1b2#") == 32
    assert len(worker_identity(64 * "h" + "/4194304-a1b2")) < 256, "ZeroMQ's limit (RFC 23)"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (b"client:login1/8-9c", "client:login1/8-9c"),
        (b"a#b#c", "a"),
        (b"", ""),
        (b"\xff#", "\ufffd"),
    ],
)
def test_the_name_in_whatever_a_peer_says(said: bytes, name: str) -> None:
    assert name_in(said) == name


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("/home/anna/mcmc.py", "mcmc.py"),
        ("/lib/site-packages/farm/__main__.py", "farm"),
        ("-c", "python"),
        ("", "python"),
        ("/tmp/" + 300 * "x", 60 * "x"),
    ],
)
def test_a_client_is_called_by_user_host_program_and_process(
    script: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    monkeypatch.setattr(identity, "user_name", lambda: "änna")
    monkeypatch.setattr(socket, "gethostname", lambda: "login-1")
    first, second = client_identity().encode(), client_identity().encode()
    assert first != second
    assert client_in(first) == client_in(second) == f"?nna@login-1, {program} {os.getpid()}"
    assert first.startswith(CLIENT_PREFIX)
    assert len(first) < 256, "ZeroMQ's limit (RFC 23)"


def test_a_client_of_another_kind_keeps_its_name() -> None:
    assert [client_in(said) for said in (b"client:me", b"client:me-2", b"me")] == [
        "me",
        "me-2",
        "me",
    ]
