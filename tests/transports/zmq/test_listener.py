"""The ROUTER, with scripted peers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

import farm as public
from farm.call import WorkerInfo
from farm.errors import Unavailable, WorkerLost
from farm.transports.identity import worker_identity
from farm.transports.keys import new_keys
from farm.transports.zmq import listener as module
from farm.transports.zmq.listener import ZmqListener
from farm.wire import messages as wire
from farm.wire.messages import Kind
from farm.worker.host.host import WorkerHost
from farm.worker.runner import Runner
from tests.support.coroutines import LIMIT_S, until
from tests.support.scripted_peers import CUBE, Farm, Peer, value

W1, W2, SUPERVISOR = "node1/1-a", "node2/2-b", "supervisor:node1/1"


# The socket


async def test_message_that_came_while_another_was_sent_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The descriptor signals a message once; any query of the socket may consume the signal."""
    monkeypatch.setattr(module, "PROBE_EVERY_S", 1000.0)
    async with Farm.up() as farm:
        worker, client = await farm.worker(), farm.peer("client:x")
        client.say(Kind.PROBE)
        await client.hear(Kind.WELCOME)
        await client.hear(Kind.WELCOME)
        for reachable in (True, False):
            client.say(Kind.PROBE)
            # Without an iteration of the loop: until it has arrived, and the edge is consumed.
            end = time.monotonic() + LIMIT_S
            clients, _ = farm.router._routers
            while not int(clients.socket.get(zmq.EVENTS)) & zmq.POLLIN:
                assert time.monotonic() < end
            name = client.identity.encode() if reachable else b"x"
            assert clients.put(name, wire.encode(Kind.PROBE)) is reachable
            await client.hear(Kind.WELCOME)
        assert worker


async def test_frame_above_the_limit_ends_in_an_error_and_not_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LARGEST_FRAME", 100_000)

    @public.model(inputs={"x": 1}, outputs={"y": 100_000})
    def large(x: Any) -> Any:
        return np.full(100_000, x)

    async with Farm.up(retries=0) as farm:
        runner = Runner({"large": large})
        info = WorkerInfo(W1, runner.models())
        host = WorkerHost(runner, farm.for_workers, info)
        thread = threading.Thread(target=host.run)
        thread.start()
        await until(farm.workers)
        with pytest.raises(WorkerLost, match="lost on the way"):
            await farm.submit(model="large")
        host.drain()
        await until(lambda: not thread.is_alive())


# Addresses and keys


def test_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        where = f"cannot listen on 127.0.0.1:{port}: Address already in use"
        with pytest.raises(Unavailable, match=where):
            ZmqListener(clients_port=port)
        with pytest.raises(Unavailable, match=where):
            ZmqListener(workers_port=port)


FAILED = zmq.Event.HANDSHAKE_FAILED_AUTH | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
FAILED |= zmq.Event.HANDSHAKE_FAILED_NO_DETAIL


class WithoutKeys:
    """A peer without encryption, like one that only knows the port."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.ROUTING_ID, worker_identity(W2).encode())
        self._socket.connect(endpoint)

    def join(self) -> None:
        self._socket.send_multipart(wire.encode_join("a", WorkerInfo(W2, (CUBE,))))

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.mark.parametrize("door", ["clients", "workers"])
async def test_wrong_keys_never_get_in(door: str) -> None:
    async with Farm.up() as farm:
        clients, workers = farm.for_clients, farm.for_workers
        right, wrong = (clients, workers) if door == "clients" else (workers, clients)
        other = new_keys()
        strangers = replace(
            right, client_public=other.clients.public, client_secret=other.clients.secret
        )
        intruders: list[Callable[[], Peer | WithoutKeys]] = [
            lambda: WithoutKeys(right.endpoint),
            lambda: Peer(replace(wrong, endpoint=right.endpoint), W2),
            lambda: Peer(replace(right, client_secret=wrong.client_secret), W2),
            lambda: Peer(strangers, W2),
            lambda: Peer(replace(right, server_key=other.server.public), W2),
        ]
        router = farm.router._routers[door == "workers"]
        monitor = router.socket.get_monitor_socket(FAILED)
        try:
            for intruder in intruders:
                peer = intruder()
                peer.join()
                await until(lambda: monitor.poll(0))
                peer.close()
                while monitor.poll(0):
                    recv_monitor_message(monitor)
        finally:
            router.socket.disable_monitor()
            monitor.close()
        honest = await farm.worker(W1)
        assert farm.workers() == [W1]
        assert value(await farm.served_by(honest)) == 8.0
