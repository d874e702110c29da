"""Asking servers over HTTP: connections kept or not, credentials, servers that hang up."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest

from farm.errors import Unavailable
from farm.worker.http import Server
from tests.worker.scripted import scripted

HELLO = {"/hello": (200, {"hello": 1})}


@pytest.mark.parametrize(("keep", "connections"), [(True, 1), (False, 3)])
def test_connections_are_kept_if_wished(keep: bool, connections: int) -> None:
    with scripted(HELLO) as server:
        asked = Server(server.url, keep=keep)
        for _ in range(3):
            status, _, body = asked.ask("/hello")
            assert (status, body) == (200, b'{"hello": 1}')
        assert len(server.connections) == connections
        assert {head.get("connection") for head, _ in server.requests} == (
            {None} if keep else {"close"}
        )


def test_a_body_is_posted_and_headers_are_sent() -> None:
    with scripted(HELLO) as server:
        asked = Server(server.url.replace("http://", "http://ann:s%40cret@") + "/", keep=True)
        asked.ask("/hello", b"abc", headers={"Content-Type": "text/plain"})
        ((head, body),) = server.requests
    assert body == b"abc"
    assert head["content-type"] == "text/plain"
    assert head["authorization"] == "Basic " + base64.b64encode(b"ann:s@cret").decode()
    assert "cret" not in asked.url


@pytest.mark.parametrize(("keep", "times"), [(True, 2), (False, 1)])
def test_a_server_that_hangs_up_is_asked_again_only_on_a_kept_connection(
    keep: bool, times: int
) -> None:
    with scripted({"/gone": (200, None)}) as server:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+ does not answer"):
            Server(server.url, keep=keep).ask("/gone", b"x")
        assert len(server.requests) == times


def test_a_request_that_must_not_run_twice_is_sent_once() -> None:
    with scripted({"/gone": (200, None), **HELLO}) as server:
        asked = Server(server.url, keep=True)
        asked.ask("/hello")
        with pytest.raises(Unavailable, match="does not answer"):
            asked.ask("/gone", b"x", once=True)
        assert len(server.requests) == 2
        assert len(server.connections) == 2, "not on one that the server may just be closing"


@pytest.mark.parametrize("url", ["ftp://host", "host:4242", "http://", "http:///Info"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Unavailable, match="expected http://host:port"):
        Server(url, keep=True)


def test_a_model_process_that_asks_no_server_starts_without_the_library() -> None:
    code = "import sys, farm.provision.process; sys.exit('urllib3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
