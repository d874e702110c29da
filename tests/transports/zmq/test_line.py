"""A DEALER as a line: what it reports; receiving and heartbeats at both ends."""

from __future__ import annotations

import select
from collections.abc import Iterator
from dataclasses import replace

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from farm.call import Buffer
from farm.errors import Unavailable
from farm.transports.connection import Connection
from farm.transports.zmq.line import DealerLine, receive, set_heartbeat
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.proxy import Proxy
from tests.support.scripted_peers import a_router

NAME = "node/1-a"

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
"""A key of CurveZMQ's specification (ZMQ RFC 32)."""


Routed = tuple["zmq.Socket[bytes]", Connection]


@pytest.fixture
def routed() -> Iterator[Routed]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield a_router(context)
    context.destroy(linger=0)


def readable(line: DealerLine, timeout_s: float = LIMIT_S) -> bool:
    poll = select.poll()
    poll.register(line.fileno(), select.POLLIN)
    return bool(poll.poll(int(1000 * timeout_s)))


def test_it_is_readable_though_a_send_has_swallowed_the_word_of_a_message(
    routed: Routed,
) -> None:
    router, connection = routed
    line = DealerLine(connection, NAME)
    line.send([b"hello"])
    assert router.recv_multipart() == [NAME.encode(), b"hello"]
    while line.receive() is not None:
        pass
    for i in range(200):
        router.send_multipart([NAME.encode(), b"%d" % i])
        # Some of these come before the message is here, and some after.
        line.send([b"x"])
        line.send([b"x"])
        assert readable(line)
        wait_until(lambda: readable(line, 0.0))
        frames = None
        while frames is None:
            frames = line.receive()
        assert bytes(frames[0]) == b"%d" % i
        while line.receive() is not None:
            pass
    line.close()
    line.close()


def test_it_says_when_it_was_broken_and_is_there_again(routed: Routed) -> None:
    router, connection = routed
    with Proxy(connection) as proxy:
        line = DealerLine(proxy.connection, NAME, watched=True)
        line.send([b"hello"])
        router.recv_multipart()
        assert line.receive() is None
        assert not line.came_back()
        proxy.cut()
        wait_until(lambda: line.receive() is None and line.came_back())
        assert not line.came_back(), "it is said once"
        assert not line.ended()
        assert line.flush(0.0)
        line.close()


def test_without_a_connection_it_closes_at_once(routed: Routed) -> None:
    nowhere = replace(routed[1], endpoint="tcp://127.0.0.1:1")
    line = DealerLine(nowhere, NAME, watched=True)
    line.send([b"hello"])
    line.close()


def test_without_keys_nobody_is_dialed() -> None:
    with pytest.raises(Unavailable, match="has no keys"):
        DealerLine(Connection("tcp://127.0.0.1:1"), NAME)


def test_endpoint_may_be_of_the_sixth_version() -> None:
    here = Connection("tcp://[::1]:1", server_key=KEY, client_public=KEY, client_secret=KEY)
    line = DealerLine(here, NAME, watched=True)  # it closes at once without a connection
    assert line._socket.get(zmq.IPV6) == 1
    line.close()


def test_a_first_connection_is_told_to_who_watches_however_late_it_looks(routed: Routed) -> None:
    router, connection = routed
    router.set(zmq.ROUTER_MANDATORY, 1)
    line = DealerLine(connection, NAME, watched=True)

    def is_connected() -> bool:
        try:
            router.send_multipart([NAME.encode(), b"hello"])
        except zmq.ZMQError:
            return False
        return True

    wait_until(is_connected)
    monitor = line._monitor
    assert monitor is not None
    assert monitor.poll(int(1000 * LIMIT_S))
    assert recv_monitor_message(monitor)["event"] == zmq.Event.HANDSHAKE_SUCCEEDED
    line.close()


Pair = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A ROUTER and a DEALER that has connected as `me` and sent a message."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, connection = a_router(context)
    line = DealerLine(connection, "me", heartbeat_s=3.0)
    line.send([b"here"])
    assert router.recv_multipart() == [b"me", b"here"]
    yield router, line._socket
    line.close()
    context.destroy(linger=0)


def received(socket: zmq.Socket[bytes], small: int) -> list[Buffer]:
    found: list[list[Buffer]] = []

    def arrived() -> bool:
        frames = receive(socket, small=small)
        if frames is not None:
            found.append(frames)
        return frames is not None

    wait_until(arrived)
    return found[0]


def test_large_frames_are_not_copied_and_may_be_written_to(pair: Pair) -> None:
    router, dealer = pair
    router.send_multipart([b"me", b"head", b"one", b"two"])
    head, *large = received(dealer, small=1)
    assert type(head) is bytes
    assert [bytes(frame) for frame in (head, *large)] == [b"head", b"one", b"two"]
    assert all(isinstance(frame, memoryview) and not frame.readonly for frame in large)
    dealer.send_multipart([b"head", b"one"])
    frames = received(router, small=2)
    assert [type(frame) for frame in frames] == [bytes, bytes, memoryview]


def test_nothing_there(pair: Pair) -> None:
    assert receive(pair[1]) is None


def test_hosts_are_watched_by_heartbeats(pair: Pair) -> None:
    _, dealer = pair
    assert dealer.get(zmq.HEARTBEAT_TIMEOUT) == 3000
    assert dealer.get(zmq.HEARTBEAT_IVL) == 1000
    assert dealer.get(zmq.HEARTBEAT_TTL) == 3000
    set_heartbeat(dealer, 0.0001)  # not off, which 0 would mean
    assert dealer.get(zmq.HEARTBEAT_IVL) == 1
    assert dealer.get(zmq.HEARTBEAT_TIMEOUT) == 1
