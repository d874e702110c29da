"""The dispatcher's end of the local stream: accepts peers of this user and reads them in turn."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farm.call import Buffer
from farm.machine.peer import peer_uid
from farm.machine.resources import allow_many_open_files
from farm.transports.identity import CLIENT_PREFIX
from farm.transports.stream.address import ListeningSocket
from farm.transports.stream.line import StreamLine

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher
    from farm.transports.peers import Peers

log = logging.getLogger(__name__)

MESSAGES_PER_TURN = 200
"""Messages read from one peer before others have their turn."""

BYTES_PER_TURN = 1024**2
"""Bytes read from one peer before others have their turn."""

REST_BYTES = 64 * 1024**2
"""Bytes read from a lost worker; the kernel holds far less of a dead process."""

FULL_BYTES = 8 * 1024**2
"""Size of a peer's send queue above which it is offered no slots."""

FEW_CALLS = 2
"""While no more calls than this are open, read messages at once: no others would join them."""

PEERS_PER_TURN = 32
"""Peers read from per event-loop iteration. New peers are accepted only while fewer are ready to be
read; while more are, the event loop does not poll them.
"""

MOST_NAMELESS = 256
"""Peers that have not sent their identity; beyond that the oldest are dropped. A peer sends it at
once.
"""

SHARE_OF_FILES = 4
"""Peers may use up to 1/SHARE_OF_FILES of the file descriptors of this process; further ones are
refused.
"""

LAST_WORDS_S = 0.5
"""Maximum time for peers to read the remaining messages at shutdown."""

ACCEPT_AGAIN_S = 1.0
"""Pause after running out of file descriptors."""


class _StreamPeer(StreamLine):
    """The dispatcher's end of the line to one peer: a `PeerLine`."""

    def __init__(self, accepted: socket.socket, listener: UnixListener) -> None:
        super().__init__(accepted)
        self.name = b""  # empty until the peer has sent it
        self.is_client = False
        self.fd = accepted.fileno()
        self._listener = listener
        self.watched = True  # the loop calls `_readable` when there is something to read
        self.writes = False  # waiting for room in the socket
        self.full = False

    def _leave(self, parts: Sequence[Buffer], size: int, sent: int) -> None:
        super()._leave(parts, size, sent)
        self._listener.has_queued(self)

    def rest(self) -> Iterator[list[Buffer]]:
        """Return the messages that have arrived but were not read, within bounds."""
        self._may_read, self._is_empty = REST_BYTES, False
        # Asked twice: a short read does not prove the end.
        while frames := self.receive() or self.receive():
            yield frames

    def introduce(self, frames: list[Buffer]) -> None:
        """Take the peer's identity from its first message."""
        self.name = bytes(frames[0])
        self.is_client = self.name.startswith(CLIENT_PREFIX)

    def close(self) -> None:
        """End the line."""
        self._listener.drop(self)


