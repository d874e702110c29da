"""The worker's end, at a scripted dispatcher."""

from __future__ import annotations

import math
import os
import queue
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

import farm
from farm.call import Call, Operation, Result, WorkerInfo
from farm.declared import Tensors
from farm.errors import InvalidInput, InvalidRequest, ModelFailed, Unavailable
from farm.model import Config, Inputs
from farm.sequences import SequenceStep
from farm.transports.connection import Connection
from farm.transports.identity import name_in
from farm.wire import messages as wire
from farm.wire.messages import Kind, Outcome, encode_ended
from farm.wire.usage import decode_usage
from farm.worker.host import host, line
from farm.worker.host.host import EXIT_ORPHANED, WorkerHost
from farm.worker.runner import Runner
from tests.support import host_process
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.scripted_peers import Desk, Kept, value

NAME = "node1/1-a"


class Gate(farm.Model):
    """Cubes its input; one that is not positive waits until the gate is opened."""

    inputs = {"x": 1}
    outputs = {"y": 1}

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waits = threading.Event()
        self.ran: list[float] = []
        self.on_run: Callable[[], None] = lambda: None

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        n = config.get("n", 1)
        return {"x": n}, {"y": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        x = float(inputs["x"][0])
        self.ran.append(x)
        self.on_run()
        if x <= 0.0:
            self.waits.set()
            assert self.open.wait(LIMIT_S)
        return x**3


class Running:
    """A WorkerHost in a thread, and how it ended."""

    def __init__(
        self,
        connection: Connection,
        *,
        stateful: bool = False,
        start_s: float | None = None,
        gate: Gate | None = None,
        **options: Any,
    ) -> None:
        self.gate = gate or Gate()
        self.process = Kept(start_s)
        self.noted = self.process.noted
        models: dict[str, farm.Model] = {"gate": self.gate}
        runner = Runner(models | {"counter": Counter(self.gate)} if stateful else models)
        self.host = WorkerHost(
            runner,
            connection,
            WorkerInfo(NAME, runner.models()),
            process=self.process,
            **options,
        )
        self.joined: queue.Queue[bool] = queue.Queue()
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.host.run(lambda: self.joined.put(True))
        except Exception as error:
            self.error = error

    def block(self, desk: Desk, task_id: int = 1) -> None:
        """Let it run a call that lasts until the gate is opened."""
        desk.call((task_id, cube(0.0)))
        assert self.gate.waits.wait(LIMIT_S)

    def ended(self) -> bool:
        self.thread.join(LIMIT_S)
        return not self.thread.is_alive()


def cube(x: float, config: str = "{}") -> Call:
    return Call("gate", Operation.EVALUATE, (np.array([x]),), config)


def question(config: str = "{}") -> Call:
    return Call("gate", Operation.DESCRIBE, config=config)


def heard(desk: Desk) -> None:
    """Return once the worker has heard all that was said to it; it does not know call 0."""
    desk.say(Kind.CHECK, [0])
    desk.hear(Kind.MISSING)


def answers_of(desk: Desk, count: int) -> dict[int, Outcome]:
    """The answers to so many calls, however they share messages."""
    answers: dict[int, Outcome] = {}
    while len(answers) < count:
        answers |= desk.answers()
    return answers


Start = Callable[..., Running]


@pytest.fixture
def start(desk: Desk) -> Iterator[Start]:
    started: list[Running] = []

    def start(*, welcome: bool = True, busy: bool = False, **options: Any) -> Running:
        running = Running(desk.connection, **options)
        started.append(running)
        running.thread.start()
        if welcome:
            desk.welcome()
        if busy:
            running.block(desk)
        return running

    yield start
    for running in started:
        running.gate.open.set()
        running.host.drain()
        assert running.ended()


# Joining


def test_joins_with_what_it_has_and_answers(desk: Desk, start: Start) -> None:
    start(welcome=False)
    life, info = wire.decode_join(desk.hear(Kind.JOIN))
    assert name_in(desk.peer) == info.name == NAME
    assert [model.name for model in info.models] == ["gate"]
    desk.say(Kind.WELCOME, life)
    desk.call((5, cube(2.0)))
    answers = desk.answers()
    assert value(answers[5]) == 8.0
    outcome = answers[5]
    assert isinstance(outcome, Result)
    assert 0.0 <= outcome.run_time_s <= outcome.idle_s + 10.0


def test_join_is_said_again_until_it_is_welcome_and_of_the_same_life(
    desk: Desk, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "ASK_AFTER_SILENCE_S", 0.1)
    monkeypatch.setattr(line, "LONGEST_LOOK_S", 0.05)
    start(welcome=False)
    lives = {wire.decode_join(desk.hear(Kind.JOIN))[0] for _ in range(2)}
    assert len(lives) == 1
    desk.say(Kind.WELCOME, lives.pop())
    desk.call((1, cube(2.0)))
    desk.hear(Kind.ANSWERS, skip=True)  # JOINs may be under way before it
    with pytest.raises(TimeoutError):
        desk.hear(Kind.JOIN, limit_s=0.3)


def test_it_says_once_that_a_dispatcher_has_accepted_it(desk: Desk, start: Start) -> None:
    running = start(welcome=False)
    life, _ = wire.decode_join(desk.hear(Kind.JOIN))
    assert running.joined.empty()
    desk.say(Kind.WELCOME, life)
    assert running.joined.get(timeout=LIMIT_S)
    desk.say(Kind.JOIN_AGAIN)
    life, _ = wire.decode_join(desk.hear(Kind.JOIN))
    desk.say(Kind.WELCOME, life)
    desk.call((1, cube(2.0)))
    desk.answers()
    assert running.joined.empty()


def test_calls_to_a_life_that_is_over_are_not_run(desk: Desk, start: Start) -> None:
    running = start()
    desk.say(Kind.JOIN_AGAIN)
    life, _ = wire.decode_join(desk.hear(Kind.JOIN))
    desk.call((1, cube(1.0)))
    desk.say(Kind.WELCOME, life)
    desk.call((2, cube(2.0)))
    assert list(desk.answers()) == [2]
    assert running.gate.ran == [2.0]


def test_worker_that_is_not_known_joins_once_with_a_new_life(desk: Desk, start: Start) -> None:
    start(welcome=False)
    life, _ = wire.decode_join(desk.hear(Kind.JOIN))
    desk.say(Kind.WELCOME, life)
    desk.say(Kind.JOIN_AGAIN)
    new_life, _ = wire.decode_join(desk.hear(Kind.JOIN))
    assert new_life != life
    for _ in range(2):  # replies to its messages sent while unknown
        desk.say(Kind.JOIN_AGAIN)
    desk.say(Kind.WELCOME, new_life)
    desk.call((1, cube(2.0)))
    assert value(desk.answers()[1]) == 8.0  # and no other JOIN before


def test_busy_worker_that_is_not_known_joins_when_it_is_done(desk: Desk, start: Start) -> None:
    running = start()
    desk.call((1, cube(0.0)), (2, cube(2.0)))
    assert running.gate.waits.wait(LIMIT_S)
    desk.say(Kind.JOIN_AGAIN)
    desk.say(Kind.CHECK, [2])
    desk.hear(Kind.MISSING)
    assert desk.silent()
    running.gate.open.set()
    assert list(desk.answers()) == [1]  # late, but still useful
    wire.decode_join(desk.hear(Kind.JOIN))
    assert running.gate.ran == [0.0]


@pytest.mark.parametrize("road", ["zmq"], indirect=True)  # the end of a stream would be noticed
def test_asks_whether_it_is_known_when_it_hears_nothing(
    desk: Desk, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "ASK_AFTER_SILENCE_S", 0.1)
    monkeypatch.setattr(line, "LONGEST_LOOK_S", 0.05)
    start()
    desk.hear(Kind.PROBE)
    desk.hear(Kind.PROBE)


# While a model runs


@pytest.mark.parametrize("kind", [Kind.RECALL, Kind.END_STREAM], ids=["recalled", "not needed"])
def test_a_call_is_given_back_unless_it_has_begun(desk: Desk, start: Start, kind: Kind) -> None:
    running = start(busy=True)
    desk.call((2, cube(2.0)), (3, cube(3.0)))
    desk.say(kind, [1, 2, 9])
    assert wire.decode_ids(desk.hear(Kind.RECALLED)) == [2]
    running.gate.open.set()
    assert set(answers_of(desk, 2)) == {1, 3}
    assert running.gate.ran == [0.0, 3.0]


def test_call_that_was_recalled_may_come_again(desk: Desk, start: Start) -> None:
    running = start(busy=True)
    for _ in range(3):
        desk.call((2, cube(2.0)))
        desk.say(Kind.RECALL, [2])
        assert wire.decode_ids(desk.hear(Kind.RECALLED)) == [2]
    desk.call((2, cube(2.0)))
    running.gate.open.set()
    assert set(answers_of(desk, 2)) == {1, 2}
    assert running.gate.ran == [0.0, 2.0]


def test_describes_models(desk: Desk, start: Start) -> None:
    running = start(busy=True)
    desk.call((2, question('{"n":7}')), (3, question('{"n":-2}')))
    answers = answers_of(desk, 2)
    assert set(answers) == {2, 3}
    outcome = answers[2]
    assert isinstance(outcome, Result)
    assert outcome.info is not None
    assert outcome.info.inputs[0].shape == (7,)
    assert not isinstance(answers[3], Result)
    assert not running.gate.open.is_set()


def test_names_what_it_does_not_hold(desk: Desk, start: Start) -> None:
    start(busy=True)
    desk.call((2, cube(2.0)))
    desk.say(Kind.CHECK, [1, 2, 3, 4])
    assert wire.decode_ids(desk.hear(Kind.MISSING)) == [3, 4]
    desk.say(Kind.CHECK, [1, 2])
    desk.say(Kind.RECALL, [])
    desk.hear(Kind.RECALLED)  # and no MISSING before


def test_answers_leave_before_the_word_on_what_is_missing(desk: Desk, start: Start) -> None:
    """Otherwise the dispatcher would take an answered call for lost."""
    start()
    answered: set[int] = set()
    for task_id in range(1, 500):
        desk.call((task_id, cube(1.0)))
        desk.say(Kind.CHECK, [task_id])
        while task_id not in answered:
            message = desk.hear(Kind.ANSWERS, Kind.MISSING)
            if message.kind is Kind.ANSWERS:
                answered.update(i for i, _ in wire.decode_answers(message))
            else:
                assert set(wire.decode_ids(message)) <= answered


def test_answer_does_not_wait_for_a_long_call_behind_it(desk: Desk, start: Start) -> None:
    running = start()
    desk.call(*[(i, cube(1.0)) for i in range(2, 6)], (1, cube(0.0)))
    assert set(answers_of(desk, 4)) == {2, 3, 4, 5}
    assert not running.gate.open.is_set()


def test_short_calls_share_messages(desk: Desk, start: Start) -> None:
    start()
    desk.call(*[(i, cube(1.0)) for i in range(256)])
    messages = 0
    answered: set[int] = set()
    while len(answered) < 256:
        answered |= desk.answers().keys()
        messages += 1
    assert messages < 128


def test_supervisor_is_told_what_runs(desk: Desk, start: Start) -> None:
    running = start()
    desk.call((1, cube(1.0)), (2, cube(2.0)))
    answers_of(desk, 2)
    wait_until(lambda: running.noted == [[1], [2], []])


# Draining


def test_drain_while_a_model_runs(desk: Desk, start: Start) -> None:
    running = start(busy=True)
    desk.call((2, cube(2.0)), (3, cube(3.0)))
    heard(desk)
    running.host.drain()
    assert desk.hear(Kind.RESIZE).data == 0
    assert wire.decode_ids(desk.hear(Kind.RECALLED)) == [2, 3]
    desk.call((4, cube(4.0)))  # sent before the dispatcher knew
    assert wire.decode_ids(desk.hear(Kind.RECALLED)) == [4]
    running.gate.open.set()
    assert list(desk.answers()) == [1]
    assert desk.hear(Kind.LEAVE).data == ["drained", 3], "so many messages about its calls"
    assert running.ended()
    assert running.error is None
    running.host.drain()  # a second time is harmless


def test_what_comes_during_a_run_is_done_after_it_although_no_message_follows(
    desk: Desk, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "REPORT_EVERY_S", 10 * LIMIT_S)  # nothing else ends a wait
    running = start(busy=True)
    desk.call((2, cube(2.0)))
    heard(desk)
    running.gate.open.set()
    assert [list(desk.answers()) for _ in range(2)] == [[1], [2]]
    running.gate.open.clear()
    running.gate.waits.clear()
    running.block(desk, 3)
    running.host.drain()
    desk.hear(Kind.RESIZE)
    running.gate.open.set()
    assert list(desk.answers()) == [3]
    desk.hear(Kind.LEAVE)


def test_drain_between_the_calls_of_a_message(desk: Desk, start: Start) -> None:
    running = start()
    running.gate.on_run = running.host.drain  # before the socket is read again
    desk.call((1, cube(1.0)), (2, cube(2.0)))
    said = [desk.hear(Kind.ANSWERS, Kind.RESIZE, Kind.RECALLED, Kind.LEAVE) for _ in range(4)]
    assert {message.kind for message in said[:3]} == {
        Kind.ANSWERS,
        Kind.RESIZE,
        Kind.RECALLED,
    }
    assert said[3].kind is Kind.LEAVE
    assert running.gate.ran == [1.0]


@pytest.mark.parametrize("drained_first", [False, True])
def test_a_drained_worker_leaves_during_a_run_whose_answer_is_not_needed(
    desk: Desk, start: Start, drained_first: bool
) -> None:
    running = start(start_s=math.inf, busy=True)
    left = running.process.left
    if drained_first:
        running.host.drain()
        assert desk.hear(Kind.RESIZE).data == 0
        assert not left, "somebody waits for the answer"
        desk.say(Kind.END_STREAM, [1])
    else:
        desk.say(Kind.END_STREAM, [1])
        heard(desk)
        assert not left, "it does not drain"
        running.host.drain()
        assert desk.hear(Kind.RESIZE).data == 0
    assert desk.hear(Kind.LEAVE).data == ["drained", 0]
    wait_until(lambda: left == [True])


@pytest.mark.parametrize("start_s", [0.0, LIMIT_S], ids=["quick", "slow"])
def test_a_worker_leaves_a_run_in_vain_if_another_starts_sooner(
    desk: Desk, start: Start, start_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that wait behind that run are recalled, and others run them."""
    monkeypatch.setattr(host, "FIRST_RUN_S", 0.0)
    running = start(start_s=start_s, busy=True)
    left = running.process.left
    desk.say(Kind.END_STREAM, [1])
    if start_s:
        desk.call((2, cube(2.0)))
        running.gate.open.set()
        assert set(answers_of(desk, 2)) == {1, 2}
        assert left == []
    else:
        assert desk.hear(Kind.LEAVE).data == ["drained", 0]
        wait_until(lambda: left == [False])


def test_a_worker_leaves_as_soon_as_its_run_in_vain_has_taken_longer_than_a_start(
    desk: Desk, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "LISTENER_TURN_S", 10 * LIMIT_S)
    monkeypatch.setattr(host, "FIRST_RUN_S", 0.0)
    running = start(start_s=0.3, busy=True)
    desk.say(Kind.END_STREAM, [1])
    assert desk.hear(Kind.LEAVE).data == ["drained", 0]
    wait_until(lambda: running.process.left == [False])


def test_a_worker_stays_in_its_first_run_though_that_is_in_vain(desk: Desk, start: Start) -> None:
    """The next process would import and compile as long, and be left in the same way."""
    running = start(start_s=0.0, busy=True)
    desk.say(Kind.END_STREAM, [1])
    heard(desk)
    running.gate.open.set()
    assert set(desk.answers()) == {1}
    assert running.process.left == []
    running.gate.open.clear()
    running.gate.waits.clear()
    running.block(desk, 2)
    desk.say(Kind.END_STREAM, [2])
    assert desk.hear(Kind.LEAVE).data == ["drained", 1]


def test_the_time_that_a_worker_was_suspended_is_no_time_of_its_run(
    desk: Desk, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs in vain ends soon after the worker goes on, which then need not be replaced."""
    suspended_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + suspended_s)
    monkeypatch.setattr(host, "time", clock)
    running = start(start_s=LIMIT_S, busy=True)
    suspended_s = 10 * LIMIT_S
    desk.say(Kind.END_STREAM, [1])
    heard(desk)
    running.gate.open.set()
    assert set(desk.answers()) == {1}
    assert running.process.left == []


def test_stop_drains(desk: Desk, start: Start) -> None:
    running = start()
    desk.say(Kind.STOP)
    desk.hear(Kind.RESIZE)
    desk.hear(Kind.LEAVE)
    assert running.ended()


def test_drain_before_it_runs(desk: Desk) -> None:
    running = Running(desk.connection)
    running.host.drain()
    running.thread.start()
    desk.hear(Kind.LEAVE, skip=True)
    assert running.ended()
    assert running.error is None


# Sequences


class Counter(farm.Model):
    """Counts the calls of each sequence; one of x <= 0 waits until the gate is opened."""

    inputs, outputs = {"x": 1}, {"y": 1}
    stateful = True

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def evaluate(  # type: ignore[override]  # a stateful model has a third argument
        self, inputs: Inputs, config: Config, sequence: farm.Sequence
    ) -> Any:
        self.gate.evaluate(inputs, config)
        sequence["count"] = sequence.get("count", 0) + 1
        return [sequence["count"]]


def count(sequence: int, flags: str = "", x: float = 1.0) -> Call:
    step = SequenceStep(sequence, "s" in flags, "e" in flags)
    return Call("counter", Operation.EVALUATE, (np.array([x]),), step=step)


def counted(answers: Mapping[int, Any]) -> dict[int, Any]:
    return {
        i: outcome.outputs[0].item() if isinstance(outcome, Result) else type(outcome)
        for i, outcome in answers.items()
    }


def test_a_draining_worker_stays_until_its_sequences_have_ended(desk: Desk, start: Start) -> None:
    running = start(stateful=True)
    desk.call((1, count(7, "s")))
    assert counted(desk.answers()) == {1: 1}
    running.host.drain()
    assert desk.hear(Kind.RESIZE).data == [0, 1]
    desk.call((2, count(8, "s")), (3, cube(2.0)))  # sent before the dispatcher knew
    assert wire.decode_ids(desk.hear(Kind.RECALLED)) == [2, 3]
    desk.call((4, count(7)))
    assert counted(desk.answers()) == {4: 2}
    desk.call((5, count(7, "e")))
    assert counted(desk.answers()) == {5: 3}
    assert desk.hear(Kind.LEAVE).data == ["drained", 4]
    assert running.ended()


def test_a_draining_worker_leaves_when_its_last_sequence_is_ended(desk: Desk, start: Start) -> None:
    running = start(stateful=True)
    desk.call((1, count(7, "s")))
    desk.answers()
    running.host.drain()
    desk.hear(Kind.RESIZE)
    desk.send(encode_ended([("counter", 7), ("counter", 8)]))
    desk.hear(Kind.LEAVE)
    assert running.ended()


def test_a_worker_that_drains_during_a_call_runs_the_next_ones_of_its_sequence(
    desk: Desk, start: Start
) -> None:
    running = start(stateful=True)
    desk.call((1, count(7, "s", 0.0)))
    assert running.gate.waits.wait(LIMIT_S)
    running.host.drain()
    assert desk.hear(Kind.RESIZE).data == [0, 1]
    running.gate.open.set()
    assert counted(desk.answers()) == {1: 1}
    desk.call((2, count(7, "e")))
    assert counted(desk.answers()) == {2: 2}
    desk.hear(Kind.LEAVE)
    assert running.ended()


def test_an_ended_sequence_is_forgotten(desk: Desk, start: Start) -> None:
    start(stateful=True)
    desk.call((1, count(7, "s")), (2, count(7)))
    assert counted(answers_of(desk, 2)) == {1: 1, 2: 2}
    desk.send(encode_ended([("counter", 7)]))
    desk.call((3, count(7)))
    assert counted(desk.answers()) == {3: InvalidInput}


# Unusable messages


def test_call_that_cannot_be_read_is_answered(desk: Desk, start: Start) -> None:
    start()
    rows = [[1, "gate", "evaluate", [["<f8", [10**18], 0]]], [2, "gate", "guess", []]]
    text = orjson.dumps([None, rows])
    desk.send([struct.pack("<BBHI", wire.VERSION, Kind.CALLS, 0, len(text)) + text])
    answers = desk.answers()
    assert isinstance(answers[1], InvalidRequest)
    assert isinstance(answers[2], InvalidRequest)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\1\3"],
        [b"\1\3\0\0\0\0\0\0"],
        wire.encode(Kind.RECALL, "all"),
        [b"x" * 100],
    ],
)
def test_malformed_messages_are_survived(desk: Desk, start: Start, frames: list[bytes]) -> None:
    start()
    desk.send(list(frames))
    desk.call((1, cube(2.0)))
    assert value(desk.answers()[1]) == 8.0


