"""A Dask cluster as one Worker: joins it, gives it calls as tasks, tells what becomes of them.

All of it lives on the loop of Dask's client.
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
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from farm.call import Call, ModelInfo, Operation, Result, WorkerInfo
from farm.errors import FarmError, Unavailable, WorkerLost
from farm.scheduler.state import TaskId, WorkerId, needs_no_slot
from farm.transports import dask_worker
from farm.transports.dask_worker import Described, HandedBack, Models, NotPermitted, Ran, Unfit
from farm.version import __version__

if TYPE_CHECKING:
    from farm.dispatcher import Dispatcher

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Time between two looks at the size of the cluster."""

SILENT_S = 30.0
"""A Dask scheduler that does not answer for so long counts as lost."""

ANSWER_S = 5.0
"""What is asked of all Dask workers at once, and a goodbye, may take so long."""

LARGE_TASKS = {"distributed.admin.large-graph-warning-threshold": "1 PiB"}
"""Dask warns of large inputs in tasks, but these are used once."""

Tasks = Sequence[tuple[TaskId, Call]]
Tell = Callable[[Callable[["Dispatcher"], None]], None]


def killed(said: object) -> bool:
    return type(said).__name__ == "KilledWorker"


def one_line(error: object) -> str:
    """What went wrong with a task or a connection, in one line."""
    if killed(error):
        _, last, allowed = error.args  # type: ignore[attr-defined]  # by name
        return f"{allowed + 1} of Dask's workers died with it, the last was {last.address}"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(slots=True, eq=False)
class _Flight:
    """Calls that share one Dask task.

    number: the task's; once: it must not run twice; where: Dask's workers that may run it, if not
    all; permit: a queue in Dask's scheduler whose one entry a process takes before it begins, for
    tasks that need it; withdrawn: farm has taken it; future: the task's, once it is submitted.
    """

    ids: list[TaskId]
    number: int
    once: bool
    sent_at: float
    where: list[str] | None
    permit: Any = None
    withdrawn: bool = False
    future: Any = None

    def close(self) -> None:
        """Let go of the permit; a process that still asks for it is refused."""
        if self.permit is not None:
            # Dask counts a queue twice that is made and awaited; to close one that is gone is fine.
            self.permit.close()
            self.permit.close()


