"""A Dask cluster as one Worker: joins it, runs calls as Dask tasks, and reports their outcomes.

All of it runs on the event loop of Dask's client.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from farm.call import Call, ModelInfo, Operation, Result, WorkerInfo
from farm.errors import FarmError, Unavailable, WorkerLost
from farm.scheduler.state import TaskId, WorkerId, needs_no_slot
from farm.transports.dask.processes import Processes
from farm.version import __version__
from farm.wire.usage import Used
from farm.worker import dask as dask_worker
from farm.worker.dask import Described, Models, NotPermitted, Ran, Recalled, Unfit

if TYPE_CHECKING:
    from farm.dispatcher.dispatcher import Dispatcher

log = logging.getLogger(__name__)

LEARN_EVERY_S = 5.0
"""Interval at which Dask's scheduler is asked what its workers use."""

LOOK_S = 0.5
"""Interval between checks of the cluster's size."""

SILENT_S = 30.0
"""Silence after which a Dask scheduler counts as lost."""

ANSWER_S = 5.0
"""Timeout of a request to all Dask workers, and of closing the connection."""

LARGE_TASKS = {"distributed.admin.large-graph-warning-threshold": "1 PiB"}
"""Raises Dask's threshold for warnings about large task inputs: these inputs are used only once."""

Tasks = Sequence[tuple[TaskId, Call]]
Tell = Callable[[Callable[["Dispatcher"], None]], None]


def killed(said: object) -> TypeGuard[BaseException]:
    """Whether Dask gave a task up because the workers that ran it died: its `KilledWorker`."""
    return type(said).__name__ == "KilledWorker"


def one_line(error: object) -> str:
    """Return the error of a task or connection in one line."""
    if killed(error):
        _, last, allowed = error.args
        return f"{allowed + 1} of Dask's workers died with it, the last was {last.address}"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(slots=True, eq=False)
class _Flight:
    """Calls that share one Dask task.

    once: it must run at most once; where: the Dask workers that may run it, if not all; permit: a
    queue in Dask's scheduler from which a process takes the one entry before it begins, for tasks
    that need it; withdrawn: farm has taken the permit itself; future: the task's Dask future, once
    submitted.
    """

    ids: list[TaskId]
    once: bool
    sent_at: float
    where: list[str] | None
    permit: Any = None
    withdrawn: bool = False
    future: Any = None
    number: int = field(default_factory=itertools.count().__next__)

    def close(self) -> None:
        """Release the permit; a process that still asks for it is refused."""
        if self.permit is not None:
            # Dask counts a reference twice for a queue that is both created and awaited. Closing a
            # closed queue is harmless.
            self.permit.close()
            self.permit.close()


