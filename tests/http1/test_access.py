"""Access rules: every combination of peer, host name, proxy and credentials."""

from __future__ import annotations

import base64
import logging
import os
import re
import socket
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from farm.bodies.unpacking import Refused
from farm.http1.access import Access
from farm.machine import peer as peers
from farm.machine.peer import UNIX, Peer
from farm.settings import Auth

TOKEN = "s3cret-token"
ACCESS = Access(TOKEN)
OWN = os.geteuid()
OTHER = OWN + 1


def user(
    authorization: str = "",
    *,
    peer: str = "10.0.0.7",
    uid: int | None = None,
    host: str = "farm.example:4242",
    access: Access | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> str:
    headers = {name.encode(): value.encode() for name, value in more.items()}
    headers[b"host"] = host.encode()
    if authorization:
        headers[b"authorization"] = authorization.encode()
    return (access or ACCESS).user(Peer(peer, uid), headers)


HERE = {b"host": b"localhost"}
WITH_TOKEN = HERE | {b"authorization": b"Bearer " + TOKEN.encode()}


def test_an_owner_is_the_user_of_the_farm_or_has_the_token() -> None:
    for access in (ACCESS, Access(TOKEN, auth="remote")):
        assert access.is_owner(Peer("127.0.0.1", OWN), HERE)
        assert access.is_owner(Peer("10.0.0.9"), WITH_TOKEN)
        assert not access.is_owner(Peer("127.0.0.1", OTHER), HERE)
        assert not access.is_owner(Peer("127.0.0.1", OWN), HERE | {b"x-real-ip": b"10.0.0.9"})
        assert not access.is_owner(Peer("10.0.0.9"), HERE)
    assert not Access(None).is_owner(Peer("127.0.0.1", OTHER), WITH_TOKEN)


def test_an_owner_here_is_a_program_of_the_farms_user_on_this_machine() -> None:
    for access in (ACCESS, Access(TOKEN, auth="remote"), Access(TOKEN, auth="always")):
        assert access.is_owner_here(Peer("127.0.0.1", OWN), HERE)
        assert access.is_owner_here(Peer(UNIX, OWN), HERE)
        for peer in (Peer("127.0.0.1", OTHER), Peer("10.0.0.9"), Peer("10.0.0.9", OTHER)):
            assert not access.is_owner_here(peer, HERE)
            assert not access.is_owner_here(peer, WITH_TOKEN)
        for more in (
            {b"x-real-ip": b"10.0.0.9"},
            {b"forwarded": b"for=10.0.0.9"},
            {b"host": b"farm.example"},
        ):
            assert not access.is_owner_here(Peer("127.0.0.1", OWN), WITH_TOKEN | more)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", UNIX])
def test_the_token_makes_a_local_client_the_owner_where_the_kernel_knows_no_users(
    host: str,
) -> None:
    assert ACCESS.is_owner_here(Peer(host), WITH_TOKEN)
    assert not ACCESS.is_owner_here(Peer(host), HERE)
    assert not ACCESS.is_owner_here(Peer(host), HERE | {b"authorization": b"Bearer wrong"})
    assert not Access(None).is_owner_here(Peer(host), WITH_TOKEN)


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
    assert "the token is in the farm.json that `farm serve` wrote" in refused.message
    assert TOKEN not in refused.message
    assert dict(refused.headers)[b"www-authenticate"].startswith(b"Basic ")


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3"])
@pytest.mark.parametrize(
    "host", ["localhost:4242", "LocalHost", "127.0.0.1:4242", "127.0.1.1", "[::1]:4242", ""]
)
def test_ones_own_programs_need_no_token(peer: str, host: str) -> None:
    """Their address does not matter: the kernel finds the owner of their socket."""
    assert user(peer=peer, uid=OWN, host=host) == ""
    assert user(basic("ann:"), peer=peer, uid=OWN, host=host) == "ann"


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "unix", "10.1.2.3"])
@pytest.mark.parametrize("uid", [OTHER, None])
def test_other_users_programs_need_it(peer: str, uid: int | None) -> None:
    with pytest.raises(Refused, match="no token was given; write"):
        user(peer=peer, uid=uid, host="localhost")
    assert user(f"Bearer {TOKEN}", peer=peer, uid=uid, host="localhost") == ""


