"""The native client's end: at a scripted dispatcher, and at a real one with real workers."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import EMPTY_CONFIG, NO_HINTS, Call, Hints, Operation, Result, canonical_config
from farm.client import native_end
from farm.client.line import as_it_is, submit
from farm.client.native_end import BYTES_A_MESSAGE, CALLS_A_MESSAGE
from farm.client.native_line import NativeLine
from farm.errors import Cancelled, InvalidInput, InvalidRequest, Unavailable
from farm.transports.connection import read_connection, read_worker_connection
from farm.transports.keys import Keys, new_keys
from farm.wire import bounds as wire_bounds
from farm.wire import messages as wire
from farm.wire.messages import Kind
from tests.support import host_process
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.proxy import Proxy
from tests.support.running_farm import Farm
from tests.support.scripted_lines import Inbox, cube_calls
from tests.support.scripted_peers import CUBE, Desk, value
from tests.support.time_limits import scaled

HINTS = Hints("me", 2, 60.0)


@pytest.fixture
def line(desk: Desk) -> Iterator[NativeLine]:
    line = NativeLine(desk.connection)
    yield line
    line.close()


def call(x: float, model: str = "cube", config: str = EMPTY_CONFIG) -> Call:
    return Call(model, Operation.EVALUATE, (np.array([x]),), config)


def send(
    line: NativeLine, x: float, model: str = "cube", hints: Hints = NO_HINTS
) -> Future[Result]:
    return submit(line, call(x, model), hints, as_it_is)


def calls_heard(desk: Desk, kind: Kind = Kind.CALLS) -> tuple[Hints | None, dict[int, Call]]:
    hints, calls = wire.decode_calls(desk.hear(kind, skip=True))
    return hints, {i: one for i, one in calls if isinstance(one, Call)}


def heard(desk: Desk, count: int = 1, kind: Kind = Kind.CALLS) -> dict[int, Call]:
    """Return the next calls, at least so many, by their ids."""
    calls: dict[int, Call] = {}
    while len(calls) < count:
        calls |= calls_heard(desk, kind)[1]
    return calls


def double(desk: Desk, calls: dict[int, Call]) -> None:
    """Answer these calls with twice their numbers."""
    outcomes = [
        (i, Result((2.0 * one.inputs[0],), 0.25, worker="w", queue_time_s=0.5))
        for i, one in calls.items()
    ]
    desk.send(wire.encode_answers(outcomes))


# At a scripted dispatcher


def test_a_call_goes_there_and_its_answer_back(desk: Desk, line: NativeLine) -> None:
    future = send(line, 3.0, hints=HINTS)
    hints, calls = calls_heard(desk)
    assert hints == HINTS
    (one,) = calls.values()
    assert (one.model, one.operation, one.config) == ("cube", "evaluate", "{}")
    assert one.inputs[0].tolist() == [3.0]
    assert not future.done()
    double(desk, calls)
    result = future.result(LIMIT_S)
    assert result.outputs[0].tolist() == [6.0]
    assert (result.run_time_s, result.worker, result.queue_time_s) == (0.25, "w", 0.5)


def test_its_routing_id_says_who_it_is(desk: Desk, line: NativeLine) -> None:
    send(line, 1.0)
    calls_heard(desk)
    assert desk.peer.startswith(b"client:")
    assert f" {os.getpid()}-".encode() in desk.peer


def test_calls_sent_together_travel_together(desk: Desk, line: NativeLine) -> None:
    inbox = Inbox()
    line.send(list(enumerate(cube_calls(100))), NO_HINTS, inbox)
    _, calls = calls_heard(desk)
    assert len(calls) == 100
    assert [one.inputs[0][0] for one in calls.values()] == list(range(100))
    double(desk, dict(reversed(calls.items())))
    wait_until(lambda: len(inbox.outcomes) == 100)
    assert [value(inbox.outcomes[k]) for k in range(100)] == [2.0 * k for k in range(100)]
    assert inbox.flushes == 1


def test_calls_submitted_one_by_one_share_messages(desk: Desk, line: NativeLine) -> None:
    count = 2 * CALLS_A_MESSAGE
    futures = [send(line, float(k)) for k in range(count)]
    messages, calls = 0, dict[int, Call]()
    while len(calls) < count:
        calls |= heard(desk)
        messages += 1
    assert messages < count / 4
    double(desk, calls)
    assert [value(f.result(LIMIT_S)) for f in futures] == [2.0 * k for k in range(count)]


@pytest.mark.parametrize("by_config", [False, True])
def test_many_bytes_travel_in_several_messages(
    desk: Desk, line: NativeLine, by_config: bool
) -> None:
    size = BYTES_A_MESSAGE // 8
    calls = [
        call(float(k), config='{"a":"' + k % 2 * "b" + size * "a" + '"}')
        if by_config
        else Call("cube", Operation.EVALUATE, (np.full(size // 8, float(k)),))
        for k in range(20)
    ]
    line.send(list(enumerate(calls)), NO_HINTS, Inbox())
    for kind in (Kind.CALLS, Kind.CALLS_AGAIN):
        said: dict[int, Call] = {}
        while len(said) < 20:
            some = heard(desk, kind=kind)
            assert len(some) <= 8
            said |= some
        assert [one.inputs[0][0] for one in said.values()] == list(range(20))
        for number in (5, 6):
            desk.say(Kind.WELCOME, number)


def test_calls_with_the_longest_configs_are_within_a_messages_bounds(
    desk: Desk, line: NativeLine
) -> None:
    """A quote within a text within JSON takes four bytes."""
    configs = [canonical_config({"a": '"' * 499_000, "k": k}) for k in range(8)]
    calls = [call(float(k), config=config) for k, config in enumerate(configs)]
    line.send(list(enumerate(calls)), NO_HINTS, Inbox())
    said: list[str] = []
    while len(said) < 8:
        message = desk.hear(Kind.CALLS)
        wire_bounds.check(message.frames[0])
        said += [one.config for _, one in wire.decode_calls(message)[1] if isinstance(one, Call)]
    assert said == configs


def test_each_message_has_one_set_of_hints(desk: Desk, line: NativeLine) -> None:
    for k, hints in enumerate((NO_HINTS, HINTS, NO_HINTS)):
        send(line, float(k), hints=hints)
    said = [calls_heard(desk)[0] for _ in range(3)]
    assert said == [NO_HINTS, HINTS, NO_HINTS]


def test_a_cancelled_call_is_taken_back(desk: Desk, line: NativeLine) -> None:
    kept, future = send(line, 1.0), send(line, 2.0)
    calls = heard(desk, 2)
    _, second = calls
    assert future.cancel()
    assert wire.decode_ids(desk.hear(Kind.CANCEL)) == [second]
    assert wait_for([future], timeout=LIMIT_S).done
    double(desk, dict(reversed(calls.items())))
    assert value(kept.result(LIMIT_S)) == 2.0
    assert not kept.cancel()
    assert future.cancelled()


def test_very_many_calls_are_taken_back_in_several_messages(
    desk: Desk, line: NativeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_end, "IDS_A_MESSAGE", 3)
    ids = line.send(list(enumerate(cube_calls(8))), NO_HINTS, Inbox())
    desk.hear(Kind.CALLS)
    line.cancel(ids)
    messages = [wire.decode_ids(desk.hear(Kind.CANCEL)) for _ in range(3)]
    assert list(map(len, messages)) == [3, 3, 2]
    assert sorted(chain.from_iterable(messages)) == sorted(ids)


def test_a_call_that_cannot_travel_fails_alone(desk: Desk, line: NativeLine) -> None:
    inbox = Inbox()
    calls = [*cube_calls(2), Call("cube", Operation.EVALUATE, (np.array([object()]),))]
    line.send(list(enumerate(calls)), NO_HINTS, inbox)
    wait_until(lambda: 2 in inbox.outcomes)
    error = inbox.outcomes[2]
    assert isinstance(error, InvalidInput)
    assert "cannot be sent: arrays of object are not supported" in error.message
    heard(desk, 2)


def test_models_and_status_are_asked_for(desk: Desk, line: NativeLine) -> None:
    def tell() -> None:
        for _ in range(2):
            asked = desk.hear(Kind.ASK).data
            told = [CUBE.to_json()] if asked["what"] == "models" else {"done": 7}
            desk.say(Kind.TELL, {"id": asked["id"], asked["what"]: told})

    teller = threading.Thread(target=tell)
    teller.start()
    assert line.describe("cube", EMPTY_CONFIG) == CUBE
    assert line.status() == {"done": 7}
    teller.join()


def test_a_question_without_an_answer_has_a_limit(desk: Desk) -> None:
    line = NativeLine(desk.connection, answer_s=0.1)
    with pytest.raises(Unavailable, match=r"within 0\.1 s; is it running"):
        line.names()
    line.close()


def test_silence_is_asked_about_and_then_given_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_end, "ASK_AFTER_SILENCE_S", 0.1)
    monkeypatch.setattr(native_end, "TICK_S", 0.02)
    line = NativeLine(desk.connection, patience_s=1.0)
    future = send(line, 1.0)
    desk.hear(Kind.CALLS)
    desk.hear(Kind.PROBE)
    error = future.exception(LIMIT_S)
    assert isinstance(error, Unavailable)
    assert f"no word from the farm at {desk.connection.address()} for 1 s" in error.message
    desk.hear(Kind.CANCEL, skip=True)  # the call must not run if this CANCEL is read
    line.close()


def test_with_a_new_number_open_calls_are_said_again(desk: Desk, line: NativeLine) -> None:
    answered, taken, kept = send(line, 1.0), send(line, 2.0), send(line, 3.0, hints=HINTS)
    calls = heard(desk, 3)
    first, _, third = calls
    desk.say(Kind.WELCOME, 5)
    double(desk, {first: calls[first]})
    answered.result(LIMIT_S)
    taken.cancel()
    desk.say(Kind.WELCOME, 5)
    assert desk.hear(Kind.CANCEL)
    assert desk.silent()
    desk.say(Kind.WELCOME, 6)
    hints, again = calls_heard(desk, Kind.CALLS_AGAIN)
    assert list(again) == [third]
    assert hints is not None
    assert (hints.client, hints.priority) == (HINTS.client, HINTS.priority)
    assert hints.deadline_s is not None
    assert 0 < hints.deadline_s < 60.0  # the rest of the time
    for _ in range(2):
        double(desk, again)
    assert value(kept.result(LIMIT_S)) == 6.0


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (wire.encode(Kind.REFUSED, "this farm speaks version 2"), "this farm speaks version 2"),
        ([b"\x09garbage-"], "wire version 9"),
    ],
    ids=["a refusal", "garbage"],
)
def test_a_refusal_and_what_cannot_be_read_fail_what_is_open(
    desk: Desk, line: NativeLine, said: list[Any], text: str
) -> None:
    future = send(line, 1.0)
    desk.hear(Kind.CALLS)
    desk.send(said)
    error = future.exception(LIMIT_S)
    assert isinstance(error, InvalidRequest)
    assert text in error.message
    late = send(line, 2.0)  # and the line still works
    double(desk, heard(desk))
    assert value(late.result(LIMIT_S)) == 4.0


def test_closing_says_goodbye_and_cancels(desk: Desk, line: NativeLine) -> None:
    future = send(line, 1.0)
    desk.hear(Kind.CALLS)
    line.close()
    assert isinstance(future.exception(0), Cancelled)
    desk.hear(Kind.LEAVE)
    with pytest.raises(Unavailable, match="is closed"):
        send(line, 2.0)
    with pytest.raises(Unavailable, match="is closed"):
        line.names()
    line.close()


@pytest.mark.slow
def test_a_dropped_line_closes(desk: Desk) -> None:
    line = NativeLine(desk.connection)
    thread = weakref.ref(line._end._thread)  # type: ignore[union-attr]  # opened
    future = send(line, 1.0)
    del line
    gc.collect()
    double(desk, heard(desk))
    assert value(future.result(LIMIT_S)) == 2.0  # a future keeps its line
    del future
    gc.collect()
    desk.hear(Kind.LEAVE)
    wait_until(lambda: thread() is None or not thread().is_alive())  # type: ignore[union-attr]  # just asked


CARELESS = """
import json, sys, time
import numpy as np
from farm.call import NO_HINTS, Call, Operation
from farm.transports.connection import Connection
from farm.client.line import as_it_is, submit
from farm.client.native_line import NativeLine

