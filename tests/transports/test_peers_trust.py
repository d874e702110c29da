"""Peers that claim to be others, or send what they may not, at the dispatcher's end."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Result, WorkerInfo
from farm.transports import peers as module
from farm.wire import messages as wire
from farm.wire.messages import Kind, Loss
from tests.support.scripted_peers import CUBE, Farm, identity_of, value

W1, W2, SUPERVISOR = "node1/1-a", "node2/2-b", "supervisor:node1/1"


async def test_nobody_joins_in_anothers_name() -> None:
    async with Farm.up() as farm:
        await farm.worker(W1)
        thief = farm.peer(W2)
        thief.name = W1
        thief.join()
        refusal = await thief.hear(Kind.REFUSED)
        assert f"'{W1}' joins as '{W2}'" in refusal.data
        assert farm.workers() == [W1]


@pytest.mark.parametrize("life", ["a", "b"], ids=["replayed", "of another life"])
async def test_who_has_the_name_of_a_living_worker_only_does_not_join(life: str) -> None:
    async with Farm.up() as farm:
        worker = await farm.worker(W1)
        waiting, task_id = await farm.sent_to(worker)
        for identity in (identity_of(W1), W1):
            thief = farm.peer(W1, identity=identity)
            thief.join(life=life)
            assert "is here already" in (await thief.hear(Kind.REFUSED)).data
            thief.settle(task_id, 666.0)
            await thief.hear(Kind.JOIN_AGAIN)
            thief.say(Kind.RESIZE, 100)
            await thief.hear(Kind.JOIN_AGAIN)
        assert farm.slots() == [1]
        worker.settle(task_id)
        assert value(await waiting) == 8.0
        assert farm.events("joined", "left", "lost") == ["cube"]


async def test_a_client_is_no_worker_and_no_supervisor_whatever_it_sends() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker(W1)
        waiting, task_id = await farm.sent_to(worker)
        for identity in (worker.identity, W1, "client:" + W1, SUPERVISOR):
            client = farm.peer("client:x", identity=identity)
            for frames in (
                wire.encode_join("a", WorkerInfo(W1, (CUBE,))),
                wire.encode_answers([(task_id, Result((np.array([666.0]),)))]),
                wire.encode_loss(Loss(W1, "gone", [task_id])),
                wire.encode(Kind.RESIZE, 0),
                wire.encode(Kind.RECALLED, [task_id]),
                wire.encode(Kind.MISSING, [task_id]),
            ):
                client.send(frames)
                said = await client.hear(Kind.REFUSED, Kind.WELCOME)
                if said.kind is Kind.WELCOME:  # to whoever is new
                    said = await client.hear(Kind.REFUSED)
                assert "a client does not send" in said.data
                is_join = wire.decode(frames).kind is Kind.JOIN
                assert said.data.endswith("with workers.json") == is_join
            client.say(Kind.LEAVE)
        worker.settle(task_id)
        assert value(await waiting) == 8.0
        assert farm.workers() == [W1]
        assert farm.events("joined", "left", "lost") == ["cube"]


async def test_refused_messages_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Farm.up() as farm:
        client = farm.peer("client:x")
        for _ in range(10 * module.WARNINGS):
            client.say(Kind.RESIZE, 1)
        for _ in range(10 * module.WARNINGS):
            while (await client.hear(Kind.REFUSED, Kind.WELCOME)).kind is Kind.WELCOME:
                pass
        assert len(caplog.messages) == module.WARNINGS + 1
        monkeypatch.setattr(module, "WARN_AGAIN_S", -1.0)  # later on
        client.say(Kind.RESIZE, 1)
        await client.hear(Kind.REFUSED)
        assert len(caplog.messages) == module.WARNINGS + 2
