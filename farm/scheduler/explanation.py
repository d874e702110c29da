"""Explains why a call waits: what `fill` noted, whose calls go first, and what the workers run.

Nothing here changes the scheduler's state, and the cost is bounded with any number of calls. Turns
of clients depend on runs that have not ended, so a place is an estimate: the calls that go first
if no more are submitted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heapify, heapreplace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from farm.scheduler.accounts import share
from farm.scheduler.phases import FULL, OPEN, QUEUED, SENT, SHUT, SHUT_AND_FULL
from farm.scheduler.queues import BATCH, NO_PLACE, POINT, RESERVE, TOO_LONG, ClientTasks, Queue
from farm.scheduler.reserve import keepers
from farm.scheduler.state import Task
from farm.scheduler.turns import Turn, first_of, turn_of
from farm.scheduler.workers import Worker
from farm.transitions import words
from farm.wording import counted, timespan

if TYPE_CHECKING:
    from farm.scheduler.view import View

LOOK = 1000
"""Maximum clients, queues and workers that are examined."""

NAMED = 3
"""Maximum clients that one reason names."""

SHOWN = 20
"""Most clients, and most workers, that are listed; the others are counted."""


class Reason(NamedTuple):
    """One reason why a call waits. rule: a short name; calls: how many calls it puts before."""

    rule: str
    text: str
    calls: int = 0


class Before(NamedTuple):
    """Calls of one client that go first, by a rule. seconds: of a worker, infinite if unknown."""

    client: str
    calls: int
    reason: str
    rule: str
    seconds: float


def explain(task: Task, now: float) -> list[Reason]:
    """Return why a call has not begun, the decisive reasons first; empty if it runs or has ended.

    Rules: no worker, busy, reserve, too long, batch, same point, config, sequence; and, for calls
    that go first, at worker, priority, workers held, worker-seconds, turns, older, due time.
    """
    reasons = [*_noted(task, now)] if task.phase is QUEUED and task.line is not None else []
    by_rule: dict[str, list[Before]] = {}
    for row in _before(task):
        by_rule.setdefault(row.rule, []).append(row)
    for rule, rows in by_rule.items():
        calls = sum(row.calls for row in rows)
        names = _named(Counter({row.client: row.calls for row in rows}), total=False)
        text = f"before it {counted(calls, 'call')} of {names}: {rows[0].reason}"
        reasons.append(Reason(rule, text, calls))
    return reasons


def _named(clients: Counter[str], *, total: bool = True) -> str:
    shown = [
        (repr(name) if name else "clients without a name") + (f" ({number})" if total else "")
        for name, number in clients.most_common(NAMED)
    ]
    more = len(clients) - NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _noted(task: Task, now: float) -> Iterator[Reason]:
    """Yield why a call's queue was passed over, and what else was noted when others went first."""
    queue, live = task.queue, task.sequence
    model = queue.model
    if live is not None and live.queue is not None:
        worker = live.queue.worker
        text = f"it waits for worker {worker.id}, which has its sequence {live.id}"
        yield Reason("sequence", text + _runs([worker], now))
        return
    why = queue.passed_over
    if not model.pools:
        yield Reason("no worker", f"no worker serves model {model.name!r} now")
    elif why is BATCH:
        yield Reason("batch", "the next batch waits a moment for more calls")
    elif why is POINT:
        yield Reason("same point", "the next call waits for the worker that evaluated its point")
    elif why is RESERVE:
        names = ", ".join(repr(model.name) for model in keepers(queue))
        yield Reason("reserve", f"its free workers are reserved for shorter calls of {names}")
    elif why is TOO_LONG:
        p95 = timespan(queue.head().times.p95())
        text = f"its free workers end before the next call, which may take {p95}, would"
        yield Reason("too long", text)
    elif why is NO_PLACE and live is not None:
        text = (
            f"all places for sequences are taken: {live.of.places_taken} of {live.of.limits.most}"
        )
        yield Reason("sequence", f"{text} at each worker; it waits until one of them ends")
    else:
        yield Reason("busy", _busy(queue, now))
    if task.passed_at is not None:
        since = timespan(now - task.passed_at)
        text = f"for {since} calls of its client have gone first whose config a worker ran last"
        yield Reason("config", text)


def _busy(queue: Queue, now: float) -> str:
    size, there = sum(pool.size for pool in queue.model.pools), _workers_of(queue)
    open_ = [worker for worker in there if worker.phase is OPEN]
    if not open_:
        return f"none of its {size} workers takes calls: they drain, are unreachable or cannot read"
    count, idle = len(open_), sum(worker.lots < worker.slots for worker in open_)
    busy = "its only worker is busy" if count == 1 else f"all its {count} workers are busy"
    if idle:
        busy = f"{count - idle} of its {count} workers are busy"
    closed = "" if count == size else f"; {size - count} more drain, are unreachable or cannot read"
    return busy + _runs(open_, now) + closed