class UnixListener:
    """Listens in the run folder, at the socket file `place.path`. Raises Unavailable."""

    def __init__(self, folder: Path) -> None:
        self.place = ListeningSocket(folder)
        # State of the running listener; only its own methods change it, on the loop.
        self._lines: set[_StreamPeer] = set()
        self._nameless: dict[_StreamPeer, None] = {}  # the oldest first
        self._ready: dict[_StreamPeer, None] = {}  # to be read; while there are some, a look is due
        self._turn, self._reads = 0.0, 0
        self._accept_again: asyncio.TimerHandle | None = None

    def start(self, dispatcher: Dispatcher, peers: Peers) -> None:
        """Start on the running loop."""
        self._dispatcher = dispatcher
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._most = allow_many_open_files() // SHARE_OF_FILES
        self._begin_to_accept()

    async def close(self) -> None:
        """Remove the socket's file and close every line."""
        listening = self.place.socket.fileno()
        if listening < 0:
            return
        self._loop.remove_reader(listening)
        if self._accept_again is not None:
            self._accept_again.cancel()
        self.place.close()
        end = self._loop.time() + LAST_WORDS_S
        # The loop writes as the peers read; an event for each would not pay off.
        while any(p.queued for p in self._lines) and self._loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for peer in list(self._lines):
            self.drop(peer)

    # New peers

    def _begin_to_accept(self) -> None:
        self._loop.add_reader(self.place.socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(PEERS_PER_TURN - len(self._ready)):
            try:
                accepted, _ = self.place.socket.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                # Out of file descriptors: without a pause the loop would retry continuously.
                log.error("cannot accept a local peer: %s", error)
                self._loop.remove_reader(self.place.socket.fileno())
                self._accept_again = self._loop.call_later(ACCEPT_AGAIN_S, self._begin_to_accept)
                return
            self._greet(accepted)

    def _greet(self, accepted: socket.socket) -> None:
        try:
            uid = peer_uid(accepted)
        except OSError:
            accepted.close()
            return
        if uid != os.getuid():
            log.warning("refused user %d at %s", uid, self.place.path)
            accepted.close()
            return
        if len(self._nameless) >= MOST_NAMELESS:
            self.drop(next(iter(self._nameless)))
        if len(self._lines) >= self._most:
            # Not a warning: repeated connections must not fill the log.
            log.debug("refused a local peer: %d are connected", len(self._lines))
            accepted.close()
            return
        peer = _StreamPeer(accepted, self)
        self._lines.add(peer)
        self._nameless[peer] = None
        self._loop.add_reader(peer.fd, self._readable, peer)

    # Reading

    def _readable(self, peer: _StreamPeer) -> None:
        if not self._ready and self._dispatcher.stages.calls_open() <= FEW_CALLS:
            turn = self._loop.time()  # uvloop reads the clock once per iteration
            self._reads = self._reads + 1 if turn == self._turn else 1
            self._turn = turn
            if self._reads <= PEERS_PER_TURN:
                self._dispatcher.turns.act_on(partial(self._read_some, (peer,)))
                return
        # Read what arrives in this turn together.
        self._later(peer)

    def _later(self, peer: _StreamPeer) -> None:
        if not self._ready:
            self._loop.call_soon(self._look)
        self._ready[peer] = None
        if len(self._ready) > PEERS_PER_TURN:
            self._watch(peer, False)

    def _watch(self, peer: _StreamPeer, watched: bool) -> None:
        if watched == peer.watched:
            return
        peer.watched = watched
        if watched:
            self._loop.add_reader(peer.fd, self._readable, peer)
        else:
            self._loop.remove_reader(peer.fd)

    def _look(self) -> None:
        peers = tuple(itertools.islice(self._ready, PEERS_PER_TURN))
        for peer in peers:
            del self._ready[peer]
        if self._ready:
            self._loop.call_soon(self._look)
        self._dispatcher.turns.act_on(partial(self._read_some, peers))

    def _read_some(self, peers: Sequence[_StreamPeer]) -> None:
        for peer in peers:
            if peer not in self._lines:
                continue  # dropped since it was ready
            if peer.watched == (peer.full and peer.is_client):
                self._watch(peer, not peer.watched)
            if peer.name in self._peers.behind:
                self._later(peer)
                continue
            for number in range(MESSAGES_PER_TURN):
                frames = peer.receive(None if number else BYTES_PER_TURN)
                if frames is None:
                    if peer.ended():
                        self.drop(peer)
                    break
                if peer.name:
                    self._peers.received(peer, frames)
                else:
                    peer.introduce(frames)
                    self._nameless.pop(peer, None)
                if peer.drained:
                    break
            else:
                # Data that was read but not processed does not make the descriptor readable.
                self._later(peer)

    # Writing

    def has_queued(self, peer: _StreamPeer) -> None:
        """Write a peer's send queue as the peer reads."""
        if not peer.writes and peer in self._lines:
            peer.writes = True
            self._loop.add_writer(peer.fd, self._writable, peer)
        if peer.queued > FULL_BYTES and not peer.full:
            self._set_full(peer, True)

    def _writable(self, peer: _StreamPeer) -> None:
        peer.write_some()
        if not peer.queued:
            peer.writes = False
            self._loop.remove_writer(peer.fd)
        if peer.full and peer.queued <= FULL_BYTES // 2:
            self._set_full(peer, False)

    def _set_full(self, peer: _StreamPeer, full: bool) -> None:
        peer.full = full
        if not peer.is_client:
            self._peers.is_full(peer, full)
        else:  # a client that reads no answers sends no further calls
            self._watch(peer, not full)

    # Ends of lines

    def drop(self, peer: _StreamPeer) -> None:
        """End the line to a peer: it has ended, or its supervisor reports its death."""
        if peer not in self._lines:
            return
        self._lines.discard(peer)
        self._nameless.pop(peer, None)
        self._watch(peer, False)
        if peer.writes:
            self._loop.remove_writer(peer.fd)
        StreamLine.close(peer)  # that of the peer calls this
        self._peers.ended(peer)