line = NativeLine(Connection(**json.loads(sys.argv[1])))
future = submit(line, Call("cube", Operation.EVALUATE, (np.ones(1),)), NO_HINTS, as_it_is)
# With ZeroMQ it would be gone before anything could be sent.
while not getattr(line._end._line, "_connected", True):
    time.sleep(0.01)
"""


def test_a_program_ends_though_it_closed_nothing(desk: Desk) -> None:
    run_program(CARELESS, json.dumps(asdict(desk.connection)))
    desk.hear(Kind.CALLS)
    desk.hear(Kind.LEAVE)


def run_program(text: str, *arguments: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", text, *arguments]
    subprocess.run(command, check=True, timeout=LIMIT_S)


# At a real dispatcher


@pytest.fixture
def farm(wire: str, tmp_path: Path) -> Iterator[Farm]:
    with running(tmp_path) as farm:
        yield farm


@contextmanager
def running(folder: Path, keys: Keys | None = None) -> Iterator[Farm]:
    folder.mkdir(exist_ok=True)
    farm = Farm(folder, keys=keys)
    try:
        yield farm
    finally:
        farm.close()


def queued(farm: Farm) -> int:
    return sum(queue["queued"] for queue in farm.snapshot()["queues"])


@pytest.fixture
def worker(farm: Farm) -> Iterator[subprocess.Popen[bytes]]:
    with at_work(farm) as process:
        yield process


@contextmanager
def at_work(farm: Farm, name: str = "node/1-a") -> Iterator[subprocess.Popen[bytes]]:
    process = host_process.start(read_worker_connection(farm.connect), name)
    try:
        wait_until(lambda: name in [row["name"] for row in farm.snapshot()["workers"]])
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_cut_connection_loses_nothing(farm: Farm, worker: object) -> None:
    with Proxy(read_connection(farm.connect)) as proxy:
        line = NativeLine(proxy.connection)
        futures = []
        for k in range(2000):
            futures.append(send(line, float(k)))
            if k % 500 == 250:
                wait_until(futures[k - 100].done)
                proxy.cut()
        assert [value(f.result(LIMIT_S)) for f in futures] == [float(k) ** 3 for k in range(2000)]
        assert proxy.accepted > 1
        line.close()


def test_calls_and_answers_lost_on_the_way_are_asked_for_again(farm: Farm, worker: object) -> None:
    with Proxy(read_connection(farm.connect)) as proxy:
        line = NativeLine(proxy.connection)
        assert value(send(line, 2.0).result(LIMIT_S)) == 8.0
        slow_s = scaled(0.4)
        slow = send(line, slow_s, "sleep")
        wait_until(lambda: farm.snapshot()["workers"][0]["in_flight"])
        proxy.swallow()
        lost = [send(line, float(k)) for k in range(10)]
        wait_until(lambda: farm.snapshot()["done"] == 2)  # the answer to the slow one is lost
        assert not any(f.done() for f in [slow, *lost])
        proxy.cut()
        assert value(slow.result(LIMIT_S)) == slow_s
        assert [value(f.result(LIMIT_S)) for f in lost] == [float(k) ** 3 for k in range(10)]
        line.close()


@pytest.mark.usefixtures("wire")
def test_another_life_of_the_farm_gets_the_open_calls(tmp_path: Path) -> None:
    keys = new_keys()
    with running(tmp_path / "1", keys) as first, Proxy(read_connection(first.connect)) as proxy:
        line = NativeLine(proxy.connection)
        with at_work(first):
            assert value(send(line, 2.0).result(LIMIT_S)) == 8.0
            open_call = send(line, 600.0, "sleep")
            wait_until(lambda: first.snapshot()["workers"][0]["in_flight"])
            open_call.cancel()
            futures = [send(line, float(k)) for k in range(10)]  # behind the long one
            wait_until(lambda: queued(first) == 10)
        with running(tmp_path / "2", keys) as second, at_work(second):
            proxy.target(read_connection(second.connect))
            proxy.cut()
            assert [value(f.result(LIMIT_S)) for f in futures] == [k**3.0 for k in range(10)]
        line.close()


FORKER = """
import gc, os, sys
import numpy as np
from farm.call import NO_HINTS, Call, Operation
from farm.transports.connection import read_connection
from farm.client.line import as_it_is, submit, waited_for
from farm.client.native_line import NativeLine

