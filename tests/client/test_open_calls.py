"""A client's open calls: refused, late, and those that must not run twice."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Hints, Operation, Result
from farm.client import open_calls
from farm.client.open_calls import OpenCalls, Waiting, messages
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    ModelFailed,
    ModelNotFound,
    Unavailable,
    WorkerLost,
)
from tests.support.scripted_lines import Inbox


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def calls_of(inbox: Inbox, *models: str, patience_s: float = 60.0) -> OpenCalls:
    """Return open calls of these models, with ids from 1 on; `often` is repeatable, `once` not."""
    calls = OpenCalls({"often": True, "once": False}, patience_s)
    for i, model in enumerate(models, 1):
        add(calls, inbox, i, model)
    return calls


def add(
    calls: OpenCalls,
    inbox: Inbox,
    i: int,
    model: str,
    operation: Operation = Operation.EVALUATE,
    hints: Hints = NO_HINTS,
    ago_s: float = 0.0,
) -> None:
    call = Call(model, operation, (np.ones(1),))
    calls.waiting[i] = Waiting(call, hints, time.monotonic() - ago_s, inbox, i)


def test_each_call_is_settled_once(inbox: Inbox) -> None:
    calls = calls_of(inbox, "often", "often")
    calls.answered([(1, Result(())), (3, Result(())), (1, Result(()))])
    assert list(inbox.outcomes) == [1]
    assert inbox.flushes == 1
    calls.fail_all(Cancelled("closed"))
    assert isinstance(inbox.outcomes[2], Cancelled)
    assert calls.waiting == {}


def test_the_error_of_a_call_has_the_id_that_its_client_gave(inbox: Inbox) -> None:
    calls = calls_of(inbox)
    for i, call_id in enumerate(("a-1", "a-2", ""), 1):
        add(calls, inbox, i, "often", hints=Hints(call_id=call_id))
    calls.fail_all(Cancelled("closed"))
    errors = [inbox.outcomes[i] for i in (1, 2, 3)]
    assert all(isinstance(error, Cancelled) for error in errors)
    assert [getattr(error, "call_id", None) for error in errors] == ["a-1", "a-2", ""]


@pytest.mark.parametrize("refusal", [Unavailable("starting"), ModelNotFound("not yet")])
def test_a_refused_call_is_sent_again(inbox: Inbox, refusal: FarmError) -> None:
    calls = calls_of(inbox, "often", "often")
    calls.answered([(1, refusal)])
    assert inbox.outcomes == {}
    now = time.monotonic()
    assert list(calls.refused(now)) == [1]
    assert list(calls.refused(now + open_calls.AGAIN_EVERY_S)) == []  # once for each refusal
    calls.answered([(1, refusal)])
    assert list(calls.refused(now)) == []  # not so soon
    assert list(calls.refused(now + 2 * open_calls.AGAIN_EVERY_S)) == [1]
    calls.answered([(1, Result(()))])
    assert list(inbox.outcomes) == [1]


def test_a_refused_call_that_is_cancelled_is_forgotten(inbox: Inbox) -> None:
    calls = calls_of(inbox, "often")
    calls.answered([(1, Unavailable("starting"))])
    del calls.waiting[1]
    assert calls.refused(time.monotonic()) == {}
    assert calls._refusals == {}


@pytest.mark.parametrize(
    ("model", "error", "patience_s"),
    [
        ("unknown", ModelNotFound("no such model"), 60.0),
        ("unknown", Unavailable("waiting for workers"), 60.0),
        ("often", ModelFailed("unlucky"), 60.0),
        ("often", Unavailable("starting, and the patience ends"), 0.0),
    ],
)
def test_other_errors_are_reported_at_once(
    inbox: Inbox, model: str, error: FarmError, patience_s: float
) -> None:
    calls = calls_of(inbox, model, patience_s=patience_s)
    calls.answered([(1, error)])
    assert inbox.outcomes == {1: error}


def test_a_description_may_be_asked_for_twice(inbox: Inbox) -> None:
    calls = calls_of(inbox, "once", "often", "once")
    add(calls, inbox, 4, "once", Operation.DESCRIBE)
    calls.answered([(4, Unavailable("starting"))])
    assert list(calls.refused(time.monotonic())) == [4]
    calls.lost({1, 2, 3})
    calls.give_up(Unavailable("gone"), {1, 2, 3})
    assert [type(inbox.outcomes[i]) for i in (1, 2, 3, 4)] == 4 * [Unavailable]


def test_what_a_front_door_was_sent_is_only_sent_again_as_such(inbox: Inbox) -> None:
    """A refused call that no front door before was sent is sent anew."""
    calls = calls_of(inbox, "once", "once", "once")
    calls.lost({2, 3})
    calls.answered([(i, Unavailable("starting")) for i in (1, 2)])
    refused = calls.refused(time.monotonic())
    kinds = {i: again for tasks, _, again in messages(refused, calls.again) for i, _ in tasks}
    assert kinds == {1: True, 2: False}
    calls.lost({3})
    assert calls.again == {1, 2}


@pytest.mark.parametrize("patience_s", [60.0, 0.0])
def test_a_call_that_may_have_run_is_lost_if_no_farm_says_so(
    inbox: Inbox, patience_s: float
) -> None:
    calls = calls_of(inbox, "once", "once", "once", "often", patience_s=patience_s)
    calls.lost({2, 3})
    calls.answered([(i, Unavailable("starting")) for i in (1, 2)])
    calls.give_up(Unavailable("gone"), {3})
    outcomes = [inbox.outcomes[i] for i in (1, 2, 3, 4)]
    assert list(map(type, outcomes)) == [WorkerLost, *[Unavailable] * 3]
    assert "model 'once' is not repeatable; starting" in str(outcomes[0])
    assert list(map(str, outcomes[1:])) == ["starting", "gone", "gone"]


def test_late_calls_fail(inbox: Inbox) -> None:
    calls = calls_of(inbox, "often")
    add(calls, inbox, 2, "often", hints=Hints(deadline_s=1.0), ago_s=2.0)
    add(calls, inbox, 3, "often", hints=Hints(deadline_s=3.0), ago_s=2.0)
    calls.fail_late(time.monotonic())
    assert list(inbox.outcomes) == [2]
    error = inbox.outcomes[2]
    assert isinstance(error, DeadlineExceeded)
    assert re.search(r"no answer within 2(\.\d+)? s", error.message)


def test_messages_have_equal_hints_and_the_rest_of_the_deadline(inbox: Inbox) -> None:
    calls = calls_of(inbox, "often")
    add(calls, inbox, 2, "often", hints=Hints("me", deadline_s=3.0), ago_s=2.0)
    add(calls, inbox, 3, "often")
    first, second, third = messages(calls.waiting, {3})
    assert [[i for i, _ in tasks] for tasks, _, _ in (first, second, third)] == [[1], [2], [3]]
    assert [is_new for _, _, is_new in (first, second, third)] == [False, False, True]
    assert second[1].client == "me"
    assert second[1].deadline_s is not None
    assert 0.0 < second[1].deadline_s <= 1.0