class Membership:
    """One connection to the cluster, which is one Worker to the dispatcher from join to leave.

    processes: those of the cluster; tell: reports a fact to the dispatcher.
    """

    def __init__(self, specs: tuple[str, ...], processes: Processes, tell: Tell) -> None:
        self.processes = processes
        self._tell = tell
        life = secrets.token_hex(4)
        self._models = Models(specs, life)
        self.name = WorkerId(f"{socket.gethostname()}/{os.getpid()}-dask-{life}")
        self._client: Any = None
        self._infos: dict[str, ModelInfo] = {}
        self._there_are = asyncio.Event()  # set while some worker is fit
        self._held: dict[TaskId, _Flight] = {}
        self._suspects: set[TaskId] = set()  # went missing once: each now gets its own task
        self._jobs: set[asyncio.Task[None]] = set()
        # While it drains; set: the dispatcher knows of zero slots, so no more calls arrive.
        self._draining: asyncio.Event | None = None
        self._drained: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """False: the connection to Dask's scheduler was lost before."""

    # Lifetime

    async def serve(self, where: Mapping[str, str], joined: Callable[[WorkerInfo], None]) -> None:
        """Join and serve until drained. Raises if the cluster or models are missing or get lost.

        where: the cluster, as an argument of Dask's client. joined: called with the Worker's
        description.
        """
        import distributed

        self._client = distributed.Client(
            **where, asynchronous=True, set_as_default=False, name="farm"
        )
        await self._client
        running: set[asyncio.Future[Any]] = {
            asyncio.create_task(self._join(joined)),
            asyncio.create_task(self._watch()),
            self._drained,
        }
        try:
            while not self._drained.done():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            if not self._drained.result():
                raise Unavailable("the connection to the Dask scheduler is lost")
        finally:
            for task in running:
                task.cancel()

    def _ends(self, *, drained: bool) -> None:
        if not self._drained.done():
            self._drained.set_result(drained)

    async def _join(self, joined: Callable[[WorkerInfo], None]) -> None:
        """Let one process of the cluster load the models, then join with their descriptions."""
        try:
            said = await self._client.submit(
                dask_worker.describe_models,
                self._models,
                key=(f"load-{self._models.life}", "0"),
                resources=self.processes.needs or None,
            )
        except concurrent.futures.CancelledError:
            return self._ends(drained=False)
        except Exception as error:
            raise Unavailable(
                f"Dask's workers cannot run farm: {one_line(error)}; "
                f"install modelfarm {__version__} where they run"
            ) from None
        if isinstance(said, Unfit):
            raise Unavailable(
                f"Dask worker {said.worker} cannot load the models: {said.message}; "
                "Dask's workers need the same files and packages as farm serve",
                detail=said.detail,
            )
        assert isinstance(said, Described)
        if said.version != __version__:
            raise Unavailable(
                f"Dask's workers have modelfarm {said.version}, this is {__version__}; "
                "install the same version"
            )
        for info in said.infos:
            if info.sequences is not None:
                raise Unavailable(
                    f"model {info.name!r} is stateful, and Dask decides itself which of its "
                    "processes runs a call; serve it without Dask"
                )
        self._infos = {info.name: info for info in said.infos}
        scheduler = self._client.scheduler.address
        slots = self.processes.offered
        joined(WorkerInfo(self.name, said.infos, slots=slots, host=scheduler))

    async def _watch(self) -> None:
        """Report changes of the cluster's size. Raises if the scheduler is silent."""
        learn_at, lacking = 0.0, ""
        ours = f"-{self._models.life}"  # in the key of each of our tasks
        while True:
            async with asyncio.timeout(SILENT_S):
                threads: dict[str, int] = await self._client.nthreads()
                if self.processes.strangers(threads) or time.monotonic() >= learn_at:
                    learn_at = time.monotonic() + LEARN_EVERY_S
                    self.processes.learn((await self._client.scheduler.identity())["workers"])
                    self._report(self.processes.used())
                held: dict[str, Sequence[object]] = await self._client.processing()
            if self._client.status != "running":
                return self._ends(drained=False)
            running = {address: sum(ours in str(k) for k in keys) for address, keys in held.items()}
            before, known = self.processes.offered, lacking
            self.processes.update(threads, running)
            self._resize(before)
            lacking = self.processes.lacking()
            if lacking and lacking != known:  # otherwise it looks like a farm that hangs
                log.warning("%s", lacking)
            await self._free_stranded()
            await asyncio.sleep(LOOK_S)

    def _report(self, used: Used) -> None:
        """Report what the cluster uses."""

        def tell(dispatcher: Dispatcher) -> None:
            for each in dispatcher.on_used:
                each(self.name, used)

        self._tell(tell)

    def _resize(self, before: int) -> None:
        """Report the number of slots, if it has changed."""
        (self._there_are.set if self.processes.slots else self._there_are.clear)()
        slots = self.processes.offered
        if self._infos and self._draining is None and slots != before:
            self._tell(lambda d: d.worker_resized(self.name, slots))

    def spawn(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a job concurrently with all others."""
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _free_stranded(self) -> None:
        """Recall tasks that only lost workers may run: Dask would keep them waiting."""
        for flight in dict.fromkeys(self._held.values()):
            if flight.future is None or flight.where is None:
                continue
            if self.processes.slots.keys().isdisjoint(flight.where):
                withdrawn = await self._withdraw(flight)
                ids = self._let_go(flight)
                if withdrawn:
                    self._not_run(ids, Recalled())
                else:
                    self._missing(ids, "the Dask workers that it could run on are gone")
                await self._client.cancel([flight.future])

    async def drain(self) -> None:
        """Recall calls that have not begun, and leave when the others are finished."""
        self._draining = self._draining or asyncio.Event()
        await self.recall(list(self._held))
        self._tell(lambda d: d.worker_resized(self.name, 0))
        self._draining.set()
        if not self._held:
            self._ends(drained=True)

    async def close(self) -> None:
        """Release everything in the cluster."""
        for job in self._jobs:
            job.cancel()
        if self._client is None:
            return
        for flight in self._held.values():
            flight.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_S):
                if self._client.status == "running":
                    await self._client.run(dask_worker.forget, self._models, on_error="ignore")
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._client.close(), ANSWER_S)

    # Calls

    def take(self, tasks: Tasks, sent_at: float) -> None:
        """Submit these calls. sent_at: when they were sent, by the performance counter."""
        if self._draining is not None:
            return self.spawn(self._refuse(self._draining, [task_id for task_id, _ in tasks]))
        questions = [task for task in tasks if needs_no_slot(task[1].operation)]
        if questions:
            self.spawn(self._describe(questions))
        for batch in self._batches([t for t in tasks if not needs_no_slot(t[1].operation)]):
            self._submit(batch, sent_at)

    async def _refuse(self, resized: asyncio.Event, ids: Sequence[TaskId]) -> None:
        await resized.wait()
        self._tell(lambda d: d.recalled(self.name, ids))

    def _batches(self, tasks: Tasks) -> Iterator[Tasks]:
        """Yield groups of tasks that share a Dask task; calls that cannot share get one each."""
        filling: dict[tuple[str, str], list[tuple[TaskId, Call]]] = {}
        for task in tasks:
            task_id, call = task
            most = self._infos[call.model].max_batch
            if most == 1 or call.operation is not Operation.EVALUATE or task_id in self._suspects:
                yield [task]
                continue
            batch = filling.setdefault((call.model, call.config), [])
            if batch and sum(c.rows or 1 for _, c in batch) + (call.rows or 1) > most:
                yield batch
                batch = filling[call.model, call.config] = []
            batch.append(task)
        yield from filling.values()

    def _submit(self, tasks: Tasks, sent_at: float) -> None:
        ids = [task_id for task_id, _ in tasks]
        calls = [call for _, call in tasks]
        once = not self._infos[calls[0].model].repeatable
        where = list(self.processes.slots) if self.processes.unfit else None
        flight = _Flight(ids, once, sent_at, where)
        self._held.update(dict.fromkeys(ids, flight))
        if once or ids[0] in self._suspects:
            self.spawn(self._permit(flight, calls))
        else:
            self._start(flight, calls)

    async def _permit(self, flight: _Flight, calls: Sequence[Call]) -> None:
        """Submit a task with a permit: if it may begin only once, or farm must know that it has."""
        import distributed

        try:
            name = self._models.permit(flight.number)
            flight.permit = await distributed.Queue(name, client=self._client)
            await flight.permit.put(1)
        except Exception as error:
            log.warning("no permit from Dask's scheduler: %s", one_line(error))
            return self._ends(drained=False)
        self._start(flight, calls)

    def _start(self, flight: _Flight, calls: Sequence[Call]) -> None:
        import dask.config

        with dask.config.set(LARGE_TASKS):
            flight.future = self._client.submit(
                dask_worker.run,
                self._models,
                flight.number,
                calls,
                permit=flight.permit is not None,
                once=flight.once,
                # Dask's dashboard shows the model's name from the key.
                key=(f"{calls[0].model}-{self._models.life}", str(flight.number)),
                pure=False,
                fifo_timeout="0 ms",  # in the order that farm's scheduler chose
                workers=flight.where,
                resources=self.processes.needs or None,
            )
        self.spawn(self._follow(flight))

    async def _follow(self, flight: _Flight) -> None:
        """Wait for the end of a task and report it to the dispatcher."""
        said: object
        try:
            said = await flight.future
        except Exception as error:
            said = error
        flight.future.release()
        cancelled = isinstance(said, concurrent.futures.CancelledError)
        if cancelled and getattr(said, "reason", "") == "scheduler-connection-lost":
            return self._ends(drained=False)
        may_not_have_begun = cancelled or killed(said) or isinstance(said, NotPermitted)
        if may_not_have_begun and await self._withdraw(flight):
            said = Recalled()
        flight.close()
        ids = self._let_go(flight)
        if ids:
            self._ended(flight, ids, said)
        if self._draining is not None and not self._held:
            self._ends(drained=True)

    async def _withdraw(self, flight: _Flight) -> bool:
        """Take the permit of a task, if it has one; True: no process has begun the task."""
        if flight.permit is not None and not flight.withdrawn:
            with contextlib.suppress(Exception):  # if this fails a process may have taken it
                flight.withdrawn = bool(await flight.permit.get(batch=True))
        return flight.withdrawn

    def _let_go(self, flight: _Flight) -> list[TaskId]:
        """Return the calls of the task that are still unanswered, and stop tracking them."""
        ids = [i for i in flight.ids if self._held.get(i) is flight]
        for task_id in ids:
            del self._held[task_id]
        return ids

    def _ended(self, flight: _Flight, ids: Sequence[TaskId], said: object) -> None:
        if isinstance(said, Ran):
            self._suspects.difference_update(ids)
            self.processes.done[said.worker] += len(ids)
            way_s = max(0.0, time.perf_counter() - flight.sent_at - said.took_s)
            answers = [
                (i, replace(o, queue_time_s=way_s) if isinstance(o, Result) else o)
                for i, o in zip(flight.ids, said.outcomes, strict=True)
            ]
            self._tell(lambda d: d.finished(self.name, answers))
        elif isinstance(said, Recalled | Unfit):
            self._not_run(ids, said)
        elif killed(said) and self._suspects.issuperset(ids):
            # It had begun, alone, and Dask has retried it as often as its user configured.
            guilty = WorkerLost(
                f"the call was lost with all Dask workers that ran it: {one_line(said)}"
            )
            self._tell(lambda d: d.finished(self.name, [(i, guilty) for i in ids]))
        else:
            self._missing(ids, said)

    def _not_run(self, ids: Sequence[TaskId], said: Recalled | Unfit) -> None:
        if isinstance(said, Unfit) and said.worker not in self.processes.unfit:
            # It would accept call after call, because it fails faster than others run.
            text = f"{said.worker} cannot load the models: {said.message}"
            log.error("Dask worker %s", text)
            self._tell(lambda d: d.note("unfit", self.name, f"Dask worker {text}"))
            before = self.processes.offered
            self.processes.exclude(said.worker)
            self._resize(before)
        self._tell(lambda d: d.recalled(self.name, ids))

    def _missing(self, ids: Sequence[TaskId], why: object) -> None:
        self._suspects.update(ids)
        reason = one_line(why)
        self._tell(lambda d: d.went_missing(self.name, ids, reason))

    async def _describe(self, tasks: Tasks) -> None:
        """Let a process that has the models describe them, while it runs other tasks."""
        ids = [task_id for task_id, _ in tasks]
        calls = [call for _, call in tasks]
        await self._there_are.wait()
        worker = secrets.choice(list(self.processes.slots))
        ask = self._client.run
        try:
            said = await ask(dask_worker.describe, self._models, calls, workers=[worker])
            outcomes: list[Result | FarmError] | Unfit = said[worker]
        except Exception as error:
            return self._missing(ids, error)
        if isinstance(outcomes, Unfit):
            return self._not_run(ids, outcomes)
        answers = list(zip(ids, outcomes, strict=True))
        self._tell(lambda d: d.finished(self.name, answers))

    async def recall(self, ids: Sequence[TaskId]) -> None:
        """Recall those of these calls that no process has begun."""
        back: list[TaskId] = []
        flights = {flight: None for flight in map(self._held.get, ids) if flight is not None}
        submitted = [flight for flight in flights if flight.future is not None]
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_S):
                for flight in await self._not_begun(submitted):
                    back += self._let_go(flight)
                    await self._client.cancel([flight.future])
        self._tell(lambda d: d.recalled(self.name, back))

    async def _not_begun(self, flights: Sequence[_Flight]) -> list[_Flight]:
        """Return the tasks that no process has begun or will begin."""
        # A process that was asked may not have received a run-once task yet: only the permit
        # decides.
        withdrawn = [flight for flight in flights if flight.once and await self._withdraw(flight)]
        asked = [flight for flight in flights if not flight.once]
        answers: dict[str, list[int]] = await self._client.run(
            dask_worker.recall,
            self._models.life,
            [flight.number for flight in asked],
            on_error="ignore",
        )
        begun = set(itertools.chain.from_iterable(answers.values()))
        return withdrawn + [flight for flight in asked if flight.number not in begun]
