"""The connections between the MPI ranks of a group and their supervisor: plain sockets.

Ranks are children of a launcher, possibly on other hosts, so they inherit no pipes. The parent of
each rank (`rank_parent.py`) opens a *lifeline*, which the rank inherits: the supervisor never
writes to it, and on Linux the kernel sends the rank SIGKILL when it closes. The rank reports its
number on it, and the parent how it ended. Rank 0 also has a *talk*: it reports what it runs, and
receives the request to drain. Data that a process has written to a socket arrives even if the
process dies in the next moment. Ranks on the supervisor's own host connect to a unix-domain socket,
others to a TCP port.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from farm.machine.lifeline import kill_at_end_of
from farm.machine.private import short_folder
from farm.provision.local.rank_parent import dial, keep_alive

BACKLOG = 4096
"""All ranks of a group connect at once."""

LONGEST_LINE = 1 << 20
DRAIN = b"drain\n"


@dataclass(slots=True)
class _RankPeer:
    """One connection. known: it has sent the secret; rank: whose lifeline it is, once reported.

    follows: its rank ends only because another rank is gone.
    """

    unread: bytes = b""
    known: bool = False
    talks: bool = False
    follows: bool = False
    rank: int | None = None


class RankEnd(NamedTuple):
    """How a rank ended. rank: None before it has joined; status: code, or minus a signal."""

    rank: int | None
    status: int


class RankLines:
    """The supervisor's end, for one thread. `fileno()` is readable when there is something to read.

    gone: whether a rank has ended, not counting ranks that only follow another. failed: the rank
    whose parent was the first to report an end that nothing else had caused. closed: the lines are
    cut.
    """

    def __init__(self, *, loopback: bool, ranks: int) -> None:
        """loopback: no rank runs on another host; then no TCP port is opened."""
        self.gone = False
        self.failed: RankEnd | None = None
        self._secret = secrets.token_hex(16)
        self._missing = ranks + 1  # a lifeline each, and rank 0's talk
        self._folder = ""
        self._listener, where = self._listen_here() if loopback else self._listen_everywhere()
        self._listener.setblocking(False)
        self.address = f"{self._secret}@{where}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: dict[socket.socket, _RankPeer] = {}
        self._draining = False
        self.closed = False

    def _listen_here(self) -> tuple[socket.socket, str]:
        # Only its owner can enter the folder.
        self._folder = tempfile.mkdtemp(prefix="farm-", dir=short_folder())
        path = f"{self._folder}/supervisor"
        return socket.create_server(path, family=socket.AF_UNIX, backlog=BACKLOG), path

    @staticmethod
    def _listen_everywhere() -> tuple[socket.socket, str]:
        listener = socket.create_server(("", 0), backlog=BACKLOG)
        return listener, f"{socket.gethostname()}:{listener.getsockname()[1]}"

    def fileno(self) -> int:
        """Return a descriptor to wait on."""
        return self._selector.fileno()

    @property
    def over(self) -> bool:
        """Whether no more facts will come: a rank has ended, or the lines are cut."""
        return self.closed or self.gone

    def read(self) -> Iterator[dict[str, object]]:
        """Yield the facts that rank 0 has reported since the last call."""
        while not self.closed and (ready := self._selector.select(0)):
            for key, _ in ready:
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    yield from self._receive(key.fileobj)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            if not self._folder:
                keep_alive(connection)
            self._peers[connection] = _RankPeer()
            self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> Iterator[dict[str, object]]:
        peer = self._peers[connection]
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, peer.unread = (peer.unread + data).split(b"\n")
        for line in lines:
            if peer.known:
                facts = json.loads(line)
                peer.rank = facts.get("rank", peer.rank)
                peer.follows |= facts.get("follows") is True or facts.get("asked") is True
                status = facts.get("ended")
                if isinstance(status, int) and not peer.follows and self.failed is None:
                    self.failed = RankEnd(peer.rank, status)
                yield facts
            elif not self._introduced(peer, line):
                data = b""
                break
            elif peer.talks and self._draining:
                _ask_to_drain(connection)
        if not data or len(peer.unread) > LONGEST_LINE:
            if peer.known and not peer.talks and not peer.follows:
                self.gone = True
            self._drop(connection)

    def _introduced(self, peer: _RankPeer, line: bytes) -> bool:
        kind, _, secret = line.partition(b" ")
        peer.known = hmac.compare_digest(secret, self._secret.encode())
        peer.talks = kind == b"talk"
        self._missing -= peer.known
        if not self._missing:  # connections stay; nothing is left when this process is killed
            self._remove_folder()
        return peer.known

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._peers[connection]
        connection.close()

    def drain(self) -> None:
        """Ask rank 0 to drain, now or when it connects."""
        self._draining = True
        for connection, peer in self._peers.items():
            if peer.known and peer.talks:
                _ask_to_drain(connection)

    def cut(self) -> None:
        """Close all lines, which kills the ranks. May be called twice."""
        for connection in list(self._peers):
            self._drop(connection)
        if not self.closed:
            self.closed = True
            self._selector.close()
            self._listener.close()
            self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class RankLifeline:
    """A rank's line to its supervisor; this process is killed when it closes."""

    def __init__(self, descriptor: int) -> None:
        """descriptor: of the connection that the rank's parent has opened."""
        os.set_inheritable(descriptor, False)  # not for programs that a model starts
        self._socket = socket.socket(fileno=descriptor)
        pid = os.getpid()
        kill_at_end_of(descriptor, -pid if os.getpgrp() == pid else pid)

    def fileno(self) -> int:
        """Return a descriptor, readable at end of file, for kernels that do not act themselves."""
        return self._socket.fileno()

    def name(self, rank: int) -> None:
        """Report whose line this is."""
        _say(self._socket, rank=rank, host=socket.gethostname(), pid=os.getpid())

    def follow(self) -> None:
        """Report that this rank ends only because another one is gone."""
        _say(self._socket, follows=True)


class Talk:
    """Rank 0's two-way message line to the supervisor."""

    def __init__(self, address: str, on_drain: Callable[[], None]) -> None:
        """Connect. on_drain: called, in another thread, when asked to drain. Raises OSError."""
        self._socket = dial(address, "talk")
        self._on_drain = on_drain
        threading.Thread(target=self._hear, name="supervisor", daemon=True).start()

    def say(self, **facts: object) -> None:
        """Report facts, as `process.ModelProcess.say` does; `running`: running tasks."""
        _say(self._socket, **facts)

    def _hear(self) -> None:
        with self._socket, contextlib.suppress(OSError):
            while words := self._socket.recv(64):
                if DRAIN.strip() in words:
                    self._on_drain()


def _say(line: socket.socket, **facts: object) -> None:
    with contextlib.suppress(OSError):  # the supervisor is gone
        line.sendall(json.dumps(facts).encode() + b"\n")


def _ask_to_drain(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the supervisor is gone; reading will show this
        connection.send(DRAIN)