OTHER_RELEASE = bytes([wire.VERSION + 1]) + bytes(wire.encode(Kind.REFUSED, "no")[0])[1:]


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        (wire.encode(Kind.REFUSED, "you joined as somebody else"), "you joined as somebody else"),
        ([OTHER_RELEASE], "install the same modelfarm"),
    ],
    ids=["refused", "of another release"],
)
def test_worker_that_is_refused_ends_and_says_why(
    desk: Desk, start: Start, frames: list[bytes], why: str
) -> None:
    running = start(welcome=False)
    desk.hear(Kind.JOIN)
    desk.send(list(frames))
    assert running.ended()
    assert isinstance(running.error, Unavailable)
    assert why in running.error.message


def test_model_that_raises_costs_its_call_only(desk: Desk, start: Start) -> None:
    start()
    desk.call((1, cube(1.0, '{"n":2}')), (2, Call("x", Operation.EVALUATE)), (3, cube(3.0)))
    answers = answers_of(desk, 3)
    assert not isinstance(answers[1], Result)
    assert not isinstance(answers[2], Result | ModelFailed)
    assert value(answers[3]) == 27.0


# Losing the dispatcher


def test_idle_worker_whose_dispatcher_is_gone_gives_up(
    desk: Desk, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "LONGEST_LOOK_S", 0.05)
    running = start(lost_after_s=0.3)
    desk.close()
    assert running.ended()
    assert isinstance(running.error, Unavailable)
    assert desk.connection.address() in running.error.message