def ask(line, model, x):
    call = Call(model, Operation.EVALUATE, (np.array([x]),))
    return submit(line, call, NO_HINTS, as_it_is)

def cubed(x):
    # The second of two such calls takes the line of the client's thread, or waits for it.
    call = Call("cube", Operation.EVALUATE, (np.array([x]),))
    return waited_for(line, call, NO_HINTS, as_it_is).outputs[0][0]

closed = [NativeLine(read_connection(sys.argv[1])) for _ in range(3)]
for each in closed:
    each.close()
line = NativeLine(read_connection(sys.argv[1]))
assert "cube" in line.names()
assert [cubed(2.0), cubed(3.0)] == [8.0, 27.0]
left = ask(line, "sleep", 1.0)
if os.fork() == 0:
    own = ask(line, "sleep", 0.1)
    left.cancel()  # it is the parent's, so nothing is cancelled
    assert own.result().outputs[0][0] == 0.1
    assert ask(line, "cube", 2.0).result().outputs[0][0] == 8.0
    assert "cube" in line.names()
    assert [cubed(2.0), cubed(3.0)] == [8.0, 27.0]
    if os.fork() == 0:
        assert ask(line, "cube", 3.0).result().outputs[0][0] == 27.0
        line.close()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    del line, left
    gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert left.result().outputs[0][0] == 1.0