def test_root_is_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(peers, "_knows_its_own", lambda owner_of: True)
    access = Access(TOKEN)
    assert user(access=access, peer="127.0.0.1", uid=1000, host="localhost") == ""
    with pytest.raises(Refused):
        user(access=access, peer="127.0.0.1", uid=0, host="localhost")


def test_who_needs_it_can_be_said() -> None:
    for auth, local, own in (("always", False, False), ("remote", True, True)):
        access = Access(TOKEN, auth=auth)  # type: ignore[arg-type]  # of a table
        for peer, uid, comes_in in (
            ("127.0.0.1", None, local),
            ("127.0.0.1", OTHER, local),
            ("127.0.0.1", OWN, own),
            ("unix", OWN, own),
            ("10.1.2.3", None, False),
            ("10.1.2.3", OWN, False),
        ):
            if comes_in:
                assert user(access=access, peer=peer, uid=uid, host="localhost") == ""
            else:
                with pytest.raises(Refused):
                    user(access=access, peer=peer, uid=uid, host="localhost")
            assert user(f"Bearer {TOKEN}", access=access, peer=peer, uid=uid) == ""


def test_where_the_kernel_cannot_tell_all_of_the_machine_come_in_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "_knows_its_own", lambda owner_of: False)
    kinds: tuple[Auth, ...] = ("other-users", "remote", "always")
    assert [Access(TOKEN, auth=auth).auth for auth in kinds] == ["remote", "remote", "always"]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "--auth remote" in caplog.text


def test_protocols_without_a_token_take_nobody_else() -> None:
    def admitted(auth: Auth, peer: str, uid: int | None) -> bool:
        return Access(TOKEN, auth=auth).refusal(Peer(peer, uid)) is None

    assert admitted("other-users", "127.0.0.1", OWN)
    assert not admitted("other-users", "127.0.0.1", OTHER)
    assert not admitted("other-users", "127.0.0.1", None)
    assert admitted("remote", "127.0.0.1", OTHER)
    assert not admitted("remote", "10.1.2.3", OTHER)
    assert not admitted("always", "127.0.0.1", OWN)
    for auth in ("always", "other-users"):
        assert admitted(auth, "unix", OWN)
        # The system does not report the peer: only the user can open the file.
        assert admitted(auth, "unix", None)
        assert not admitted(auth, "unix", OTHER)
    assert Access(None).refusal(Peer("10.1.2.3")) is None
    assert f"user {OWN}" in (Access(TOKEN).refusal(Peer("127.0.0.1", OTHER)) or "")


def test_this_machines_own_names_and_addresses_are_local() -> None:
    for host in (socket.gethostname(), socket.gethostname().upper(), "0.0.0.0", "[::]"):
        assert user(peer="127.0.0.1", uid=OWN, host=f"{host}:4242") == ""


NO_ADDRESS_OF_THIS_MACHINE = ("192.0.2.1:80", "[2001:db8::1]:4242", "[fe80::1]", "8.8.8.8")
MADE_TO_POINT_HERE = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "localhost:evil.example"),
    *("[::1].evil.example", "[::1]evil:80", "[::1]@evil", "evil[::1]", "[]"),
    *("localhost:80:evil", "localhost/evil", "me@localhost"),
)


@pytest.mark.parametrize("host", [*NO_ADDRESS_OF_THIS_MACHINE, *MADE_TO_POINT_HERE])
def test_another_host_is_not_local(host: str) -> None:
    with pytest.raises(Refused, match=re.escape(f"the header Host, {host!r}, is not localhost")):
        user(peer="127.0.0.1", uid=OWN, host=host)


@pytest.mark.parametrize("peer", ["127.0.0.1", UNIX])
@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip"])
def test_what_a_proxy_forwards_is_not_local(peer: str, header: str) -> None:
    with pytest.raises(Refused, match=f"the header {header} says that a proxy forwards"):
        user(peer=peer, uid=OWN, host="localhost", more={header: "127.0.0.1"})