def begin(desk: Desk, model: str, seconds: float, task_id: int = 1) -> None:
    desk.call((task_id, Call(model, Operation.EVALUATE, (np.array([seconds]),))))


def test_busy_process_whose_dispatcher_is_gone_ends_itself(desk: Desk) -> None:
    process = host_process.start(desk.connection, NAME, lost_after_s=1.0)
    try:
        desk.welcome()
        begin(desk, "sleep", 1000.0)
        heard(desk)
        desk.close()
        assert process.wait(LIMIT_S) == EXIT_ORPHANED
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("running", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_frozen_process_does_not_count_the_time_it_was_frozen(desk: Desk, running: bool) -> None:
    process = host_process.start(desk.connection, NAME, lost_after_s=1.5)
    try:
        desk.welcome()
        if running:
            begin(desk, "sleep", 0.5)
        heard(desk)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(2.5)  # the duration itself is under test
        assert process.poll() is None
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.3)  # so that it has checked before it gets a message
        if running:
            assert value(desk.answers(skip=True)[1]) == 0.5
        begin(desk, "cube", 2.0, 2)
        assert value(desk.answers(skip=True)[2]) == 8.0
    finally:
        process.kill()
        process.wait()


def test_the_rows_beside_one_that_takes_long_are_answered_or_left_to_others(
    desk: Desk, start: Start
) -> None:
    running = start()
    x = np.array([[1.0], [2.0], [0.0], [3.0]])  # the gate holds zero back
    desk.call((1, Call("gate", Operation.EVALUATE, (x,), rows=4)))
    assert running.gate.waits.wait(LIMIT_S)
    ((task, first),) = wire.decode_answers(desk.hear(Kind.ANSWERS))
    assert isinstance(first, Result)
    assert (task, first.more, len(first.row_times_s)) == (1, True, 2)
    assert first.outputs[0].tolist() == [[1.0], [8.0]]
    running.gate.open.set()
    ((task, last),) = wire.decode_answers(desk.hear(Kind.ANSWERS))
    assert isinstance(last, Result)
    assert (task, last.more) == (1, False)
    assert last.outputs[0].tolist() == [[1.0], [8.0], [0.0]]