class Membership:
    """One connection to the cluster, and one Worker to the dispatcher, from joining to leaving.

    distributed: Dask's package; where: the cluster, as an argument of its client; least_slots: are
    offered even with fewer threads; tell: has a fact told to the dispatcher; joined: gets what the
    Worker says of itself.
    """

    def __init__(
        self,
        distributed: ModuleType,
        where: Mapping[str, str],
        specs: tuple[str, ...],
        least_slots: int,
        tell: Tell,
        joined: Callable[[WorkerInfo], None],
    ) -> None:
        self._dask = distributed
        self._where = where
        self._least_slots = least_slots
        self._tell = tell
        self._joined = joined
        life = secrets.token_hex(4)
        self._models = Models(specs, life)
        self.name = WorkerId(f"{socket.gethostname()}/{os.getpid()}-dask-{life}")
        self._client: Any = None
        self._infos: dict[str, ModelInfo] = {}
        self._fit: dict[str, int] = {}  # Dask's workers that can have the models: threads
        self._unfit: set[str] = set()
        self._there_are = asyncio.Event()  # some that are fit
        self._numbers = itertools.count()
        self._held: dict[TaskId, _Flight] = {}
        self._suspects: set[TaskId] = set()  # went missing once: each has a task of its own now
        self._jobs: set[asyncio.Task[None]] = set()
        self._draining = False
        self._resized = asyncio.Event()  # to nothing, so that no more calls come
        self._drained = asyncio.Event()
        self._lost = asyncio.Event()

    # Life

    async def serve(self) -> None:
        """Join and serve until drained. Raises when cluster or models cannot be had or are lost."""
        self._client = self._dask.Client(
            **self._where, asynchronous=True, set_as_default=False, name="farm"
        )
        await self._client
        joining = asyncio.create_task(self._join())
        watching = asyncio.create_task(self._watch())
        ends = [asyncio.create_task(e.wait()) for e in (self._drained, self._lost)]
        running: set[asyncio.Task[Any]] = {joining, watching, *ends}
        try:
            while not self._drained.is_set():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if self._lost.is_set():
                    raise Unavailable("the connection to the Dask scheduler is lost")
        finally:
            for task in running:
                task.cancel()

    async def _join(self) -> None:
        """Have some process of the cluster load the models, then join with them."""
        try:
            said = await self._client.submit(
                dask_worker.describe_models, self._models, key=(f"load-{self._models.life}", "0")
            )
        except concurrent.futures.CancelledError:
            return self._lost.set()
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
        self._infos = {info.name: info for info in said.infos}
        scheduler = self._client.scheduler.address
        self._joined(WorkerInfo(self.name, said.infos, slots=self._slots(), host=scheduler))

    async def _watch(self) -> None:
        """Tell the size of the cluster as it changes. Raises when the scheduler is silent."""
        while True:
            async with asyncio.timeout(SILENT_S):
                threads: dict[str, int] = await self._client.nthreads()
            if self._client.status != "running":
                return self._lost.set()
            self._unfit &= threads.keys()
            self._has({a: n for a, n in threads.items() if a not in self._unfit})
            await self._free_stranded()
            await asyncio.sleep(LOOK_S)

    def _has(self, fit: dict[str, int]) -> None:
        before = self._slots()
        self._fit = fit
        (self._there_are.set if fit else self._there_are.clear)()
        slots = self._slots()
        if self._infos and not self._draining and slots != before:
            self._tell(lambda d: d.worker_resized(self.name, slots))

    def _slots(self) -> int:
        if self._unfit and not self._fit:
            return 0
        return max(self._least_slots, sum(self._fit.values()))

    def spawn(self, job: Coroutine[Any, Any, None]) -> None:
        """Have a job done beside all others."""
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _free_stranded(self) -> None:
        """Give back what may run only on workers that are gone: Dask would keep it for them."""
        for flight in dict.fromkeys(self._held.values()):
            if flight.future is None or flight.where is None:
                continue
            if self._fit.keys().isdisjoint(flight.where):
                withdrawn = await self._withdraw(flight)
                ids = self._let_go(flight)
                if withdrawn:
                    self._not_run(ids, HandedBack())
                else:
                    self._missing(ids, "the Dask workers that it could run on are gone")
                await self._client.cancel([flight.future])

    async def drain(self) -> None:
        """Hand back what has not begun, and leave when the rest is done."""
        self._draining = True
        await self.hand_back(list(self._held))
        self._tell(lambda d: d.worker_resized(self.name, 0))
        self._resized.set()
        if not self._held:
            self._drained.set()

    async def close(self) -> None:
        """Leave nothing in the cluster."""
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
        """Have these calls run. sent_at: when they were sent, by the performance counter."""
        if self._draining:
            return self.spawn(self._refuse([task_id for task_id, _ in tasks]))
        questions = [task for task in tasks if needs_no_slot(task[1].operation)]
        if questions:
            self.spawn(self._describe(questions))
        for batch in self._batches([t for t in tasks if not needs_no_slot(t[1].operation)]):
            self._submit(batch, sent_at)

    async def _refuse(self, ids: Sequence[TaskId]) -> None:
        await self._resized.wait()
        self._tell(lambda d: d.taken_back(self.name, ids))

    def _batches(self, tasks: Tasks) -> Iterator[Tasks]:
        """What shares a Dask task: calls that may share an evaluation; else each has its own."""
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
        where = list(self._fit) if self._unfit else None
        flight = _Flight(ids, next(self._numbers), once, sent_at, where)
        self._held.update(dict.fromkeys(ids, flight))
        if once or ids[0] in self._suspects:
            self.spawn(self._permit(flight, calls))
        else:
            self._start(flight, calls)

    async def _permit(self, flight: _Flight, calls: Sequence[Call]) -> None:
        """Submit a task that may begin once only, or whose beginning farm must know of."""
        try:
            name = self._models.permit(flight.number)
            flight.permit = await self._dask.Queue(name, client=self._client)
            await flight.permit.put(1)
        except Exception as error:
            log.warning("no permit from Dask's scheduler: %s", one_line(error))
            return self._lost.set()
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
                # Dask's dashboard shows the model's name of it.
                key=(f"{calls[0].model}-{self._models.life}", str(flight.number)),
                pure=False,
                fifo_timeout="0 ms",  # in the order of the scheduler, which has its reasons
                workers=flight.where,
            )
        self.spawn(self._follow(flight))

    async def _follow(self, flight: _Flight) -> None:
        """Wait for a task's end and tell the dispatcher of it."""
        said: object
        try:
            said = await flight.future
        except Exception as error:
            said = error
        flight.future.release()
        cancelled = isinstance(said, concurrent.futures.CancelledError)
        if cancelled and getattr(said, "reason", "") == "scheduler-connection-lost":
            return self._lost.set()
        may_not_have_begun = cancelled or killed(said) or isinstance(said, NotPermitted)
        if may_not_have_begun and await self._withdraw(flight):
            said = HandedBack()
        flight.close()
        ids = self._let_go(flight)
        if ids:
            self._ended(flight, ids, said)
        if self._draining and not self._held:
            self._drained.set()

    async def _withdraw(self, flight: _Flight) -> bool:
        """Take the permit of a task back, if it has one; True: no process has begun the task."""
        if flight.permit is not None and not flight.withdrawn:
            with contextlib.suppress(Exception):  # then a process may have got it
                flight.withdrawn = bool(await flight.permit.get(batch=True))
        return flight.withdrawn

    def _let_go(self, flight: _Flight) -> list[TaskId]:
        """Those of its calls that nobody has answered for; they are off our hands now."""
        ids = [i for i in flight.ids if self._held.get(i) is flight]
        for task_id in ids:
            del self._held[task_id]
        return ids

    def _ended(self, flight: _Flight, ids: Sequence[TaskId], said: object) -> None:
        if isinstance(said, Ran):
            self._suspects.difference_update(ids)
            way_s = max(0.0, time.perf_counter() - flight.sent_at - said.took_s)
            answers = [
                (i, replace(o, queue_time_s=way_s) if isinstance(o, Result) else o)
                for i, o in zip(flight.ids, said.outcomes, strict=True)
            ]
            self._tell(lambda d: d.finished(self.name, answers))
        elif isinstance(said, HandedBack | Unfit):
            self._not_run(ids, said)
        elif killed(said) and self._suspects.issuperset(ids):
            # It had begun, alone, and Dask has tried each time as often as its user wants.
            guilty = WorkerLost(
                f"the call was lost with all Dask workers that ran it: {one_line(said)}"
            )
            self._tell(lambda d: d.finished(self.name, [(i, guilty) for i in ids]))
        else:
            self._missing(ids, said)

    def _not_run(self, ids: Sequence[TaskId], said: HandedBack | Unfit) -> None:
        if isinstance(said, Unfit) and said.worker not in self._unfit:
            # It would go on to take call after call, as it fails faster than others run.
            text = f"{said.worker} cannot load the models: {said.message}"
            log.error("Dask worker %s", text)
            self._tell(lambda d: d.note("unfit", self.name, f"Dask worker {text}"))
            self._unfit.add(said.worker)
            self._has({a: n for a, n in self._fit.items() if a != said.worker})
        self._tell(lambda d: d.taken_back(self.name, ids))

    def _missing(self, ids: Sequence[TaskId], why: object) -> None:
        self._suspects.update(ids)
        reason = one_line(why)
        self._tell(lambda d: d.went_missing(self.name, ids, reason))

    async def _describe(self, tasks: Tasks) -> None:
        """Ask a process that has the models, beside what it runs."""
        ids = [task_id for task_id, _ in tasks]
        calls = [call for _, call in tasks]
        await self._there_are.wait()
        worker = secrets.choice(list(self._fit))
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

    async def hand_back(self, ids: Sequence[TaskId]) -> None:
        """Give back those of these calls that no process has begun."""
        back: list[TaskId] = []
        flights = {flight: None for flight in map(self._held.get, ids) if flight is not None}
        submitted = [flight for flight in flights if flight.future is not None]
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_S):
                for flight in await self._not_begun(submitted):
                    back += self._let_go(flight)
                    await self._client.cancel([flight.future])
        self._tell(lambda d: d.taken_back(self.name, back))

    async def _not_begun(self, flights: Sequence[_Flight]) -> list[_Flight]:
        """Those that no process has begun, and none will any more."""
        # What must not run twice may be on its way to a process that was asked: its permit tells.
        withdrawn = [flight for flight in flights if flight.once and await self._withdraw(flight)]
        asked = [flight for flight in flights if not flight.once]
        answers: dict[str, list[int]] = await self._client.run(
            dask_worker.hand_back,
            self._models.life,
            [flight.number for flight in asked],
            on_error="ignore",
        )
        begun = set(itertools.chain.from_iterable(answers.values()))
        return withdrawn + [flight for flight in asked if flight.number not in begun]
