"""A DEALER as a line: readable when it should be, and reports that it was broken."""

from __future__ import annotations

import select
from collections.abc import Iterator
from dataclasses import replace

import pytest
import zmq

from farm.transports.connection import Connection
from farm.transports.zmq.line import DealerLine
from tests.support.coroutines import LIMIT_S, wait_until
from tests.transports.peers import a_router
from tests.transports.proxy import Proxy

NAME = "node/1-a"


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
    returns: list[None] = []
    with Proxy(connection) as proxy:
        line = DealerLine(proxy.connection, NAME, on_return=lambda: returns.append(None))
        line.send([b"hello"])
        router.recv_multipart()
        assert line.receive() is None
        assert returns == []
        proxy.cut()
        wait_until(lambda: line.receive() is None and returns)
        assert not line.ended()
        assert line.flush(0.0)
        line.close()


def test_without_a_connection_it_closes_at_once(routed: Routed) -> None:
    nowhere = replace(routed[1], endpoint="tcp://127.0.0.1:1")
    line = DealerLine(nowhere, NAME, on_return=lambda: None)
    line.send([b"hello"])
    line.close()
