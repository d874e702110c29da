"""The order between the queues that a free worker may serve.

The order is priority; then the workers that the client holds, per caller; then the time at which
the call is due: `DUE_RUNS` mean runs of its class after its arrival, or after the client's last
run. So short calls pass long ones, and none starves. A client that is more than `BAND_RUNS` of the
longest runs ahead of another in worker-seconds per caller waits for it. Within a queue, clients
take turns by worker-seconds exactly: see `queues`.

This is earliest virtual deadline first among those not too far ahead, as in EEVDF (Stoica and
Abdel-Wahab 1995), with deadlines by the clock, because lengths are not known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farm.scheduler.accounts import Usage
from farm.scheduler.queues import Queue
from farm.scheduler.state import TaskId

DUE_RUNS = 10.0
"""A call is due after waiting for this many runs of its class."""

BAND_RUNS = 32.0
"""Worker-seconds by which clients may differ before they decide, in the longest mean runs."""

LOOK = 64
"""Turns of a queue after which the longest run is looked up again; each time while it is new.

Only turns that a queue gets before another one count.
"""


class Turn(NamedTuple):
    """The place of a queue's next call in the order between clients: the smallest is first.

    task_id makes places differ. own_due_at: due time from its arrival, which decides between the
    calls of one client. run_s: the mean run of the call's kind.
    """

    rank: int
    held: int
    due_at: float
    task_id: TaskId
    own_due_at: float
    usage: Usage
    queue: Queue
    run_s: float


def turn_of(queue: Queue) -> Turn:
    """Return the place of a queue's next call; the queue must not be empty."""
    head = queue.head()
    usage = head.account.usage
    run_s = head.times.mean
    span_s = DUE_RUNS * run_s
    arrived_at = head.submitted_at
    since = usage.free_at if usage.free_at > arrived_at else arrived_at
    held = usage.held // usage.fair_slots
    due_at, own_due_at = since + span_s, arrived_at + span_s
    return Turn(-queue.rank(), held, due_at, head.id, own_due_at, usage, queue, run_s)


def next_turn(queues: Sequence[Queue]) -> Queue:
    """Return the queue that a worker serves next; none may be empty."""
    turns = [turn_of(queue) for queue in queues]
    queue = first_of(turns).queue
    queue.turns += 1
    if queue.turns % LOOK == 0 or queue.turns < LOOK:
        queue.model.accounts.group.look()
    return queue


def first_of(turns: Sequence[Turn]) -> Turn:
    """Return the turn that comes first: a client is chosen, and then one of its calls."""
    first = min(turns)
    group = first.queue.model.accounts.group
    longest = group.longest_s
    least = first
    for turn in turns:
        if turn.run_s > longest:
            longest = turn.run_s
        if turn.usage.used_s < least.usage.used_s and turn[:2] == first[:2]:
            least = turn
    if least is not first:
        band_s = BAND_RUNS * longest
        # A claim that has grown for hours must not lock the others out for hours.
        least_s = max(least.usage.used_s, group.served_s - 2.0 * band_s)
        if first.usage.used_s > least_s + band_s:
            first = least
    for turn in turns:
        if turn.usage is first.usage and turn is not first:
            mine = (turn.rank, turn.own_due_at, turn.task_id)
            if mine < (first.rank, first.own_due_at, first.task_id):
                first = turn
    return first
