"""Answers why a call waits: its place, why it was passed over, what runs, and pending jobs.

The reasons are the scheduler's: see `explanation`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farm.dispatcher.first_worker import FIRST_AWAITED
from farm.dispatcher.questions import ASKER
from farm.errors import InvalidInput
from farm.monitoring.workers import STUCK, STUCK_FROM_S
from farm.scheduler.explanation import end_in_words, waits
from farm.scheduler.outcomes import story
from farm.scheduler.phases import QUEUED
from farm.scheduler.state import Task
from farm.wording import timespan

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher

NAMED = 3
"""Most clients that one line names; the data has more of them."""

JOBS_SHOWN = 20
"""Most jobs that are listed."""


NO_NAME = "(no name)"
"""The clients without a name, as `farm status` and the status page show them."""


_Meant = tuple[Task, int]
"""The call that is asked about, and how many wait of those that the question may mean."""


class Why:
    """Answers the question `why` about a call, or about the oldest waiting call of a client."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        dispatcher.questions.offer("why", self.answer, of_asker=True)

    def answer(self, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return the answer as JSON data, with lines of text under `why`.

        Arguments: `call`, its number or the id of its request; or `client`, which is empty for
        clients without a name, and `chain` for one of its chains; or `of`, any of these names. By
        default the client that asks. Raises InvalidInput if that one has no name. `phase` is None
        if there is no such open call.
        """
        found = self._meant(arguments)
        if isinstance(found, str):
            why = [found, *self._before_models()]
            empty: dict[str, Any] = {"before": [], "workers": None, "jobs": []}
            return {"why": why, "phase": None, "position": 0, **empty}
        (task, waiting), now = found, time.monotonic()
        state = waits(task, self._dispatcher.view, now)
        cluster: Any = self._dispatcher.parts.get("cluster", dict)()
        kinds, jobs = _jobs(cluster, task.call.model)
        lines = _lines(task, state, waiting, now)
        if task.phase is QUEUED:
            lines += _of_jobs(cluster.get("system") or "the batch system", kinds, jobs)
            if not state["workers"]["count"] and not kinds:
                lines.append(self._no_worker(task.call.model))
            lines += self._limits(task)
        return {
            "why": lines,
            **state,
            "waiting": waiting,
            "story": story(task, now),
            "kinds": kinds,
            "jobs": jobs[:JOBS_SHOWN],
        }

    def _meant(self, arguments: Mapping[str, str]) -> _Meant | str:
        """Return the call that is asked about, or why there is none. Raises InvalidInput."""
        chain = arguments.get("chain")
        if call := arguments.get("call", ""):
            return self._by_number(call) or self._by_id(call) or _not_open(call)
        if (name := arguments.get("of")) is not None:
            if found := self._by_number(name) or self._of_client(name) or self._by_id(name):
                return found
            if name.isdecimal():
                return _not_open(name)
            client = "" if name == NO_NAME else name
            no_id = ", and no open call has this id" if client else ""
        else:
            client, no_id = arguments.get("client", arguments.get(ASKER, "")), ""
            if "client" not in arguments and not client:
                raise InvalidInput(
                    "specify a call by its number in `farm status` or by its id, or a client"
                )
        found = self._of_client(client, chain)
        return found or f"{_client(client)} has no open call{_in_chain(chain)}{no_id}"

    def _by_number(self, call: str) -> _Meant | None:
        task = self._dispatcher.view.call(call)
        return None if task is None else (task, 1)

    def _by_id(self, call: str) -> _Meant | None:
        """Return the oldest waiting call of those with this id, or the oldest that a worker has."""
        tasks = self._dispatcher.view.with_id(call)
        waiting = [task for task in tasks if task.phase is QUEUED]
        return ((waiting or tasks)[0], len(waiting)) if tasks else None

    def _of_client(self, client: str, chain: str | None = None) -> _Meant | None:
        """Return the oldest waiting call of a client, or the oldest that a worker has."""
        tasks = self._dispatcher.view.waiting(client, chain)
        task = tasks[0] if tasks else self._dispatcher.view.sent_of(client, chain)
        return None if task is None else (task, len(tasks))

    def _before_models(self) -> Iterator[str]:
        """Yield what requests wait for while no model is known."""
        first = self._dispatcher.first_worker
        if first.requests:
            awaited = first.awaited() or FIRST_AWAITED
            yield f"{first.requests} requests wait until models are known: {awaited}"

    def _no_worker(self, model: str) -> str:
        """Return what is known of a model without workers that no job brings."""
        first = self._dispatcher.first_worker
        if known := first.expected.why(model):
            return known
        if first.expected.may_come:
            return "the farm starts its workers again when they end; its events say why they ended"
        return "the farm expects no other worker: add one with `farm worker`"

    def _limits(self, task: Task) -> Iterator[str]:
        most, most_of_client = self._dispatcher.view.limits
        queued, client = self._dispatcher.view.queued(), task.account.client
        if queued >= most:
            yield f"{queued} calls wait, the most that the farm takes: further ones are refused"
        elif client.queued >= most_of_client:
            yield (
                f"{client.queued} calls of client {client.name!r} wait, the most that one client "
                "may have: further ones are refused"
            )


def _lines(task: Task, state: Mapping[str, Any], waiting: int, now: float) -> list[str]:
    """Return what is known of a call and of the workers, as lines of text."""
    steps = story(task, now)
    past = [f"what happened so far: {', '.join(steps)}"] if len(steps) > 2 else []
    name = state["call"] + (f" with the id {state['id']!r}" if state["id"] else "")
    what = f"call {name}, {state['operation']} of model {state['model']!r}"
    of = _client(state["client"]) + _in_chain(state["chain"] or None)
    if not state["position"]:
        worker, since_s = task.attempt.worker.id, now - task.attempt.sent_at
        sent = f"{what}, of {of}, runs: it was sent to worker {worker} {timespan(since_s)} ago"
        return [sent, *_usual(task, worker, since_s), *past]
    first = f"{what}, of {of}, has waited {timespan(state['age_s'])}"
    if waiting > 1:
        first += f"; it is the oldest of {waiting} calls that wait"
    lines = [first, _place(state)]
    lines += [rule["text"] for rule in state["rules"] if not rule["calls"]]
    for row in state["workers"]["rows"][:1]:
        if (call := row["running"]) is not None:
            whose, since = _client(call["client"], ""), timespan(row["running_s"])
            longest = f"the longest run is call {call['call']} of {whose} on worker {row['name']}"
            lines.append(f"{longest}, for {since}; it {end_in_words(row['ends_in_s'])}")
    if (starts_in_s := state["starts_in_s"]) is not None:
        lines.append(f"by the usual run times it may begin in about {timespan(starts_in_s)}")
    return lines + past


def _usual(task: Task, worker: str, since_s: float) -> Iterator[str]:
    """Yield how long such calls run, and what to do about one that runs much longer."""
    times = task.times
    if not times.count:
        return
    p95_s = times.p95()
    yield f"of such calls before, 95 % ran at most {timespan(p95_s)}"
    if since_s > max(STUCK_FROM_S, STUCK * p95_s):
        yield (
            f"so it may hang: `farm logs {worker}` shows what its worker prints, and "
            f"`farm restart {worker}` ends it there"
        )


def _place(state: Mapping[str, Any]) -> str:
    before, position = state["before"], state["position"]
    if not before:
        return "it is next: no other call goes first"
    rows = [
        f"{row['count']} of {_client(row['client'], '')} ({row['reason']})"
        for row in before[:NAMED]
    ]
    if len(before) > NAMED:
        rows.append(f"{sum(row['count'] for row in before[NAMED:])} of others")
    return f"its place is {position}; before it go about {', '.join(rows)}"


def _jobs(cluster: Mapping[str, Any], model: str) -> tuple[list[Any], list[Any]]:
    """Return the kinds of workers with a model, and their jobs that have no workers yet."""
    kinds = [row for row in cluster.get("kinds", ()) if model in row["models"]]
    names = {row["name"] for row in kinds}
    jobs = [j for j in cluster.get("jobs", ()) if j["kind"] in names and not j["workers"]]
    if (problem := cluster.get("problem")) and kinds:
        kinds[0] = {
            **kinds[0],
            "problem": "; ".join(filter(None, (problem, kinds[0]["problem"]))),
        }
    return kinds, jobs


def _of_jobs(
    system: str, kinds: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield what the jobs of workers with the model wait for."""
    for kind in kinds:
        mine = [job for job in jobs if job["kind"] == kind["name"]]
        for job in mine[:NAMED]:
            yield f"{system} job {job['id']} of kind {kind['name']!r} is {_job(job)}"
        if len(mine) > NAMED:
            yield f"and {len(mine) - NAMED} more jobs of kind {kind['name']!r} without workers"
        if kind["problem"]:
            again_s = kind["next_try_in_s"]
            again = (
                "" if again_s is None else f"; the farm is paused and tries in {timespan(again_s)}"
            )
            yield f"kind {kind['name']!r}: {kind['problem']}{again}"
        running = kind["pending"] + kind["running"]
        if running >= kind["max_jobs"]:
            yield f"kind {kind['name']!r} has {running} of at most {kind['max_jobs']} jobs"
        elif not mine and not kind["problem"] and not kind["running"]:
            yield f"no job of kind {kind['name']!r} has been submitted yet"


def _job(job: Mapping[str, Any]) -> str:
    text = str(job["phase"])
    said = " ".join(filter(None, (job["state"], job["reason"] if text == "pending" else "")))
    if said:
        text += f" ({said})"
    if (at := job["starts_at"]) is not None and at > time.time():
        text += time.strftime(", expected to start %Y-%m-%d %H:%M", time.localtime(at))
    return text


def _not_open(call: str) -> str:
    return f"call {call} is not open: it was answered or cancelled, or never came"


def _client(name: str, word: str = "client ") -> str:
    """Return how a line calls a client. word: the text before its name."""
    return f"{word}{name!r}" if name else "a client without a name"


def _in_chain(chain: str | None) -> str:
    return "" if chain is None else f" in chain {chain!r}"