def _runs(workers: list[Worker], now: float) -> str:
    """Return, after a comma, whose calls of whatever model these run, and when the first ends."""
    begun = [(t, w) for w in workers for t in w.held_in_turn(w.most_slots)[0]]
    if not begun:
        return ", with no call"
    clients = Counter(task.account.client.name for task, _ in begun)
    ends, model = min([(ends_in_s(t, w, now), t.call.model) for t, w in begun])
    return f", with calls of {_named(clients)}; one of model {model!r} {end_in_words(ends)}"


def _workers_of(queue: Queue) -> list[Worker]:
    return [w for pool in queue.model.pools for w in islice(pool.fullest_first(), LOOK)]


# The running calls


def _run_s(task: Task) -> float:
    """Return how long a call runs on average; infinity while that is not known."""
    times = task.times
    return times.mean * task.run_length if times.count else math.inf


def ends_in_s(task: Task, worker: Worker, now: float) -> float:
    """Return in how many seconds a call that a worker runs may end; infinity: it is not known.

    It ends after the mean run of its kind or, if it runs longer, after what 95 % of them took.
    """
    ran_s, rows = now - worker.began(task.at(worker).sent_at), task.run_length
    for whole_s in (task.times.mean * rows, task.times.p95() * rows):
        if ran_s < whole_s:
            return whole_s - ran_s
    return math.inf


def end_in_words(ends_in_s: float | None) -> str:
    """Return what is known of the end of a run."""
    known = ends_in_s is not None and ends_in_s < math.inf
    return f"may end in about {timespan(ends_in_s)}" if known else "has an unknown end"


def _free_in_s(worker: Worker, now: float, until: Task | None = None) -> list[float]:
    """Return in how many seconds each slot may be free from what it has, or has before `until`."""
    first, waiting = worker.held_in_turn(worker.slots)
    lots = {task.at(worker).lot: ends_in_s(task, worker, now) for task in first}
    free = [seconds for lot, seconds in lots.items() if lot is not None]
    free += [0.0] * (worker.slots - len(free))
    heapify(free)
    end = None if until is None else until.at(worker).lot
    for lot, task in {task.at(worker).lot: task for task in waiting}.items():
        if lot is end or not free:
            break
        heapreplace(free, free[0] + _run_s(task))
    return free


def starts_in_s(task: Task, before: Iterable[Before], now: float) -> float | None:
    """Return in how many seconds a waiting call may begin; None if that is not known.

    From what runs now, of whatever model, and what goes first, if no other call comes.
    """
    if task.phase is SENT:
        return _finite(min(_free_in_s(task.attempt.worker, now, task), default=math.inf))
    if task.queue.passed_over in (RESERVE, TOO_LONG, NO_PLACE):
        return None
    live = task.sequence
    at = [live.queue.worker] if live is not None and live.queue else _workers_of(task.queue)
    free = sorted(seconds for worker in at for seconds in _free_in_s(worker, now))
    ahead_s, begins_s = sum(row.seconds for row in before), math.inf
    for count, seconds in enumerate(free):  # the first slots do what goes first until then
        if seconds >= begins_s or seconds == math.inf:
            break
        ahead_s += seconds
        begins_s = ahead_s / (count + 1)
    return _finite(begins_s)


def _finite(seconds: float) -> float | None:
    return None if seconds == math.inf else seconds


# Turns


def place(task: Task) -> tuple[int, list[Before]]:
    """Return the place of a call that waits, counted from 1, and whose calls go before it.

    The place is 0 if the call runs. The clients with most calls come first.
    """
    before = sorted(_before(task), key=lambda row: -row.calls)
    if task.phase is not QUEUED and not before:
        return 0, []
    shown, rest = before[:SHOWN], before[SHOWN:]
    if rest:
        count, seconds = sum(row.calls for row in rest), sum(row.seconds for row in rest)
        reason = "different rules"
        shown.append(Before(f"({len(rest)} others)", count, reason, reason, seconds))
    return 1 + sum(row.calls for row in before), shown


def _before(task: Task) -> Iterator[Before]:
    line, queue, live = task.line, task.queue, task.sequence
    mine, run_s = task.account.client.name, _mean_s(queue)
    if task.phase is SENT:
        worker = task.attempt.worker
        first, waiting = worker.held_in_turn(worker.slots)
        if task in waiting:
            ahead = Counter(
                t.account.client.name for t in [*first, *waiting[: waiting.index(task)]]
            )
            reason = f"sent to worker {worker.id} earlier"
            for client, count in ahead.items():
                yield Before(client, count, reason, "at worker", 0.0)
        return
    if task.phase is not QUEUED:
        return
    if live is not None and (line is None or live.queue is not None):
        if line is None:
            count = 1 + sum(other < task.id for other in islice(live.waiting, LOOK))
            reason = f"earlier calls of its sequence {live.id}"
            yield Before(mine, count, reason, "sequence", count * run_s)
        return
    if line is None:
        return
    for level in queue.levels():
        if level.rank > line.level.rank:
            for each in islice(level.lines.values(), LOOK):
                reason, count = "higher priority, or lost with a worker before", len(each.tasks)
                name = each.account.client.name
                yield Before(name, count, reason, "priority", count * run_s)
    older = sum([other < task.id for other in line.tasks])
    for each in islice(line.level.lines.values(), LOOK):
        if each is not line and (row := _of_other(each, line, older, run_s)) is not None:
            yield row
    if older:
        yield Before(mine, older, "earlier calls of the same client", "older", older * run_s)
    yield from _of_other_queues(queue)


