"""Drains and restarts of workers at a farm's dispatcher, with a scripted worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.call import WorkerInfo
from farm.errors import InvalidInput, Unavailable, UnsupportedFeature
from farm.server.lifecycle import NamedWorkers
from farm.transports.threads import LocalTransport
from farm.wire import messages as wire
from farm.wire.messages import Kind
from tests.support.coroutines import on_loop, until
from tests.transports.peers import CUBE, Farm

W = "node1/1-a"


class Local(Farm):
    """A farm at a unix socket in the folder of the test."""


async def joined(farm: Farm, **labels: str) -> None:
    peer = farm.peer(W)
    peer.send(wire.encode_join("a", WorkerInfo(W, (CUBE,), labels=labels)))
    await peer.hear(Kind.WELCOME)


@on_loop
async def test_a_worker_is_drained(tmp_path: Path) -> None:
    Local.folder = tmp_path
    async with Local.up() as farm:
        NamedWorkers(farm.dispatcher, farm.transport, tmp_path)
        await joined(farm)
        assert await farm.dispatcher.questions.ask("drain", {"worker": "node1"}) == {"draining": W}
        await farm.peers[0].hear(Kind.STOP)
        assert farm.events("drain") == ["the owner asks it to leave"]
        with pytest.raises(InvalidInput, match="has no worker"):
            await farm.dispatcher.questions.ask("drain", {"worker": "node2"})


@on_loop
async def test_a_worker_is_restarted_by_its_supervisor(tmp_path: Path) -> None:
    Local.folder = tmp_path
    async with Local.up() as farm:
        NamedWorkers(farm.dispatcher, farm.transport, tmp_path)
        await joined(farm, supervisor="node1/7")
        restart = {"worker": W}
        with pytest.raises(Unavailable, match=r"supervisor node1/7 .* is not connected"):
            await farm.dispatcher.questions.ask("restart", restart)
        supervisor = farm.peer("supervisor:node1/7")
        supervisor.say(Kind.LOST)
        await until(lambda: farm.transport._supervisors)
        assert await farm.dispatcher.questions.ask("restart", restart) == {"restarting": W}
        assert (await supervisor.hear(Kind.RESTART)).data == [W]


@on_loop
async def test_what_farm_cannot_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    Local.folder = tmp_path
    async with Local.up() as farm:
        NamedWorkers(farm.dispatcher, farm.transport, tmp_path)
        await joined(farm)
        with pytest.raises(UnsupportedFeature, match="no supervisor that starts it again"):
            await farm.dispatcher.questions.ask("restart", {"worker": W})
        thread = WorkerInfo("thread", (CUBE,))
        farm.dispatcher.worker_joined(thread, LocalTransport({}))
        with pytest.raises(UnsupportedFeature, match="a thread of the front door"):
            await farm.dispatcher.questions.ask("drain", {"worker": "thread"})


@on_loop
async def test_both_are_for_the_owner_only(tmp_path: Path) -> None:
    Local.folder = tmp_path
    async with Local.up() as farm:
        NamedWorkers(farm.dispatcher, farm.transport, tmp_path)
        changes = farm.dispatcher.questions.changes
        assert [changes(name) for name in ("drain", "restart", "log", "logs")] == [
            True,
            True,
            False,
            False,
        ]
