"""The autoscaler of jobs in a batch system: submits them as demand grows, releases idle ones.

`policy` decides how many jobs, `jobs` keeps the record, `errands` asks the batch system about them,
whose commands an `Adapter` such as `slurm` runs; this module is the loop that connects them with
the dispatcher. No command blocks the loop: all run as `errands`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.first_worker import Expectation
from farm.errors import Unavailable
from farm.provision.batch.errands import CANCEL_AGAIN_S, Errands, JobWatch, Releases
from farm.provision.batch.farm_job import Change, FarmJob
from farm.provision.batch.job_phases import CANCELLED, PENDING, STARTING, STOPPED, UNSURE
from farm.provision.batch.jobs import ON_LET_GO, Jobs
from farm.provision.batch.plan import ClusterPlan
from farm.provision.batch.policy import Decision, Offer, demands, share
from farm.provision.batch.restart_state import RestartState
from farm.provision.batch.script import JobScripts, last_words
from farm.provision.batch.standing import (
    KindState,
    how_it_stands,
    job_row,
    kind_row,
    kinds_with,
    starts_in,
    tell,
)
from farm.provision.batch.system import Adapter, BatchError, SubmissionRefused

log = logging.getLogger(__name__)

STEP_S = 0.5
"""Seconds between two checks of demand, which are cheap."""

AT_ONCE = 20
"""Most submissions of a kind between two checks of demand."""

ENDING_S = 5.0
"""Time for jobs to end by themselves when the farm stops; later they are cancelled."""

KILLED_S = 60.0
"""Time after which a cancelled job that no list shows has ended; KillWait is 30 s by default."""

GONE_S = 150.0
"""Longest wait for cancelled jobs to end. SLURM kills them after KillWait, 30 s by default, and
where it keeps no records of ended jobs, their absence is confirmed after a minute."""

SAVING_S = 10.0
"""Longest wait for the file system when the farm stops."""


class Elastic(Expectation):
    """The jobs of one farm, from `start` to `stop`; the `Expectation` of the workers they bring.

    connect: the connection file for workers; folder: for the jobs' output and the farm's identity,
    by which a restarted farm finds its earlier jobs. adapter: of the plan's system, if not given.
    Raises Unavailable if its commands are missing, SettingsError if a template is wrong.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        *,
        connect: Path,
        folder: Path,
        adapter: Adapter | None = None,
    ) -> None:
        self._adapter = plan.system.load()() if adapter is None else adapter
        self._kinds = {kind.name: KindState(kind) for kind in plan.kinds}
        self._scripts = JobScripts(self._adapter.system, connect, folder)
        for kind in plan.kinds:
            self._scripts.of(kind, "farm-0-" + kind.name)
        # Set by `start`; then used by the loop only.
        self._dispatcher: Dispatcher
        self._saved: RestartState
        self._jobs: Jobs
        self._task: asyncio.Task[None] | None = None
        self._watch: JobWatch
        self._releases: Releases
        self._errands = Errands()
        self._stopping = asyncio.Event()
        self._hurried = False

    def start(self, dispatcher: Dispatcher, drain: Callable[[str], object]) -> None:
        """Start on the running event loop. drain: asks a worker to finish its calls and leave."""
        folder = self._scripts.output
        try:
            self._saved = RestartState(folder)
        except OSError as error:
            raise Unavailable(f"folder {folder} cannot be used: {error}") from None
        self._jobs = Jobs(self._saved.identity)
        earlier = self._saved.jobs()
        for job_id, name, kind_name in earlier or ():
            self._jobs.remember(job_id, name, kind_name, _now())
        self._watch = JobWatch(
            self._adapter,
            self._jobs,
            self._errands,
            is_known=earlier is not None,
            dispatcher=dispatcher,
            changed=self._process,
        )
        self._dispatcher = dispatcher
        self._releases = Releases(self._adapter, self._jobs, self._errands, self._watch, dispatcher)
        for kind in self._kinds.values():
            known = self._saved.models(kind.settings)
            if known is not None:
                kind.knows(model.name for model in known)
                dispatcher.expect(known)
        for part in ("cluster", self._adapter.system.words.status):
            if part:
                dispatcher.add_part(part, self.snapshot)
        self._task = asyncio.get_running_loop().create_task(self._run(drain))

    def describe_models(self) -> None:
        """Begin to describe the models that no worker has described, in processes here."""
        for kind in self._kinds.values():
            if kind.models is None:
                kind.describe(self._dispatcher)

    def has_started(self, labels: Mapping[str, str]) -> bool:
        """Whether a worker with these labels belongs to a job of this farm.

        While not all jobs are known, workers of the kinds in question are assumed to belong.
        """
        if labels.get("job", "") in self._jobs.live:
            return True
        kind = labels.get("kind", "")
        if any(job.kind == kind for job in self._jobs.submissions.values()):
            return True
        return not self._watch.is_known and kind in self._kinds

    # The loop

    async def _run(self, drain: Callable[[str], object]) -> None:
        while not self._stopping.is_set():
            try:
                self._step(drain)
            except Exception:
                # The next step may succeed, so the loop must not end.
                log.exception("a step of the autoscaler failed")
            try:
                async with asyncio.timeout(STEP_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        # Cancel at once: running calls may use up all the time before we are killed.
        waiting = [job for job in self._jobs.live.values() if job.phase is PENDING]
        self._releases.let_go(waiting, "the farm stops")

    def _step(self, drain: Callable[[str], object]) -> None:
        now = _now()
        snapshot = self._dispatcher.snapshot()
        for change in self._jobs.hear(snapshot["workers"], now):
            if change.event == "started":
                self._kind_serves(change, snapshot["workers"])
            self._watch.soon()
        for worker in self._jobs.to_drain(snapshot["workers"]):
            drain(worker)  # a signal of the batch system may not reach it
        self._dispatcher.first_worker.models_known()
        self._watch.step()
        for job in self._jobs.never_listed():
            self._cancel_submission(job)
        self._save()
        if not self._watch.is_known:
            return  # a job that may exist must not be submitted a second time
        self._releases.end_those_that_linger()
        for name, decision in self._decide(snapshot, now).items():
            self._releases.let_go([self._jobs.live[i] for i in decision.release], "not needed now")
            if decision.submit:
                submit = functools.partial(self._submit_jobs, self._kinds[name], decision.submit)
                self._errands.begin(f"submit {name}", submit)

    def _save(self) -> None:
        """Save the jobs for the next farm, if they have changed."""
        self._saved.save_jobs([(job.id, job.name, job.kind) for job in self._jobs])

    def _kind_serves(self, change: Change, workers: Sequence[dict[str, Any]]) -> None:
        job = change.job
        tell(self._dispatcher, change.event, job, change.text)
        kind = self._kinds.get(job.kind)
        if kind is None:
            return
        kind.serves(model for row in workers if row["job"] == job.id for model in row["models"])
        infos = self._dispatcher.models()
        self._saved.save_models(kind.settings, [infos[name] for name in sorted(kind.models or ())])

    def _decide(self, snapshot: dict[str, Any], now: float) -> dict[str, Decision]:
        max_batch = {name: info.max_batch for name, info in self._dispatcher.models().items()}
        found = demands(snapshot, max_batch)
        kinds = list(self._kinds.items())
        jobs = {name: self._jobs.for_policy(name, now) for name, _ in kinds}
        offers = [
            Offer(
                frozenset() if kind.describing else kind.models,
                kind.policy.capacity(jobs[name], now),
                kind.settings.backlog_s,
                kind.settings.time_limit_s,
            )
            for name, kind in kinds
        ]
        decisions = {}
        for (name, kind), (demand, too_long) in zip(kinds, share(found, offers), strict=True):
            leaving = len(self._jobs.of(name)) - len(jobs[name])
            decision = kind.policy.decide(demand, jobs[name], now, leaving=leaving)
            if kind.decided(decision.wanted, too_long):
                self._dispatcher.note("too long", name, too_long)
            decisions[name] = decision
        foreign = [job for job in self._jobs.live.values() if job.kind not in self._kinds]
        for job in foreign:
            if not job.is_leaving:
                ids = tuple(j.id for j in foreign if j.kind == job.kind)
                decisions[job.kind] = Decision(0, release=ids)
        return decisions

    # Submission

    async def _submit_jobs(self, kind: KindState, count: int) -> None:
        for _ in range(min(count, AT_ONCE)):
            # Jobs may have been found since the decision.
            full = len(self._jobs.of(kind.settings.name)) >= kind.settings.max_jobs
            if full or self._stopping.is_set() or not await self._submit(kind):
                return

    async def _submit(self, kind: KindState) -> bool:
        """Submit one job. From before the command on it is recorded, also for the next farm."""
        name = kind.settings.name
        job_name = self._jobs.name(name, secrets.token_hex(4))
        script = self._scripts.of(kind.settings, job_name)
        job = self._jobs.submits(job_name, name, _now())
        self._save()
        await self._saved.done()
        if self._stopping.is_set():
            self._jobs.refused(job, _now())
            return False
        try:
            job_id = await self._adapter.submit(script)
        except SubmissionRefused as error:
            self._jobs.refused(job, _now())
            self._refused(kind, str(error))
            return False
        except BatchError as error:
            self._jobs.in_doubt(job, _now())
            if job.phase is UNSURE:
                kind.submission(f"unsure: {error}")
                text = f"{error}; farm looks for the job by its name"
                tell(self._dispatcher, "unsure", job, text)
            return False
        finally:
            self._watch.soon()
            self._save()
        is_new = not job.phase.has_id
        self._jobs.submitted(job, job_id, _now())
        self._save()
        kind.submission("")
        if is_new and job.phase.has_id:
            tell(self._dispatcher, "submitted", job, "")
        return True

    def _refused(self, kind: KindState, text: str) -> None:
        now = _now()
        kind.policy.failed(now)
        kind.submission(f"refused: {text}")
        pause_s = kind.policy.paused_until - now
        text = f"{text}; next try in {pause_s:.0f} s"
        self._dispatcher.note("refused", kind.settings.name, text)

    def _cancel_submission(self, job: FarmJob) -> None:
        now = _now()
        if now >= job.cancel_at:
            job.asked_to_end(now + CANCEL_AGAIN_S)
            self._errands.begin(f"void {job.name}", functools.partial(self._void, job))

    async def _void(self, job: FarmJob) -> None:
        """Cancel what a submission may have left; forget it if lists have lacked it for long."""
        self._watch.soon()
        try:
            await self._adapter.cancel_named(job.name)
        except BatchError as error:
            self._dispatcher.note("cancel fails", f"job {job.name}", str(error))
            return
        now = _now()
        ends = now >= job.cancel_accepted(now) + KILLED_S or self._stopping.is_set()
        if not ends or job not in self._jobs.never_listed():
            return
        self._jobs.never_existed(job, _now())
        self._save()
        if job.kind in self._kinds and not self._stopping.is_set():
            self._refused(self._kinds[job.kind], f"no job {job.name} came of the submission")

    # Changes of jobs

    def _process(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.event in ("ended", "absent"):
                work = functools.partial(self._ended, change)
                self._errands.begin(f"end of job {change.job.key}", work)
            else:
                tell(self._dispatcher, change.event, change.job, change.text)
                kind = self._kinds.get(change.job.kind)
                if change.before is UNSURE and kind is not None:
                    kind.submission("")
        self._save()

    async def _ended(self, change: Change) -> None:
        job, row, text = change.job, change.row, change.text
        kind = self._kinds.get(job.kind)
        crashed = row is not None and row.crashed
        in_vain = not change.before.has_served and not (row is not None and row.taken)
        if change.before.was_let_go or not (crashed or in_vain):
            tell(self._dispatcher, "ended", job, text)
            return
        if kind is not None:
            kind.policy.failed(_now())
        text += await asyncio.to_thread(last_words, self._scripts.output / f"{job.id}.out")
        if kind is not None:
            kind.job_failed(f"job {job.id}: {text}")
        tell(self._dispatcher, "failed", job, text)

    # The end

    def begin_stop(self) -> None:
        """Submit no more jobs; call `stop` afterwards."""
        self._stopping.set()
        for kind in self._kinds.values():
            kind.describe_no_more()

    async def stop(self) -> None:
        """Wait until no job of this farm is left.

        Call this after the workers were asked to exit: their jobs then end; others are cancelled.
        """
        self.begin_stop()
        if self._task is None:
            return
        await self._task
        self._task = None
        self._errands.drop("look")  # it may hang, and a new list shows more
        end_at = _now() + ENDING_S
        give_up_at = end_at + GONE_S
        left = list(self._jobs)
        while _now() < give_up_at:
            late = self._hurried or _now() >= end_at
            self._jobs.hear([], _now())  # the dispatcher has closed all connections
            self._watch.soon()
            self._watch.step()
            left = [job for job in self._jobs if not job.is_dying]
            # A running submission must return its job id.
            if not left and not self._errands.is_running("submit "):
                if self._watch.is_known:
                    self._saved.forget_models()
                    break
                if late:
                    break
            self._cancel_all(late)
            await asyncio.sleep(STEP_S)
        self._save()
        await self._errands.cancel()
        await self._saved.done(within_s=SAVING_S)
        if left or not self._watch.is_known:
            ids = " ".join(job.key for job in left) or f"unknown: {self._watch.problem}"
            see = self._adapter.system.own_jobs
            log.error("jobs of this farm may still be running: %s; see: %s", ids, see)

    def _cancel_all(self, late: bool) -> None:
        """Cancel what has to be cancelled when the farm stops: all, if it is late."""
        now = _now()
        todo = [
            job
            for job in self._jobs.live.values()
            if now >= job.cancel_at
            and (late or job.phase in (PENDING, STARTING, STOPPED, CANCELLED))
        ]
        for job in todo:
            if not job.phase.was_let_go:
                job.goes_on(ON_LET_GO, now)
                tell(self._dispatcher, "cancelled", job, "the farm stops")
        self._releases.command("cancel", todo)
        for job in self._jobs.submissions.values():
            if job.phase is UNSURE:
                self._cancel_submission(job)

    def hurry(self) -> None:
        """Let a running `stop` cancel all jobs now."""
        self._hurried = True

    # What is expected

    may_come = True  # jobs are submitted when calls wait

    @property
    def incomplete(self) -> bool:
        """Whether models of some kind are not known yet, and its last job has not failed."""
        return any(kind.is_incomplete for kind in self._kinds.values())

    def awaited(self, known: Collection[str]) -> str:
        """Return what the kinds whose models are not known wait for."""
        return self.why("")

    def why(self, model: str) -> str:
        """Return why no job has brought a worker with a model."""
        found, problem = kinds_with(model, self._kinds.values()), self._watch.problem
        return "; ".join(how_it_stands(kind, self._jobs, problem) for kind in found)

    def starts_in(self, model: str) -> float | None:
        """Return in how many seconds a job with a model is expected to start, if that is known."""
        return starts_in(kinds_with(model, self._kinds.values()), self._jobs)

    # Status

    def snapshot(self) -> dict[str, Any]:
        """Return kinds and jobs as JSON data."""
        now = _now()
        return {
            "system": self._adapter.system.title,
            "problem": self._watch.problem,
            "kinds": [kind_row(kind, self._jobs, now) for kind in self._kinds.values()],
            "jobs": [job_row(job, now) for job in self._jobs],
        }


def _now() -> float:
    """Return the time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()