def _mean_s(queue: Queue) -> float:
    """Return the time of a worker that one call of a queue takes; infinity if it is not known."""
    return queue.run_times.mean / queue.max_batch if queue.run_times.count else math.inf


def _of_other(other: ClientTasks, line: ClientTasks, older: int, run_s: float) -> Before | None:
    """Return how many calls of another client go before one that has `older` of its own before.

    The other client gets the turns in which it is behind, and its share of those that follow.
    """
    theirs, mine = share(other.account), share(line.account)
    weight = other.account.usage.weight
    ahead, rule, reason = 0, "turns", "clients take turns"
    if theirs[0] < mine[0]:
        ahead, rule = (mine[0] - theirs[0]) * weight, "workers held"
        reason = "it holds fewer workers per caller"
    elif theirs[0] == mine[0] and theirs[1] < mine[1]:
        runs = (mine[1] - theirs[1]) * weight / run_s if run_s else 0.0
        ahead, rule = max(1, round(runs)), "worker-seconds"
        reason = "it has used fewer worker-seconds per caller"
    count = min(len(other.tasks), ahead + older * weight // line.account.usage.weight)
    name = other.account.client.name
    return Before(name, count, reason, rule, count * run_s) if count else None


def _of_other_queues(queue: Queue) -> Iterator[Before]:
    """Yield the next calls of other queues that go first at workers that both may use."""
    if not queue.size:
        return
    mine, pools = turn_of(queue), set(queue.model.pools)
    for model in islice(queue.model.accounts.group.models, LOOK):
        for other in model.waiting if not pools.isdisjoint(model.pools) else ():
            if other is not queue and first_of([mine, theirs := turn_of(other)]) is theirs:
                rule, why = _why_first(theirs, mine)
                what = f"{other.operation} calls of model {model.name!r} {why}"
                count = other.size if rule == "priority" else 1
                yield Before(theirs.usage.name, count, what, rule, count * _mean_s(other))


def _why_first(theirs: Turn, mine: Turn) -> tuple[str, str]:
    """Return the rule by which a turn comes first, and the words about its calls."""
    if theirs.rank < mine.rank:
        return "priority", "have a higher priority"
    if theirs.usage is not mine.usage and theirs.held < mine.held:
        return "workers held", "are of a client that holds fewer workers per caller"
    if theirs.usage is mine.usage or theirs[:4] < mine[:4]:
        return "due time", "are due earlier: ten runs after they came"
    ahead = timespan(mine.usage.used_s - theirs.usage.used_s)
    return "worker-seconds", f"are of a client that has used {ahead} less"


# As JSON data


def workers_of(queue: Queue, view: View, now: float) -> dict[str, Any]:
    """Return what the workers of a model do, as JSON data; those that run longest come first.

    shut: they take no calls, because they drain or are unreachable; full: they have not read what
    they were sent. running: how many of their calls each client has.
    """
    workers = _workers_of(queue)
    running = Counter(t.account.client.name for w in workers for t, _ in w.runs(now))
    shut = sum(worker.phase in (SHUT, SHUT_AND_FULL) for worker in workers)
    rows = sorted([_row(w, view, now) for w in workers], key=lambda row: -(row["running_s"] or 0.0))
    return {
        "count": sum(pool.size for pool in queue.model.pools),
        "busy": sum(1 for worker in workers if worker.held),
        "idle": sum(1 for w in workers if not w.held and w.phase in (OPEN, FULL)),
        "shut": shut,
        "full": sum(worker.phase is FULL for worker in workers),
        "running": dict(running.most_common(SHOWN)),
        "rows": rows[:SHOWN],
    }


def _row(worker: Worker, view: View, now: float) -> dict[str, Any]:
    row = {"name": worker.id, "phase": words(worker.phase), **view.running(worker, now)}
    running = worker.running()
    ends_at = None if running is None else _finite(ends_in_s(running[0], worker, now))
    return {**row, "ends_in_s": ends_at}


def waits(task: Task, view: View, now: float) -> dict[str, Any]:
    """Return why a call has not begun, with its place and its model's workers, as JSON data."""
    position, before = place(task)
    return {
        **view.called(task),
        "phase": words(task.phase),
        "age_s": now - task.submitted_at,
        "position": position,
        "before": [
            {"client": row.client, "count": row.calls, "reason": row.reason} for row in before
        ],
        "starts_in_s": starts_in_s(task, before, now) if position else None,
        "rules": [reason._asdict() for reason in explain(task, now)],
        "workers": workers_of(task.queue, view, now),
    }
