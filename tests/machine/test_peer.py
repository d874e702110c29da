"""The owner of a connection's other end: every address family, socket state and method."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from farm.machine import peer as module
from farm.machine.peer import UNIX, AddressPair, OwnerOf, Owners, Peer, peer_uid
from tests.support.strangers import STRANGER, connect_as_stranger, wait_for_disowned

WAYS: dict[str, Callable[[], OwnerOf]] = {
    "netlink": module._Netlink,
    "proc": lambda: module._proc_owner,
}
OWN = os.geteuid()


class Accepted:
    """An accepted socket in the form of an asyncio transport."""

    def __init__(self, sock: socket.socket) -> None:
        self._info = {
            "socket": sock,
            "peername": sock.getpeername(),
            "sockname": sock.getsockname(),
        }

    def get_extra_info(self, name: str) -> Any:
        return self._info[name]


@pytest.fixture(params=WAYS)
def owners(request: pytest.FixtureRequest) -> Owners:
    """Finds owners by one of the two methods."""
    made = Owners()
    made._owner_of = WAYS[request.param]()
    return made


@pytest.fixture(params=["127.0.0.1", "::1", "::"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """Listens on IPv4, IPv6, or both by one socket."""
    host = request.param
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as made:
        yield made


REACHED_AT = {
    "127.0.0.1": ["127.0.0.1", "::ffff:127.0.0.1"],
    "::1": ["::1"],
    "::": ["127.0.0.1", "::ffff:127.0.0.1", "::1"],
}
"""The addresses that reach a listener, as a client writes them."""


def connections(
    listener: socket.socket,
) -> Generator[tuple[socket.socket, socket.socket]]:
    """By each of its addresses one after the other: the ends of the client and of the server."""
    host, port = listener.getsockname()[:2]
    for address in REACHED_AT[host]:
        with socket.create_connection((address, port)) as client:
            accepted, _ = listener.accept()
            with accepted:
                yield client, accepted


def peer_of_own_connection(owners: Owners) -> Peer:
    """Return the peer found for a connection of this process to itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, accepted = next(ends := connections(listener))
        peer = owners.peer(Accepted(accepted))
        ends.close()
        return peer


def test_this_process_is_found_by_every_address(owners: Owners, listener: socket.socket) -> None:
    for _, accepted in connections(listener):
        theirs = accepted.getpeername()[0]
        peer = owners.peer(Accepted(accepted))
        assert peer == Peer(theirs, OWN)
        assert owners.is_own(peer)
        assert str(peer) == f"{theirs} (uid {OWN})"


@pytest.mark.parametrize("waits", [True, False], ids=["for the server's end", "in TIME_WAIT"])
def test_a_closed_socket_is_nobodys(owners: Owners, listener: socket.socket, waits: bool) -> None:
    """The kernel reports it as uid 0, which root's farm must not take for its own."""
    for client, accepted in connections(listener):
        transport = Accepted(accepted)
        client.sendall(b"do this")
        client.close()
        if not waits:
            accepted.recv(100)
            accepted.shutdown(socket.SHUT_WR)
        peer = owners.peer(transport)
        assert peer.uid is None
        assert peer.closed is waits
        assert not owners.is_own(peer)


