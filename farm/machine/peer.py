"""The other end of a connection: its address, and the user who owns its socket.

The kernel knows the owner of every socket of this machine, so a connection from this machine can be
attributed to a user without a token. The owner is looked up once, when the connection is accepted.

A socket that its program has closed has no owner any more: the kernel then reports uid 0 and inode
0. So an owner counts only together with an inode. Source: sock_diag(7), linux/inet_diag.h.
"""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

UNIX = "unix"
"""The host of a peer connected by a Unix socket."""

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
HEAD = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence number, port
ASKED = struct.Struct("=BBBBI")  # inet_diag_req_v2: family, protocol, ext, pad, states
PORTS = struct.Struct("!HH")
NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, any incarnation
FOUND = struct.Struct("=BBBB48sIIIII")
"""inet_diag_msg: family, state, timer, retransmits, socket id, expires, queues, uid, inode."""

CREDENTIALS = struct.Struct("=iII")
"""ucred of unix(7): process, user, group."""

CONNECTED = frozenset({1, 4, 5, 8, 9, 11})
"""States of a socket whose handshake is done: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT,
LAST_ACK, CLOSING (net/tcp_states.h). A lookup may also find a listener at the same port."""

CLOSING = frozenset({4, 5, 9, 11})
"""Those of them that a socket has after its program closed it."""

NOBODY = -1
"""The owner of a socket that its program has closed."""

MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4 address written as IPv6 (RFC 4291, 2.5.5.2)."""

ALL_MAPPED = ["0", "0", "4294967295"]
"""The user namespace of a machine outside any container, in /proc/self/uid_map."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection.

    host: its address, "unix" for a Unix socket, "" if unknown. uid: the owner of its socket if that
    socket is on this machine and open, otherwise None. closed: whether its program is known to have
    closed the socket, so that it will read no answer.
    """

    host: str
    uid: int | None = None
    closed: bool = False

    def __str__(self) -> str:
        return self.host if self.uid is None else f"{self.host} (uid {self.uid})"


class AddressPair(NamedTuple):
    """One end of a TCP connection by its addresses, in network order: 4 or 16 bytes each."""

    address: bytes
    port: int
    other: bytes
    other_port: int


OwnerOf = Callable[[AddressPair], int | None]
"""Returns the owner of the socket at this end of a connection, or NOBODY; None: no such socket."""


class Owners:
    """Finds the owners of connections' other ends. For one thread.

    way: the method, "netlink" or "proc"; "" if this machine's kernel offers neither.
    """

    def __init__(self) -> None:
        self.uid = os.geteuid()
        self.way = ""
        self._owner_of: OwnerOf | None = None
        self._ambiguous = _overflow_uid() if _has_unmapped_users() else None
        ways: tuple[tuple[str, Callable[[], OwnerOf]], ...] = (
            ("netlink", _Netlink),
            ("proc", lambda: _proc_owner),
        )
        for way, make in ways:
            try:
                owner_of = make()
                if _knows_its_own(owner_of):
                    self.way, self._owner_of = way, owner_of
                    return
            except (OSError, AttributeError):  # no such socket family, no /proc: another system
                continue

    def peer(self, transport: Any) -> Peer:
        """Return the other end of an accepted connection; transport: asyncio's, or one like it."""
        ours = transport.get_extra_info("sockname")
        if isinstance(ours, str | bytes):  # a path
            try:
                return Peer(UNIX, self._known(peer_uid(transport.get_extra_info("socket"))))
            except OSError:
                return Peer(UNIX)
        theirs = transport.get_extra_info("peername")
        if not theirs or not ours:
            return Peer("")  # it has disconnected already
        uid = self._tcp_owner(theirs, ours)
        if uid == NOBODY:
            return Peer(str(theirs[0]), closed=True)
        return Peer(str(theirs[0]), self._known(uid))

    def is_own(self, peer: Peer) -> bool:
        """Whether the peer is a program of the user who runs this process."""
        return peer.uid == self.uid

    def _tcp_owner(self, theirs: tuple[Any, ...], ours: tuple[Any, ...]) -> int | None:
        if self._owner_of is None:
            return None
        try:
            pair = AddressPair(_packed(theirs[0]), theirs[1], _packed(ours[0]), ours[1])
            return self._owner_of(pair)
        except OSError:
            return None

    def _known(self, uid: int | None) -> int | None:
        """Return the uid, or None for the one that stands for all users outside the container."""
        return None if uid == self._ambiguous else uid


