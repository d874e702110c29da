"""A dispatcher that was suspended, and peers that lost their connections meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Call, Operation
from farm.transports import native_client
from farm.transports import peers as module
from farm.transports.zmq import listener as zmq
from farm.wire import messages as wire
from farm.wire.messages import Kind
from tests.support.coroutines import until
from tests.support.scripted_peers import Farm, value

W1, W2 = "node1/1-a", "node2/2-b"


async def turns(farm: Farm, count: int) -> None:
    """Let the listener probe `count` times."""
    begin = farm.router._turn
    await until(lambda: farm.router._turn >= begin + count)


async def test_workers_may_come_back_to_a_dispatcher_that_did_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zmq, "PROBE_EVERY_S", 0.02)
    monkeypatch.setattr(module, "SUPERVISOR_GRACE_S", 0.01)
    monkeypatch.setattr(module, "BACK_WITHIN_S", 1000.0)
    async with Farm.up(retries=0) as farm:
        worker = await farm.worker(W1)
        waiting, task_id = await farm.sent_to(worker)
        farm.transport.was_away()
        worker.close()
        await until(lambda: farm.slots() == [0])
        await turns(farm, 10)
        again = farm.peer(W1, identity=worker.identity)
        again.settle(task_id)
        assert value(await waiting) == 8.0
        await until(lambda: farm.slots() == [1])
        assert farm.events("lost") == []


async def test_who_does_not_come_back_is_given_up_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACK_WITHIN_S", 0.5)
    async with Farm.up() as farm:
        gone = await farm.worker(W1)
        farm.transport.was_away()
        gone.close()
        await until(lambda: not farm.workers())
        assert farm.events("lost") == ["its connection was lost"]


async def test_clients_may_come_back_to_a_dispatcher_that_did_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zmq, "PROBE_EVERY_S", 0.02)
    monkeypatch.setattr(native_client, "PATIENCE_PROBES", 1)
    monkeypatch.setattr(module, "BACK_WITHIN_S", 1000.0)
    async with Farm.up() as farm:
        worker, client = await farm.worker(W1), farm.peer("client:x")
        call = Call("cube", Operation.EVALUATE, (np.array([2.0]),))
        client.send(wire.encode_calls([(1, call)]))
        await client.hear(Kind.WELCOME)
        ((task_id, _),) = await worker.hear_calls()
        farm.transport.was_away()
        client.close()
        await until(lambda: not farm.put(client, Kind.PROBE))
        await turns(farm, 3 * zmq.IDLE_PROBE_TURNS)
        worker.settle(task_id)
        again = farm.peer("client:x")
        again.say(Kind.PROBE)
        while (said := await again.hear(Kind.ANSWERS, Kind.WELCOME)).kind is Kind.WELCOME:
            pass  # still known
        ((call_id, outcome),) = wire.decode_answers(said)
        assert (call_id, value(outcome)) == (1, 8.0)


async def test_a_listener_that_is_late_by_half_a_heartbeat_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Farm.up(heartbeat_s=3.0) as farm:
        away: list[bool] = []
        monkeypatch.setattr(farm.transport, "was_away", lambda: away.append(True))
        monkeypatch.setattr(farm.router, "_probed_at", farm.router._loop.time() - 1.2)
        farm.router._probe()
        assert away == []
        monkeypatch.setattr(farm.router, "_probed_at", farm.router._loop.time() - 1.6)
        farm.router._probe()
        assert away == [True]


async def test_probes_of_many_workers_are_sent_a_few_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROBES_AT_ONCE", 2)
    monkeypatch.setattr(zmq, "PROBE_EVERY_S", 1000.0)  # the test probes
    async with Farm.up() as farm:
        workers = [await farm.worker(f"node{number}/1-a") for number in range(5)]
        assert farm.transport.probe(all_of_them=False)  # none is busy
        done = [farm.transport.probe(all_of_them=True) for _ in range(2)]
        leaver = workers.pop()
        leaver.close()
        await until(lambda: farm.transport.probe(all_of_them=True) and len(farm.workers()) == 4)
        assert done == [False, False]
        for worker in workers:
            assert (await worker.hear(Kind.PROBE)).data is None
