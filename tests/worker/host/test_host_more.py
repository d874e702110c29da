"""The worker's end over the local stream: a line that ends, and answers that exceed its buffer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import Call, Operation, WorkerInfo
from farm.errors import Unavailable
from farm.model import Inputs
from farm.wire import messages as wire
from farm.wire.messages import Kind
from farm.worker.host.host import WorkerHost
from farm.worker.runner import Runner
from tests.support.coroutines import LIMIT_S, wait_until
from tests.transports.peers import Desk, Kept

NAME = "node1/1-a"
MUCH = 1_000_000


class Large(farm.Model):
    """Answers 8 MB; a call of 0 waits until the gate is opened."""

    inputs = {"x": 1}
    outputs = {"y": MUCH}
    repeatable = False

    def __init__(self) -> None:
        self.ran: list[float] = []
        self.gate = threading.Event()

    def evaluate(self, inputs: Inputs, config: Any) -> Any:
        x = float(inputs["x"][0])
        self.ran.append(x)
        if x == 0.0:
            assert self.gate.wait(LIMIT_S)
        return np.full(MUCH, x)


class Hosted:
    """A WorkerHost in a thread at a Desk."""

    def __init__(self, desk: Desk, **options: Any) -> None:
        self.model = Large()
        self.process = Kept()
        self.noted = self.process.noted
        runner = Runner({"large": self.model})
        self.host = WorkerHost(
            runner,
            desk.connection,
            WorkerInfo(NAME, runner.models()),
            process=self.process,
            **options,
        )
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.host.run()
        except Exception as error:
            self.error = error


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def call(x: float) -> Call:
    return Call("large", Operation.EVALUATE, (np.array([x]),))


def end(hosted: Hosted) -> None:
    hosted.model.gate.set()
    hosted.host.drain()
    hosted.thread.join(LIMIT_S)
    assert not hosted.thread.is_alive()


def test_an_answer_that_nobody_reads_yet_does_not_hold_up_the_next_call(desk: Desk) -> None:
    hosted = Hosted(desk)
    desk.welcome()
    desk.call((1, call(1.0)), (2, call(2.0)), (3, call(3.0)))
    # The desk does not read meanwhile, and the socket has room for a fraction of an answer.
    wait_until(lambda: hosted.model.ran == [1.0, 2.0, 3.0])
    answers: dict[int, Any] = {}
    while len(answers) < 3:
        answers |= desk.answers()
    assert [answers[i].outputs[0][-1] for i in (1, 2, 3)] == [1.0, 2.0, 3.0]
    end(hosted)


def test_what_is_not_out_of_the_process_counts_as_running(desk: Desk) -> None:
    """If the process died now, a call whose answer is half sent must not be retried."""
    hosted = Hosted(desk)
    desk.welcome()
    desk.call((1, call(1.0)))
    wait_until(lambda: hosted.noted == [[1], [1]])  # the second: it has run, but is not answered
    desk.call((2, call(0.0)))
    wait_until(lambda: hosted.model.ran == [1.0, 0.0])
    assert hosted.noted == [[1], [1], [1, 2]]
    # The listener writes it while the model runs.
    assert set(desk.answers()) == {1}
    hosted.model.gate.set()
    assert set(desk.answers()) == {2}
    wait_until(lambda: hosted.noted[-1] == [])
    end(hosted)


def test_the_next_dispatcher_is_joined_as_another_life(tmp_path: Path) -> None:
    first = Desk(tmp_path)
    hosted = Hosted(first)
    life = first.welcome()
    first.call((1, call(0.0)))
    wait_until(lambda: hosted.model.ran == [0.0])
    first.close()
    second = Desk(tmp_path)
    hosted.model.gate.set()
    another, _ = wire.decode_join(second.hear(Kind.JOIN, skip=True))  # the answer may come first
    assert another != life
    second.say(Kind.WELCOME, another)
    second.call((3, call(3.0)))
    answers: dict[int, Any] = {}
    while 3 not in answers:
        answers |= second.answers(skip=True)
    assert hosted.model.ran[-1] == 3.0
    end(hosted)
    second.close()


def test_without_a_dispatcher_it_gives_up_in_the_end(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    hosted = Hosted(desk, lost_after_s=0.3)
    desk.welcome()
    desk.close()
    hosted.thread.join(LIMIT_S)
    assert isinstance(hosted.error, Unavailable)
    assert f"no word from the dispatcher at {tmp_path}/farm.sock" in hosted.error.message


def test_silence_alone_is_no_end(desk: Desk) -> None:
    """A dispatcher that is stopped for a while, as by Ctrl-Z, finds its workers again."""
    hosted = Hosted(desk, lost_after_s=0.1)
    desk.welcome()
    hosted.thread.join(1.5)
    assert hosted.thread.is_alive()
    desk.call((1, call(1.0)))
    assert set(desk.answers()) == {1}
    end(hosted)
