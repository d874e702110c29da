"""Explains why a call waits: which rule puts whom before it. For `farm status` and the status page.

Nothing here changes the scheduler's state, and the cost is bounded with any number of calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from farm.scheduler.accounts import Account
from farm.scheduler.affinity import AT_A_POINT, point_key, waits_until
from farm.scheduler.batching import awaits_more
from farm.scheduler.phases import OPEN, QUEUED, SENT
from farm.scheduler.placement import Pool
from farm.scheduler.queues import ClientTasks, Level, Queue
from farm.scheduler.reserve import keepers, without_reserves
from farm.scheduler.sequences import LiveSequence
from farm.scheduler.state import Task, Worker
from farm.scheduler.turns import Turn, first_of, turn_of
from farm.timespan import timespan

LOOK = 1000
"""Maximum clients, queues and workers that are examined."""

NAMED = 3
"""Maximum clients that one reason names."""


class Reason(NamedTuple):
    """One reason why a call waits. rule: a short name; calls: how many calls it puts before."""

    rule: str
    text: str
    calls: int = 0


def explain(task: Task, now: float) -> list[Reason]:
    """Return why a call has not begun, the decisive reasons first; empty if it runs or has ended.

    Rules: no worker, busy, reserve, too long, batch, same point, config, sequence, at worker; and,
    for calls that go first, priority, workers held, worker-seconds, older, due time.
    """
    if task.phase is SENT:
        return _at_worker(task)
    if task.phase is not QUEUED:
        return []
    if task.sequence is not None and (reason := _sequence(task, task.sequence)) is not None:
        return [reason]
    if task.line is None:
        return []
    reasons = [*_workers(task, now), *_moments(task, now)]
    queue, level = task.queue, task.line.level
    reasons += _higher_ranks(queue, level)
    reasons += _clients(task.line, level)
    older = sum(1 for other in islice(task.line.tasks, LOOK) if other < task.id)
    if older:
        reasons.append(Reason("older", f"{_calls(older)} of its client came earlier", older))
    reasons += [reason for _, reason in queues_before(queue)]
    return reasons


def _at_worker(task: Task) -> list[Reason]:
    worker = task.attempt.worker
    first, waiting = worker.held_in_turn(worker.slots)
    if task not in waiting:
        return []
    before = len(first) + waiting.index(task)
    text = f"it waits at worker {worker.id} behind {_calls(before)}; short calls are sent ahead"
    return [Reason("at worker", text, before)]


def _sequence(task: Task, live: LiveSequence) -> Reason | None:
    """Return why the call of a sequence waits; None: the first one, which may run anywhere."""
    if task.line is None:
        before = 1 + sum(other < task.id for other in islice(live.waiting, LOOK))
        text = f"{_calls(before)} of its sequence {live.id} came earlier; they run one by one"
        return Reason("sequence", text, before)
    worker = live.worker
    if worker is not None:
        busy = _calls_of([worker]) if worker.held else "no call"
        text = f"it waits for worker {worker.id}, which has its sequence {live.id}, with {busy}"
        return Reason("sequence", text)
    of = live.of
    if of.model.pools and not of.has_place():
        text = (
            f"all places for sequences are taken: {of.places_taken} of {of.limits.most} at each "
            "worker; it waits until one of them ends"
        )
        return Reason("sequence", text)
    return None


def _workers(task: Task, now: float) -> Iterator[Reason]:
    """Yield why no worker takes the call, leaving others that go first aside."""
    model = task.queue.model
    pools = model.pools
    if not pools:
        yield Reason("no worker", f"no worker serves model {model.name!r} now")
        return
    free = [pool for pool in pools if pool.has_idle()]
    if not free:
        yield Reason("busy", _state_of(pools))
    elif (kept := keepers(task.queue)) and not without_reserves(free, task.queue, kept):
        names = ", ".join(repr(model.name) for model in kept)
        yield Reason("reserve", f"its free workers are reserved for shorter calls of {names}")
    elif not any(True for pool in free for _ in pool.idle(task.queue, now)):
        p95_s = task.queue.run_times.p95()
        text = f"its free workers end before a run, which may take {timespan(p95_s)}, would"
        yield Reason("too long", text)


def _state_of(pools: list[Pool]) -> str:
    size = sum(pool.size for pool in pools)
    there = [w for pool in pools for w in islice(pool.fullest_first(), LOOK)]
    shut = sum(worker.phase is not OPEN for worker in there)
    if shut == len(there):
        return f"none of its {size} workers takes calls: they drain, are unreachable or cannot read"
    count = size - shut
    busy = "its only worker is busy" if count == 1 else f"all its {count} workers are busy"
    return f"{busy}, with {_calls_of(there)}"


def _calls_of(workers: list[Worker]) -> str:
    """Return how many calls of which clients these workers have begun."""
    begun = [task for worker in workers for task in worker.held_in_turn(worker.most_slots)[0]]
    clients = Counter(task.account.client.name for task in begun)
    shown = ", ".join(
        f"{repr(name) if name else 'clients without a name'} ({number})"
        for name, number in clients.most_common(NAMED)
    )
    more = len(clients) - NAMED
    return f"calls of {shown}" + (f" and {more} more" if more > 0 else "")


def _moments(task: Task, now: float) -> Iterator[Reason]:
    """Yield short waits that the scheduler has decided on."""
    queue = task.queue
    if awaits_more(queue, now):
        yield Reason("batch", "its batch waits a moment for more calls")
    derives = queue.model.keeps_point and queue.operation in AT_A_POINT
    if derives and now < waits_until(task) and point_key(task.call) in queue.model.by_point:
        yield Reason("same point", "it waits for the worker that evaluated its point")
    if task.passed_at is not None:
        since = timespan(now - task.passed_at)
        text = f"for {since} calls of its client have gone first whose config a worker ran last"
        yield Reason("config", text)


def _higher_ranks(queue: Queue, level: Level) -> Iterator[Reason]:
    higher = [other for other in queue.levels() if other.rank > level.rank]
    before = sum(len(line.tasks) for other in higher for line in islice(other.lines.values(), LOOK))
    if before:
        text = f"{_calls(before)} of higher priority, or lost with a worker before"
        yield Reason("priority", text, before)


def _clients(line: ClientTasks, level: Level) -> Iterator[Reason]:
    """Yield the other clients of the queue that go first, by the rule that decides."""
    mine = share(line.account)
    by_rule: dict[str, list[ClientTasks]] = {}
    for other in islice(level.lines.values(), LOOK):
        theirs = share(other.account)
        if theirs[0] < mine[0]:
            by_rule.setdefault("workers held", []).append(other)
        elif theirs[0] == mine[0] and theirs[1] < mine[1]:
            by_rule.setdefault("worker-seconds", []).append(other)
    for rule, others in by_rule.items():
        before = sum(len(other.tasks) for other in others)
        names = ", ".join(
            f"{other.account.client.name!r} ({_shown(rule, other.account)})"
            for other in others[:NAMED]
        )
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        text = (
            f"clients {names}{more} go first; its own has {_shown(rule, line.account)} per caller"
        )
        yield Reason(rule, text, before)


def share(account: Account) -> tuple[int, float]:
    """Return the workers that a client holds and the worker-seconds it has used, per caller."""
    return account.held // account.usage.fair_slots, account.used_s


def _shown(rule: str, account: Account) -> str:
    held, used_s = share(account)
    return f"{held} workers" if rule == "workers held" else timespan(used_s)


def queues_before(queue: Queue) -> Iterator[tuple[Turn, Reason]]:
    """Yield the other queues whose next call goes first at workers that both may use, and why."""
    if not queue.size:
        return
    mine = turn_of(queue)
    pools = set(queue.model.pools)
    for model in islice(queue.model.accounts.group.models, LOOK):
        if pools.isdisjoint(model.pools):
            continue
        for other in model.waiting:
            if other is not queue and other.size:
                theirs = turn_of(other)
                if first_of([mine, theirs]) is theirs:
                    yield theirs, _before(theirs, mine)


def _before(theirs: Turn, mine: Turn) -> Reason:
    queue = theirs.queue
    what = f"{queue.operation} calls of model {queue.model.name!r}"
    client = theirs.usage.name
    if theirs.rank < mine.rank:
        return Reason("priority", f"{what} have a higher priority", queue.size)
    if theirs.usage is mine.usage:
        return Reason("due time", f"{what} of the same client are due earlier", queue.size)
    if theirs.held < mine.held:
        held = f"{theirs.held} workers per caller, {mine.usage.name!r} {mine.held}"
        return Reason("workers held", f"{what} go first: {client!r} has {held}", queue.size)
    if theirs[:4] < mine[:4]:
        ahead_s = mine.due_at - theirs.due_at
        text = f"{what} are due {timespan(ahead_s)} earlier: ten runs after they came"
        return Reason("due time", text, queue.size)
    ahead_s = mine.usage.used_s - theirs.usage.used_s
    text = f"{what} go first: {mine.usage.name!r} has used {timespan(ahead_s)} more than {client!r}"
    return Reason("worker-seconds", text, queue.size)


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"