def test_worker_reports_what_it_uses(
    desk: Desk, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "REPORT_EVERY_S", 0.05)
    running = start()
    first, second = decode_usage(desk.hear_use()), decode_usage(desk.hear_use())
    mebibyte = 2**20
    assert first.memory_bytes is not None
    assert second.memory_bytes is not None
    assert first.memory_bytes > 10 * mebibyte
    running.block(desk)  # its listener reports meanwhile
    limit = time.monotonic() + LIMIT_S
    while decode_usage(desk.hear_use()).processor is None:
        assert time.monotonic() < limit


# Over the local stream: a line that ends, and answers that exceed its buffer


MUCH = 1_000_000


class Large(Gate):
    """Answers 8 MB."""

    repeatable = False

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        return {"x": 1}, {"y": MUCH}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return np.full(MUCH, super().evaluate(inputs, config))


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Desk]:
    """A dispatcher at a local stream."""
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def large(desk: Desk, **options: Any) -> Running:
    running = Running(desk.connection, gate=Large(), **options)
    running.thread.start()
    return running


def end(running: Running) -> None:
    running.gate.open.set()
    running.host.drain()
    assert running.ended()


def test_an_answer_that_nobody_reads_yet_does_not_hold_up_the_next_call(local: Desk) -> None:
    hosted = large(local)
    local.welcome()
    local.call((1, cube(1.0)), (2, cube(2.0)), (3, cube(3.0)))
    # The local does not read meanwhile, and the socket has room for a fraction of an answer.
    wait_until(lambda: hosted.gate.ran == [1.0, 2.0, 3.0])
    answers: dict[int, Any] = answers_of(local, 3)
    assert [answers[i].outputs[0][-1] for i in (1, 2, 3)] == [1.0, 8.0, 27.0]
    end(hosted)