class _Netlink:
    """Looks up exactly one socket; 7 microseconds, for any number of sockets."""

    def __init__(self) -> None:
        sock = socket.socket(
            socket.AF_NETLINK,
            socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
            NETLINK_SOCK_DIAG,
        )
        try:
            sock.connect((0, 0))
        except OSError:
            sock.close()
            raise
        self._fd = sock.detach()
        weakref.finalize(self, os.close, self._fd)
        self._number = 0

    def __call__(self, pair: AddressPair) -> int | None:
        self._number = (self._number + 1) & 0xFFFFFFFF
        family = socket.AF_INET if len(pair.address) == 4 else socket.AF_INET6
        ports = PORTS.pack(pair.port, pair.other_port)
        asked = ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ports
        asked += pair.address.ljust(16, b"\0") + pair.other.ljust(16, b"\0") + NO_COOKIE
        size = HEAD.size + len(asked)
        os.write(
            self._fd, HEAD.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, self._number, 0) + asked
        )
        while True:  # the kernel has answered when `write` returns
            answer = os.read(self._fd, 4096)
            _, kind, _, number, _ = HEAD.unpack_from(answer)
            if number == self._number:
                return _found(answer, ports) if kind == SOCK_DIAG_BY_FAMILY else None


def _found(answer: bytes, ports: bytes) -> int | None:
    _, state, _, _, ids, _, _, _, uid, inode = FOUND.unpack_from(answer, HEAD.size)
    if state not in CONNECTED or not ids.startswith(ports):
        return None
    return _owner(int(uid), inode, state)


def _owner(uid: int, inode: int, state: int) -> int | None:
    """Return the owner of a socket that was found, if it has one."""
    if inode:
        return uid
    return NOBODY if state in CLOSING else None


def _proc_owner(pair: AddressPair) -> int | None:
    """Find the owner in /proc/net/tcp, one line per socket: slower, but always available.

    A program may reach an IPv4 address by an IPv6 socket, which is listed in the other file.
    """
    wide = pair._replace(address=_wide(pair.address), other=_wide(pair.other))
    tables = [("tcp6", wide)] if len(pair.address) == 16 else [("tcp", pair), ("tcp6", wide)]
    for name, end in tables:
        ends = [_as_in_proc(end.address, end.port), _as_in_proc(end.other, end.other_port)]
        with open(f"/proc/self/net/{name}", "rb") as table:
            for line in table:
                # sl, local, remote, state, queues, timer, retransmits, uid, timeout, inode
                fields = line.split(None, 10)
                if fields[1:3] == ends:
                    state = int(fields[3], 16)
                    if state not in CONNECTED:
                        return None
                    return _owner(int(fields[7]), int(fields[9]), state)
    return None


def _as_in_proc(address: bytes, port: int) -> bytes:
    words = struct.unpack(f"={len(address) // 4}I", address)
    return ("".join(f"{word:08X}" for word in words) + f":{port:04X}").encode()


def _wide(address: bytes) -> bytes:
    return address if len(address) == 16 else MAPPED + address


def _packed(host: str) -> bytes:
    """Return an address in network order; the kernel treats IPv4 written as IPv6 as IPv4."""
    if ":" not in host:
        return socket.inet_pton(socket.AF_INET, host)
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    return packed[12:] if packed.startswith(MAPPED) else packed


def peer_uid(connected: Any) -> int:
    """Return the uid of the other end of a Unix socket, as recorded when it was connected.

    Raises OSError.
    """
    if hasattr(socket, "SO_PEERCRED"):
        packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        return int(CREDENTIALS.unpack(packed)[1])
    # macOS: LOCAL_PEERCRED at level SOL_LOCAL gives a struct xucred: version, uid, groups.
    return int(struct.unpack_from("2I", connected.getsockopt(0, 1, 76))[1])


def _knows_its_own(owner_of: OwnerOf) -> bool:
    """Whether `owner_of` finds a socket of this process. Raises OSError."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address) as client:
            (host, port), (other, other_port) = client.getsockname(), address
            pair = AddressPair(_packed(host), port, _packed(other), other_port)
            return owner_of(pair) == os.geteuid()


def _has_unmapped_users() -> bool:
    try:
        return Path("/proc/self/uid_map").read_text().split() != ALL_MAPPED
    except OSError:
        return False


def _overflow_uid() -> int | None:
    """Return the uid that the kernel reports for users unknown to this user namespace."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None
