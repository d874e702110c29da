"""The interfaces between the dispatcher's end of the wire and the listeners of its transports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from farm.call import Buffer

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher
    from farm.transports.peers import Peers


class PeerLine(Protocol):
    """The dispatcher's end of the connection to one peer.

    name: the peer's identity (`identity.py`), unique to it.
    is_client: whether it may call models; otherwise it is a worker or a supervisor.
    may_come_back: the connection may break, lose messages and be restored unnoticed. So the peer is
    probed, and the calls it holds are checked.
    """

    @property
    def name(self) -> bytes: ...

    @property
    def is_client(self) -> bool: ...

    @property
    def may_come_back(self) -> bool: ...

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting; return False if the peer is not reachable."""

    def rest(self) -> Iterable[Sequence[Buffer]]:
        """Return the messages that have arrived but were not read yet."""

    def close(self) -> None:
        """End the line because the peer is dead. Not for a line that may come back."""


class Listener(Protocol):
    """Accepts connections of peers; passes received messages and ended lines to `Peers`."""

    def start(self, dispatcher: Dispatcher, peers: Peers) -> None:
        """Start on the running loop."""

    async def close(self) -> None:
        """Release all resources."""
