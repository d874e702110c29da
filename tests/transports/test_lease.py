"""Which thread uses a client's line."""

from __future__ import annotations

import threading

import pytest

from farm.transports import lease as module
from farm.transports.lease import Lease, LoneCall
from tests.support.coroutines import LIMIT_S, wait_until


class Owner:
    """A thread that rests until it is needed, once."""

    def __init__(self) -> None:
        self.work: list[str] = []
        self.lease = Lease(self, lambda: bool(self.work))
        self.thread = threading.Thread(target=self.lease.rest, daemon=True)

    def rest(self) -> None:
        self.thread.start()
        wait_until(lambda: self.lease.held_by() is None)

    def has_line(self) -> bool:
        self.thread.join(LIMIT_S)
        return self.lease.held_by() is self


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Owner:
    monkeypatch.setattr(module, "REST_S", LIMIT_S)
    return Owner()


def test_callers_have_the_line_while_the_thread_rests(owner: Owner) -> None:
    lease = owner.lease
    first, second = LoneCall(), LoneCall()
    assert not lease.take(first)
    assert lease.may_rest
    owner.rest()
    assert lease.take(first)
    assert not lease.take(second)
    lease.give_back(second)
    assert lease.held_by() is first
    owner.work.append("a call of another thread")
    lease.give_back(first)
    assert owner.has_line()
    assert lease.may_rest
    assert not lease.is_spoilt


def test_the_thread_ends_its_rest_when_no_caller_comes(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REST_S", 0.001)
    owner.thread.start()
    assert owner.has_line()
    assert not owner.lease.may_rest


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


def test_a_caller_that_is_lost_is_replaced(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.rest()
    assert owner.lease.take(LoneCall())
    monkeypatch.setattr(module, "REST_S", 0.001)
    owner.lease._needed.set()
    assert owner.has_line()
    assert owner.lease.is_spoilt


def test_messages_that_callers_left_are_work(owner: Owner) -> None:
    owner.rest()
    lone = LoneCall()
    assert owner.lease.take(lone)
    owner.lease.unread.append([b"message"])
    owner.lease.give_back(lone)
    assert owner.has_line()
