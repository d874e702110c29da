"""Which thread uses a client's line, and blocking calls whose own thread does so."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Hints, Operation, Result
from farm.client import lease
from farm.client.lease import Lease, LoneCall
from farm.client.line import as_it_is, submit, waited_for
from farm.client.native_end import End
from farm.client.native_line import NativeLine
from farm.errors import Cancelled, InvalidInput, ModelFailed, Unavailable
from farm.wire import messages as wire
from farm.wire.messages import Kind
from tests.client.test_native_end import Places, described
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.scripted_lines import cube_calls
from tests.support.scripted_peers import Desk, value

Answer = Callable[[int, float], None]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither thread nor caller gives up its turn because the machine is busy."""
    monkeypatch.setattr(lease, "REST_S", LIMIT_S)
    monkeypatch.setattr(lease, "LEAD_MS", int(1000 * LIMIT_S))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def end_of(line: NativeLine) -> End:
    assert line._end is not None
    return line._end


def holder(line: NativeLine) -> object:
    return end_of(line)._lease.held_by()


def until_it_waits(line: NativeLine) -> None:
    """Wait until a call that was heard is no longer in the middle of sending."""
    wait_until(lambda: not getattr(holder(line), "touches_line", False))


def call(line: NativeLine, x: float, hints: Hints = NO_HINTS) -> float:
    asked = Call("cube", Operation.EVALUATE, (np.array([x]),))
    return value(waited_for(line, asked, hints, as_it_is))


def heard(desk: Desk) -> tuple[int, float]:
    """Return the id and the number of the next call."""
    message = desk.hear(Kind.CALLS, Kind.CALLS_AGAIN, skip=True)
    [(call_id, one)] = wire.decode_calls(message)[1]
    assert isinstance(one, Call)
    return call_id, float(one.inputs[0][0])


def answer(desk: Desk, call_id: int, x: float) -> None:
    desk.send(wire.encode_answers([(call_id, Result((np.array([x**3]),)))]))


@contextmanager
def serving(*steps: Callable[[], None]) -> Iterator[None]:
    """Take these steps on a thread of their own; fail if one of them does."""
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            for step in steps:
                step()
        except BaseException as error:
            failures.append(error)

    server = threading.Thread(target=serve)
    server.start()
    yield
    server.join(LIMIT_S)
    assert not server.is_alive()
    assert failures == []


def rested(desk: Desk, line: NativeLine) -> None:
    """Let the farm describe its model, and make a call, after which the thread rests."""
    described(desk, line)
    with serving(lambda: answer(desk, *heard(desk))):
        assert call(line, 2.0) == 8.0
    wait_until(lambda: holder(line) is None)


@pytest.fixture
def line(desk: Desk) -> Iterator[NativeLine]:
    """One whose thread rests."""
    line = NativeLine(desk.connection)
    rested(desk, line)
    yield line
    line.close()


def test_a_lone_caller_sends_and_receives_itself(desk: Desk, line: NativeLine) -> None:
    holders: list[object] = []

    def look() -> None:
        call_id, x = heard(desk)
        holders.append(holder(line))
        answer(desk, call_id, x)

    with serving(look, look):
        assert [call(line, x) for x in (3.0, 4.0)] == [27.0, 64.0]
    assert [type(one) for one in holders] == [LoneCall, LoneCall]
    assert {one.thread for one in holders if isinstance(one, LoneCall)} == {threading.get_ident()}


def test_the_thread_takes_the_line_back_from_a_caller_that_stops(
    desk: Desk, line: NativeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "REST_S", 0.001)
    end_of(line)._lease._needed.set()
    wait_until(lambda: holder(line) is line._end)
    with serving(lambda: answer(desk, *heard(desk))):
        assert call(line, 3.0) == 27.0


