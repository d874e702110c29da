"""Who may come in: every combination of peer, host name, proxy and credentials."""

from __future__ import annotations

import base64
import socket

import pytest

from farm.server.access import UNIX_PEER, Access
from farm.server.door import Refused

TOKEN = "s3cret-token"


def user(
    authorization: str = "",
    *,
    peer: str = "10.0.0.7",
    host: str = "farm.example:4242",
    token: str | None = TOKEN,
    **more: str,
) -> str:
    headers = {name.replace("_", "-").encode(): value.encode() for name, value in more.items()}
    headers[b"host"] = host.encode()
    if authorization:
        headers[b"authorization"] = authorization.encode()
    return Access(token).user(peer, headers)


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_the_token_opens_as_bearer_and_as_password() -> None:
    assert user(f"Bearer {TOKEN}") == ""
    assert user(f"bearer  {TOKEN} ") == ""
    assert user(basic(f"ann:{TOKEN}")) == "ann"
    assert user(basic(f":{TOKEN}")) == ""
    assert user(basic(f"b\u00f6b:{TOKEN}")) == "b\u00f6b"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Token {TOKEN}",
        TOKEN,
        "Basic",
        "Basic !!!",
        basic("ann:wrong"),
        basic("ann"),
        basic(TOKEN),
        basic(f"ann:{TOKEN}") + "!",
    ],
)
def test_anything_else_does_not(authorization: str) -> None:
    with pytest.raises(Refused) as caught:
        user(authorization)
    refused = caught.value
    assert (refused.status, refused.kind) == (401, "Unauthorized")
    assert "http://user:TOKEN@host:port" in refused.message
    assert TOKEN not in refused.message
    assert dict(refused.headers)[b"www-authenticate"].startswith(b"Basic ")


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    "host",
    ["localhost:4242", "LocalHost", "127.0.0.1:4242", "[::1]:4242", "10.1.2.3:80", "[fe80::1]", ""],
)
def test_loopback_needs_no_token(peer: str, host: str) -> None:
    assert user(peer=peer, host=host) == ""
    assert user(basic("ann:"), peer=peer, host=host) == "ann"


def test_this_machines_name_is_local_from_loopback() -> None:
    assert user(peer="127.0.0.1", host=f"{socket.gethostname()}:4242") == ""


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80"])
def test_a_name_that_was_made_to_point_here_is_not_local(host: str) -> None:
    with pytest.raises(Refused):
        user(peer="127.0.0.1", host=host)


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip"])
def test_what_a_proxy_forwards_is_not_local(header: str) -> None:
    with pytest.raises(Refused):
        user(peer="127.0.0.1", host="localhost", **{header: "127.0.0.1"})


@pytest.mark.parametrize("peer", ["", "10.0.0.7", "192.168.1.1", "2001:db8::1", "127x"])
def test_other_peers_need_the_token(peer: str) -> None:
    with pytest.raises(Refused):
        user(peer=peer, host="localhost")


def test_without_a_token_everybody_comes_in() -> None:
    assert user(token=None) == ""
    assert user(basic("ann:anything"), token=None) == "ann"


def test_a_unix_socket_is_free_whatever_host_is_named() -> None:
    assert user(peer=UNIX_PEER, host="any") == ""
    assert user(basic("ann:"), peer=UNIX_PEER) == "ann"
    for proxy in ("forwarded", "x_forwarded_for", "x_real_ip"):
        with pytest.raises(Refused, match="no token was given"):
            user(peer=UNIX_PEER, host="localhost", **{proxy: "203.0.113.9"})