def test_what_is_not_out_of_the_process_counts_as_running(local: Desk) -> None:
    """If the process died now, a call whose answer is half sent must not be retried."""
    hosted = large(local)
    local.welcome()
    local.call((1, cube(1.0)))
    wait_until(lambda: hosted.noted == [[1], [1]])  # the second: it has run, but is not answered
    local.call((2, cube(0.0)))
    wait_until(lambda: hosted.gate.ran == [1.0, 0.0])
    assert hosted.noted == [[1], [1], [1, 2]]
    # The listener writes it while the model runs.
    assert set(local.answers()) == {1}
    hosted.gate.open.set()
    assert set(local.answers()) == {2}
    wait_until(lambda: hosted.noted[-1] == [])
    end(hosted)


def test_the_next_dispatcher_is_joined_as_another_life(tmp_path: Path) -> None:
    first = Desk(tmp_path)
    hosted = large(first)
    life = first.welcome()
    first.call((1, cube(0.0)))
    wait_until(lambda: hosted.gate.ran == [0.0])
    first.close()
    second = Desk(tmp_path)
    hosted.gate.open.set()
    another, _ = wire.decode_join(second.hear(Kind.JOIN, skip=True))  # the answer may come first
    assert another != life
    second.say(Kind.WELCOME, another)
    second.call((3, cube(3.0)))
    answers: dict[int, Any] = {}
    while 3 not in answers:
        answers |= second.answers(skip=True)
    assert hosted.gate.ran[-1] == 3.0
    end(hosted)
    second.close()


def test_without_a_dispatcher_it_gives_up_in_the_end(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    hosted = large(desk, lost_after_s=0.3)
    desk.welcome()
    desk.close()
    hosted.thread.join(LIMIT_S)
    assert isinstance(hosted.error, Unavailable)
    assert f"no word from the dispatcher at {tmp_path}/farm.sock" in hosted.error.message


def test_silence_alone_is_no_end(local: Desk) -> None:
    """A dispatcher that is stopped for a while, as by Ctrl-Z, finds its workers again."""
    hosted = large(local, lost_after_s=0.1)
    local.welcome()
    hosted.thread.join(1.5)
    assert hosted.thread.is_alive()
    local.call((1, cube(1.0)))
    assert set(local.answers()) == {1}
    end(hosted)