def test_a_long_call_is_handed_to_the_thread(
    desk: Desk, line: NativeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEAD_MS", 10)

    def late() -> None:
        call_id, x = heard(desk)
        wait_until(lambda: holder(line) is line._end)
        answer(desk, call_id, x)

    with serving(late):
        assert call(line, 3.0) == 27.0


def test_a_call_that_comes_meanwhile_is_sent_and_may_be_answered_first(
    desk: Desk, line: NativeLine
) -> None:

    def two() -> None:
        first = heard(desk)
        future = submit(line, cube_calls(5)[4], NO_HINTS, as_it_is)
        answer(desk, *heard(desk))
        assert value(future.result(LIMIT_S)) == 64.0
        answer(desk, *first)

    with serving(two):
        assert call(line, 3.0) == 27.0


def test_many_threads_each_get_their_own_answers(desk: Desk, line: NativeLine) -> None:
    results: dict[int, list[float]] = {}
    count, each = 8, 50

    def caller(number: int) -> None:
        results[number] = [call(line, 100.0 * number + k) for k in range(each)]

    def serve() -> None:
        left = count * each
        while left:
            _, calls = wire.decode_calls(desk.hear(Kind.CALLS))
            for call_id, one in calls:
                assert isinstance(one, Call)
                answer(desk, call_id, float(one.inputs[0][0]))
            left -= len(calls)

    with serving(serve):
        threads = [threading.Thread(target=caller, args=(n,)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    expected = {n: [(100.0 * n + k) ** 3 for k in range(each)] for n in range(count)}
    assert results == expected


def test_other_messages_beside_the_result_are_not_lost(desk: Desk, line: NativeLine) -> None:
    end = end_of(line)

    def welcome() -> None:
        call_id, x = heard(desk)
        desk.say(Kind.WELCOME, 5)
        answer(desk, call_id, x)

    with serving(welcome):
        assert call(line, 3.0) == 27.0
    wait_until(lambda: end._number == 5)


def test_errors_are_raised_and_bad_calls_are_not_sent(desk: Desk, line: NativeLine) -> None:

    def fail() -> None:
        call_id, _ = heard(desk)
        desk.send(wire.encode_answers([(call_id, ModelFailed("no"))]))

    with serving(fail), pytest.raises(ModelFailed, match="no"):
        call(line, 3.0)
    bad = Call("cube", Operation.EVALUATE, (np.array([object()]),))
    wait_until(lambda: holder(line) is None)
    with pytest.raises(InvalidInput, match="cannot be sent"):
        waited_for(line, bad, NO_HINTS, as_it_is)


def test_ctrl_c_ends_the_wait_and_cancels_the_call(desk: Desk, line: NativeLine) -> None:
    main = threading.get_ident()

    def interrupt() -> None:
        call_id, _ = heard(desk)
        until_it_waits(line)
        signal.pthread_kill(main, signal.SIGINT)
        assert desk.hear(Kind.CANCEL).data == [call_id]

    with serving(interrupt), pytest.raises(KeyboardInterrupt):
        call(line, 3.0)
    with serving(lambda: answer(desk, *heard(desk))):
        assert call(line, 4.0) == 64.0


@pytest.mark.parametrize("where", ["send", "receive"])
def test_an_interruption_in_the_middle_of_a_message_costs_no_later_call(
    desk: Desk, line: NativeLine, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = end_of(line)._line

    def interrupted(*arguments: object) -> None:
        end_of(line)._line._socket.send(b"\x64")  # type: ignore[attr-defined]  # half a message
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stream, where, interrupted)
        steps = [] if where == "send" else [lambda: answer(desk, *heard(desk))]
        with serving(*steps), pytest.raises(KeyboardInterrupt):
            call(line, 3.0)
    with serving(lambda: answer(desk, *heard(desk))):
        assert call(line, 4.0) == 64.0
    assert end_of(line)._line is not stream


def test_a_signal_handler_may_call_while_its_thread_waits(
    desk: Desk, line: NativeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEAD_MS", 100)  # Python goes on polling after the handler
    main = threading.get_ident()
    inner: list[float] = []

    def handler(number: int, frame: FrameType | None) -> None:
        inner.append(call(line, 4.0))

    def serve() -> None:
        first = heard(desk)
        until_it_waits(line)
        signal.pthread_kill(main, signal.SIGUSR1)
        answer(desk, *heard(desk))
        answer(desk, *first)

    signal.signal(signal.SIGUSR1, handler)
    with serving(serve):
        assert call(line, 3.0) == 27.0
    assert inner == [64.0]


def test_closing_cancels_the_call_that_has_the_line(desk: Desk, line: NativeLine) -> None:

    def close() -> None:
        heard(desk)
        line.close()

    with serving(close), pytest.raises(Cancelled, match="closed"):
        call(line, 3.0)
    with pytest.raises(Unavailable, match="closed"):
        call(line, 3.0)


def test_a_signal_handler_may_close_while_its_thread_waits(desk: Desk, line: NativeLine) -> None:
    main = threading.get_ident()

    def interrupt() -> None:
        heard(desk)
        signal.pthread_kill(main, signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, lambda *_: line.close())
    with serving(interrupt), pytest.raises(Cancelled, match="closed"):
        call(line, 3.0)


def test_a_signal_handler_may_close_before_its_thread_waits(
    desk: Desk, line: NativeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_of(line)._lease.polls.clear()  # so that the caller looks the descriptors up
    real = select.poll

    def poll() -> select.poll:
        monkeypatch.setattr(select, "poll", real)
        line.close()
        return real()

    monkeypatch.setattr(select, "poll", poll)
    with pytest.raises(Cancelled, match="closed"):
        call(line, 3.0)


def test_a_call_goes_on_at_the_farm_that_replaces_the_lost_one(tmp_path: Path) -> None:
    places = Places(tmp_path)
    line, lost = places.line(), places.desk
    rested(lost, line)

    def restart() -> None:
        heard(lost)
        places.restart()
        lost.close()
        answer(places.desk, *heard(places.desk))

    with serving(restart):
        assert call(line, 3.0) == 27.0
    line.close()
    places.close()


# The lease alone


class Owner:
    """A thread that rests until it is needed, once."""

    def __init__(self) -> None:
        self.work: list[str] = []
        owner: Any = self
        self.lease = Lease(owner)
        self.thread = threading.Thread(target=self.lease.rest, daemon=True)

    def has_work(self) -> bool:
        return bool(self.work)

    def rest(self) -> None:
        self.thread.start()
        wait_until(lambda: self.lease.held_by() is None)

    def has_line(self) -> bool:
        self.thread.join(LIMIT_S)
        return self.lease.held_by() is self


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_callers_have_the_line_while_the_thread_rests(owner: Owner) -> None:
    its = owner.lease
    first, second = LoneCall(), LoneCall()
    assert not its.take(first)
    assert its.may_rest
    owner.rest()
    assert its.take(first)
    assert not its.take(second)
    its.give_back(second)
    assert its.held_by() is first
    owner.work.append("a call of another thread")
    its.give_back(first)
    assert owner.has_line()
    assert its.may_rest
    assert not its.is_spoilt


def test_the_thread_ends_its_rest_when_no_caller_comes(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "REST_S", 0.001)
    owner.thread.start()
    assert owner.has_line()
    assert not owner.lease.may_rest


def test_a_caller_that_is_lost_is_replaced(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.rest()
    assert owner.lease.take(LoneCall())
    monkeypatch.setattr(lease, "REST_S", 0.001)
    owner.lease._needed.set()
    assert owner.has_line()
    assert owner.lease.is_spoilt


def test_the_thread_waits_for_the_caller_that_has_the_line(owner: Owner) -> None:
    owner.rest()
    results: list[object] = []
    took, finish = threading.Event(), threading.Event()

    def caller() -> None:
        lone = LoneCall()
        results.append(owner.lease.take(lone))
        took.set()
        finish.wait(LIMIT_S)
        results.append(owner.lease.held_by() is lone)
        owner.lease.give_back(lone)

    thread = threading.Thread(target=caller)
    thread.start()
    took.wait(LIMIT_S)
    owner.work.append("a call")
    owner.lease.call_thread()
    finish.set()
    thread.join(LIMIT_S)
    assert results == [True, True]
    assert owner.has_line()


@pytest.mark.parametrize("touches", [False, True])
def test_a_call_in_the_same_thread_gives_way(owner: Owner, touches: bool) -> None:
    owner.rest()
    lone = LoneCall()
    assert owner.lease.take(lone)
    lone.touches_line = touches
    owner.work.append("the close of a signal handler")
    owner.lease.call_thread()
    assert owner.has_line()
    assert owner.lease.is_spoilt == touches
    owner.lease.give_back(lone)
    assert owner.lease.held_by() is owner


def test_messages_that_callers_left_are_work(owner: Owner) -> None:
    owner.rest()
    lone = LoneCall()
    assert owner.lease.take(lone)
    owner.lease.unread.append([b"message"])
    owner.lease.give_back(lone)
    assert owner.has_line()