def test_half_closed_is_still_somebodys(owners: Owners, listener: socket.socket) -> None:
    """MIP's clients half-close to say that no request follows, and wait for the answers."""
    for client, accepted in connections(listener):
        client.shutdown(socket.SHUT_WR)
        peer = owners.peer(Accepted(accepted))
        assert (peer.uid, peer.closed) == (OWN, False)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_connection_has_no_owner(way: str) -> None:
    """Neither a listener at the same port, nor a socket of another machine."""
    owner_of = WAYS[way]()
    here, there = bytes([127, 0, 0, 1]), bytes([192, 0, 2, 1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert owner_of(AddressPair(here, port, here, 9)) is None
        assert owner_of(AddressPair(here, port, bytes(4), 0)) is None
        assert owner_of(AddressPair(there, 4000, here, port)) is None
        with socket.create_connection(("127.0.0.1", port)) as client:
            own = client.getsockname()[1]
            assert owner_of(AddressPair(here, own, here, port)) == OWN
            assert owner_of(AddressPair(here, own, here, port + 1 & 0xFFFF)) is None


def netlink_sockets() -> int:
    """Return how many this process has; other threads may open and close other descriptors."""
    _, *rows = Path("/proc/self/net/netlink").read_text().splitlines()
    names = {f"socket:[{row.split()[-1]}]" for row in rows}
    links = Path("/proc/self/fd").iterdir()
    return sum(os.path.realpath(link).rpartition("/")[2] in names for link in links)


def test_the_one_socket_is_asked_for_as_often_as_wanted() -> None:
    before = netlink_sockets()
    owners = Owners()
    for _ in range(300):
        assert owners.is_own(peer_of_own_connection(owners))
    assert netlink_sockets() == before + 1
    del owners
    assert netlink_sockets() == before


def test_an_answer_to_an_earlier_question_is_passed_over() -> None:
    netlink = module._Netlink()
    here = bytes([127, 0, 0, 1])
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        pair = AddressPair(here, client.getsockname()[1], here, listener.getsockname()[1])
        netlink._number += 1
        late = module.HEAD.pack(16, module.SOCK_DIAG_BY_FAMILY, module.NLM_F_REQUEST, 7777, 0)
        os.write(netlink._fd, late)  # too short: answered with an error
        assert netlink(pair) == OWN


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_transports_of_both_loops(run: Callable[[Any], Any], tmp_path: Path) -> None:
    owners, seen = Owners(), list[Peer]()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.append(owners.peer(transport))
            transport.close()

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        tcp = await loop.create_server(Server, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*tcp.sockets[0].getsockname())
        await reader.read()
        writer.close()
        path = tmp_path / "s"
        local = await loop.create_unix_server(Server, path)
        reader, writer = await asyncio.open_unix_connection(path)
        await reader.read()
        writer.close()
        tcp.close()
        local.close()

    run(connect())
    assert seen == [Peer("127.0.0.1", OWN), Peer(UNIX, OWN)]


def test_the_other_end_of_a_unix_socket() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == OWN
        assert Owners().peer(Accepted(one)).uid == OWN


def test_a_connection_that_is_gone_before_it_is_looked_at() -> None:
    class Gone:
        def get_extra_info(self, name: str) -> None:
            return None

    assert Owners().peer(Gone()) == Peer("")


def test_where_netlink_is_missing_proc_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NETLINK_SOCK_DIAG", 31)
    assert Owners().way == "proc"


def test_where_the_kernel_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_NETLINK")
    monkeypatch.setattr(module, "_proc_owner", lambda pair: None)
    owners = Owners()
    assert owners.way == ""
    assert peer_of_own_connection(owners) == Peer("127.0.0.1")


def test_users_whom_a_container_cannot_tell_apart_are_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outside a user namespace all users have the overflow number, maybe this process's own too."""
    monkeypatch.setattr(module, "_has_unmapped_users", lambda: True)
    monkeypatch.setattr(module, "_overflow_uid", lambda: OWN)
    owners = Owners()
    assert peer_of_own_connection(owners) == Peer("127.0.0.1")


IN_A_NAMESPACE = """
import os, sys
from farm.machine import peer
assert peer._has_unmapped_users() is (sys.argv[1] == "True")
assert peer._overflow_uid() == 65534
"""


@pytest.mark.root
def test_a_user_namespace_is_known_as_such() -> None:
    for command, partly in (([], False), (["unshare", "--user", "--map-root-user"], True)):
        python = [sys.executable, "-c", IN_A_NAMESPACE, str(partly)]
        subprocess.run([*command, *python], check=True, timeout=30)


@pytest.mark.root
def test_another_user_is_another_user(owners: Owners, listener: socket.socket) -> None:
    for host in REACHED_AT[listener.getsockname()[0]]:
        with connect_as_stranger(host, listener.getsockname()[1]):
            accepted, theirs = listener.accept()
            with accepted:
                peer = owners.peer(Accepted(accepted))
        assert peer == Peer(theirs[0], STRANGER)
        assert not owners.is_own(peer)


@pytest.mark.root
def test_another_user_who_sends_and_closes(owners: Owners, listener: socket.socket) -> None:
    for host in REACHED_AT[listener.getsockname()[0]]:
        with connect_as_stranger(host, listener.getsockname()[1]) as stranger:
            accepted, _ = listener.accept()
            with accepted:
                stranger.send(b"do this")
                stranger.close()
                wait_for_disowned(listener.getsockname()[1])
                peer = owners.peer(Accepted(accepted))
        assert peer.uid is None
        assert not owners.is_own(peer)
