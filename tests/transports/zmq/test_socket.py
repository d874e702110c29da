"""Connecting and receiving."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from farm.call import Buffer
from farm.errors import Unavailable
from farm.transports.connection import Connection
from farm.transports.zmq.socket import dial, receive, set_heartbeat
from tests.support.coroutines import LIMIT_S, wait_until
from tests.transports.peers import a_router

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
"""A key of CurveZMQ's specification (ZMQ RFC 32)."""

Pair = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A ROUTER and a DEALER that has connected as `me` and sent a message."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, connection = a_router(context)
    dealer = dial(context, connection, "me", heartbeat_s=3.0)
    dealer.send(b"here")
    assert router.recv_multipart() == [b"me", b"here"]
    yield router, dealer
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


def test_without_keys_nobody_is_dialed() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with pytest.raises(Unavailable, match="has no keys"):
        dial(context, Connection("tcp://127.0.0.1:1"), "me")
    assert context.closed


def test_endpoint_may_be_of_the_sixth_version() -> None:
    here = Connection("tcp://[::1]:1", server_key=KEY, client_public=KEY, client_secret=KEY)
    with zmq.Context() as context, dial(context, here, "me") as dealer:
        assert dealer.get(zmq.IPV6) == 1
        dealer.set(zmq.LINGER, 0)


def test_a_first_connection_is_told_to_who_watches_however_late_it_looks() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, connection = a_router(context)
    with context, router:
        router.set(zmq.ROUTER_MANDATORY, 1)
        with dial(context, connection, "me", watch=zmq.Event.HANDSHAKE_SUCCEEDED) as dealer:
            dealer.set(zmq.LINGER, 0)

            def is_connected() -> bool:
                try:
                    router.send_multipart([b"me", b"hello"])
                except zmq.ZMQError:
                    return False
                return True

            wait_until(is_connected)
            assert dealer.poll(int(1000 * LIMIT_S))
            with dealer.get_monitor_socket() as monitor:
                assert monitor.poll(int(1000 * LIMIT_S))
                event = recv_monitor_message(monitor)["event"]
            dealer.disable_monitor()
    assert event == zmq.Event.HANDSHAKE_SUCCEEDED