@pytest.mark.parametrize("peer", ["", "10.0.0.7", "192.168.1.1", "2001:db8::1", "127x"])
def test_other_peers_need_the_token(peer: str) -> None:
    with pytest.raises(Refused):
        user(access=Access(TOKEN, auth="remote"), peer=peer, host="localhost")


def test_without_a_token_everybody_comes_in() -> None:
    assert user(access=Access(None)) == ""
    assert user(basic("ann:anything"), access=Access(None)) == "ann"


def test_a_unix_socket_is_free_whatever_host_is_named() -> None:
    assert user(peer="unix", uid=OWN, host="any") == ""
    assert user(basic("ann:"), peer="unix", uid=OWN) == "ann"


def page(origin: str, site: str, *, host: str = "localhost:4242", authorization: str = "") -> str:
    """Headers that a browser adds for a page of `origin`, from the user's own program."""
    sent = {"origin": origin, "sec-fetch-site": site}
    return user(
        authorization,
        access=Access(TOKEN, origins=("https://hub.example/",)),
        peer="127.0.0.1",
        uid=OWN,
        host=host,
        more={name: value for name, value in sent.items() if value},
    )


@pytest.mark.parametrize(
    ("origin", "site", "host"),
    [
        ("", "", "localhost:4242"),
        ("", "none", "localhost:4242"),
        ("", "same-origin", "localhost:4242"),
        ("http://localhost:4242", "", "localhost:4242"),
        ("http://localhost:4242", "same-origin", "localhost:4242"),
        ("http://LOCALHOST:4242", "same-site", "localhost:4242"),
        ("http://localhost", "same-origin", "localhost"),
        ("http://localhost", "", "localhost:80"),
        ("https://localhost", "", "localhost:443"),
        ("https://hub.example", "cross-site", "localhost:4242"),
        ("https://Hub.example", "same-origin", "localhost:4242"),
    ],
)
def test_farms_own_pages_are_served(origin: str, site: str, host: str) -> None:
    assert page(origin, site, host=host) == ""


@pytest.mark.parametrize(
    ("origin", "site"),
    [
        ("", "cross-site"),
        ("", "same-site"),
        ("", "something-new"),
        ("null", ""),
        ("null", "cross-site"),
        ("http://evil.example", ""),
        ("http://evil.example", "same-origin"),  # no browser sends this
        ("http://localhost:4242", "cross-site"),
        ("http://localhost:8888", "same-site"),  # another port is another site
        ("http://localhost", ""),
        ("http://127.0.0.1:4242", ""),
        ("http://localhost:4242.evil.example", ""),
        ("ftp://localhost:4242", ""),
        ("localhost:4242", ""),
        ("http://hub.example", ""),
        ("https://hub.example.evil.example", ""),
    ],
)
def test_pages_of_other_sites_are_not(origin: str, site: str) -> None:
    for authorization in ("", f"Bearer {TOKEN}"):  # which a browser may have stored
        with pytest.raises(Refused) as caught:
            page(origin, site, authorization=authorization)
        assert (caught.value.status, caught.value.kind) == (403, "Forbidden")
        assert "--allow-origin" in caught.value.message
    with pytest.raises(Refused):
        Access(None).user(Peer("10.0.0.7"), {b"origin": b"http://evil.example"})


def test_wrong_tokens_are_logged_but_fill_no_disk(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("farm.http1.access.time.monotonic", lambda: now)
    caplog.set_level(logging.WARNING)
    access = Access(TOKEN)

    def wrong(peer: str, uid: int | None = None, said: str = "Bearer wrong") -> None:
        with pytest.raises(Refused):
            user(said, access=access, peer=peer, uid=uid)

    for _ in range(1000):
        wrong("127.0.0.1", OTHER)
    wrong("10.0.0.7")
    wrong("10.0.0.8", said="")  # nothing was tried
    texts = [f"127.0.0.1 (uid {OTHER}) sent a wrong token", "10.0.0.7 sent a wrong token"]
    assert [r.getMessage() for r in caplog.records] == texts
    for number in range(1000):
        wrong(f"10.0.{number % 250}.{number // 250}")
    assert len(caplog.records) == 16
    now += 61
    wrong("10.0.0.7")
    assert len(caplog.records) == 17
    assert TOKEN not in caplog.text
    assert "Bearer" not in caplog.text
