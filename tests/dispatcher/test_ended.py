"""The stream of ended calls: one record for each, and when windows get it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from farm.call import Call, Hints, Operation, Result
from farm.dispatcher.ended import (
    ANSWERED,
    BATCH,
    FULL,
    REFUSED,
    REUSED,
    WHOLE,
    EndedCall,
    EndedCalls,
    Failure,
)
from farm.errors import ModelFailed, Unavailable
from farm.scheduler.actions import Reply
from farm.scheduler.state import Attempt, TaskId
from tests.scheduler.recorder import Recorder, call
from tests.support.coroutines import on_loop

ME = Hints("me", shown_as=("me", "a"))
BAD = ModelFailed("diverged")


class Seen:
    """A window that keeps what it is given, batch by batch."""

    def __init__(self, stream: EndedCalls) -> None:
        self.batches: list[list[EndedCall]] = []
        stream.add_window(self)

    def fold(self, records: Sequence[EndedCall]) -> None:
        self.batches.append(list(records))

    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


@pytest.fixture
def stream() -> EndedCalls:
    return EndedCalls()


@pytest.fixture
def seen(stream: EndedCalls) -> Seen:
    return Seen(stream)


def record(at: float = 0.0) -> EndedCall:
    return EndedCall(ANSWERED, "m", Operation.EVALUATE, "me", 0.0, at)


@on_loop
async def test_few_records_wait_until_someone_reads(stream: EndedCalls, seen: Seen) -> None:
    for at in range(BATCH - 1):
        stream.add(record(float(at)))
    await asyncio.sleep(0)
    assert seen.batches == []
    stream.fold()
    assert [each.at for each in seen.batches[0]] == [float(at) for at in range(BATCH - 1)]
    stream.fold()
    assert len(seen.batches) == 1, "nothing is given twice"


@on_loop
async def test_many_records_are_folded_together_in_the_next_turn(
    stream: EndedCalls, seen: Seen
) -> None:
    for _ in range(3 * BATCH):
        stream.add(record())
    assert seen.batches == []
    await asyncio.sleep(0)
    assert seen.sizes() == [3 * BATCH]


@on_loop
async def test_a_full_stream_is_folded_at_once_and_loses_nothing(
    stream: EndedCalls, seen: Seen
) -> None:
    for at in range(3 * FULL + 1):
        stream.add(record(float(at)))
    assert seen.sizes() == [FULL] * 3
    stream.fold()
    ends = [each.at for batch in seen.batches for each in batch]
    assert ends == [float(at) for at in range(3 * FULL + 1)]


@on_loop
async def test_a_failure_is_told_in_the_next_turn(stream: EndedCalls, seen: Seen) -> None:
    stream.refused(call(), ME, BAD)
    assert seen.batches == []
    await asyncio.sleep(0)
    ((ended,),) = seen.batches
    assert ended.ending is REFUSED
    assert ended.failure == Failure(BAD, 1, call_of(ended), None, "", "me")


def call_of(ended: EndedCall) -> Call:
    assert ended.failure is not None
    return ended.failure.call


def counted(ended: EndedCall) -> tuple[int, int]:
    return ended.calls_done, ended.calls_failed


def answered(rows: int | None = None) -> Reply:
    farm = Recorder()
    farm.join("w")
    task = farm.task(farm.submit(call(rows=rows)))
    task.attempt = Attempt(farm.worker("w"), None, 0, 0.0, 0.0, 1, alone=True)
    return Reply(task, BAD, 0.0, farm.worker("w").id)


def test_a_record_says_what_whose_where_how_long_and_how_it_ended(
    stream: EndedCalls, seen: Seen
) -> None:
    reply = answered()
    result = Result((np.zeros(1),), 2.0, worker="p", queue_time_s=0.5, idle_s=0.1, batch_rows=3)
    stream.answered(reply, result, 1, 0, 12.0)
    stream.fold()
    ((ended,),) = seen.batches
    assert (ended.ending, ended.model, ended.operation) == (ANSWERED, "m", Operation.EVALUATE)
    assert (ended.task, ended.client) == (reply.task.id, reply.task.account.client.name)
    assert (ended.worker, ended.seat) == ("p", "w")
    assert (ended.began, ended.at) == (reply.task.submitted_at, 12.0)
    assert (ended.run_s, ended.row_s, ended.queue_s, ended.idle_s) == (2.0, 2.0, 0.5, 0.1)
    assert (ended.batch_rows, ended.rows, ended.done) == (3, 1, 1)
    assert (ended.error, ended.failure, counted(ended)) == (None, None, (1, 0))
    assert ended.worker_s == pytest.approx(2.0 / 3.0)


def test_of_a_run_of_rows_those_done_and_the_row_that_failed_are_told(
    stream: EndedCalls, seen: Seen
) -> None:
    reply = answered(rows=6)
    assert reply.task.is_run
    result = Result((np.zeros((4, 1)),), 2.0, worker="p", failed=BAD)
    ended = ends(stream, seen, reply, result, calls=6)
    assert (ended.done, ended.row_s, counted(ended)) == (4, 0.5, (4, 1))
    assert (ended.worker_s, ended.batch_rows) == (2.0, 1)
    whole = ends(stream, seen, reply, result, calls=1)
    assert counted(whole) == (0, 1)
    part = ends(stream, seen, reply, result, calls=0)
    assert counted(part) == (0, 0)
    lost = ends(stream, seen, reply, BAD, calls=6)
    assert (lost.ran, lost.done, counted(lost)) == (False, 0, (0, 6))


def ends(
    stream: EndedCalls, seen: Seen, reply: Reply, outcome: Result | ModelFailed, calls: int
) -> EndedCall:
    stream.answered(reply, outcome, calls, 0, 12.0)
    stream.fold()
    (ended,) = seen.batches.pop()
    return ended


@on_loop
async def test_calls_that_fail_for_good_are_in_the_record(stream: EndedCalls, seen: Seen) -> None:
    reply = answered(rows=6)
    stream.answered(reply, BAD, 6, 6, 12.0)
    result = Result((np.zeros((4, 1)),), 2.0, worker="p", failed=BAD)
    stream.answered(reply, result, 6, 1, 12.0)
    stream.fold()
    ((lost, failed),) = seen.batches
    client = reply.task.account.client.name
    assert lost.failure == Failure(BAD, 6, reply.task.call, None, "w", client)
    assert failed.failure == Failure(BAD, 1, reply.task.call, 4, "p", client)


@on_loop
async def test_other_ends_have_records_of_their_own(stream: EndedCalls, seen: Seen) -> None:
    stream.whole(call(), Result((), 1.0, queue_time_s=0.5), ME, 3.0)
    stream.whole(call(), BAD, ME, 3.0)
    stream.reused(call(), ME, calls=2, rows=5)
    stream.refused(call(), Hints("me", patient=True), Unavailable("later"))
    stream.refused(Call("m", Operation.DESCRIBE), ME, BAD)
    stream.fold()
    ((whole, failed, reused),) = seen.batches
    assert (whole.ending, failed.ending, reused.ending) == (WHOLE, WHOLE, REUSED)
    assert {each.chain for each in (whole, failed, reused)} == {("me", "a")}
    assert (whole.began, whole.queue_s, counted(whole)) == (3.0, 0.5, (1, 0))
    assert (counted(failed), failed.failure) == ((0, 1), None), "its task told the failure"
    assert (counted(reused), reused.rows) == ((2, 0), 5)
    assert reused.task == TaskId(-1)