assert ask(line, "cube", 4.0).result().outputs[0][0] == 64.0
"""


@pytest.mark.slow
def test_a_forked_process_has_a_line_of_its_own(farm: Farm, worker: object) -> None:
    run_program(FORKER, str(farm.connect))
    assert farm.snapshot()["done"] == 9


ORPHAN = """
import os, signal, sys
import numpy as np
from farm.call import NO_HINTS, Call, Operation
from farm.transports.connection import read_connection
from farm.client.line import as_it_is, submit
from farm.client.native_line import NativeLine

line = NativeLine(read_connection(sys.argv[1]))
call = Call("sleep", Operation.EVALUATE, (np.array([600.0]),))
calls = [submit(line, call, NO_HINTS, as_it_is) for _ in range(5)]
if os.fork() == 0:
    print("forked", flush=True)
    signal.pause()
signal.pause()
"""


def test_a_child_does_not_keep_the_calls_of_a_killed_parent(tmp_path: Path) -> None:
    with running(tmp_path) as farm, at_work(farm):
        command = [sys.executable, "-W", "ignore", "-c", ORPHAN, str(farm.connect)]
        parent = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "forked\n"
            wait_until(lambda: queued(farm) == 4)
            parent.kill()
            wait_until(lambda: queued(farm) == 0)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
            parent.communicate()
