"""The autoscaler of SLURM jobs: submits jobs of workers as demand grows, releases idle ones.

`policy` decides how many jobs, `jobs` keeps the record, `slurm` runs SLURM's commands; this module
is the loop that connects them with the dispatcher.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Unavailable
from farm.provision.batch.job_phases import PENDING, STARTING, STOPPED
from farm.provision.batch.jobs import ON_CANCELLED, ON_LET_GO, Change, FarmJob, Jobs
from farm.provision.batch.kinds import ClusterPlan, WorkerKind
from farm.provision.batch.policy import Bounds, Decision, KindPolicy, Offer, demands, share
from farm.provision.batch.restart_state import RestartState
from farm.provision.batch.script import job_script
from farm.provision.batch.slurm import Slurm, SlurmError

log = logging.getLogger(__name__)

STEP_S = 0.5
"""Seconds between two checks of demand, which are cheap."""

FIRST_LOOK_S = 1.0
LONGEST_LOOK_S = 30.0
LOOK_GROWS = 1.5
"""Growth of the interval between two queries of SLURM, which is short after a change."""

AT_ONCE = 20
"""Most submissions of a kind between two checks of demand."""

DRAIN_S = 60.0
"""A job that was asked to drain and has no calls in flight is cancelled after this time."""

ENDING_S = 5.0
"""Time for jobs to end by themselves when the farm stops; later they are cancelled."""

GONE_S = 60.0
"""Longest wait for cancelled jobs to end; SLURM kills them after KillWait, 30 s by default."""


class _Kind:
    """One kind of workers with its policy and its state."""

    def __init__(self, settings: WorkerKind) -> None:
        self.settings = settings
        self.policy = KindPolicy(
            Bounds(
                min_jobs=settings.min_jobs,
                max_jobs=settings.max_jobs,
                workers=settings.workers_per_job,
                backlog_s=settings.backlog_s,
                grow_after_s=settings.grow_after_s,
                idle_timeout_s=settings.idle_timeout_s,
                time_limit_s=settings.time_limit_s,
            )
        )
        self.models: frozenset[str] | None = None
        self.wanted = 0
        self.refusal = ""  # SLURM's error message for the last submission
        self.failure = ""  # why the last job failed
        self.too_long = ""


class Elastic:
    """The SLURM jobs of one farm, from `start` to `stop`.

    connect: the connection file for workers; folder: for the jobs' output and the farm's identity,
    by which a restarted farm finds its earlier jobs.
    Raises Unavailable if SLURM's commands are missing, SettingsError if a template is wrong.
    """

    def __init__(self, plan: ClusterPlan, *, connect: Path, folder: Path) -> None:
        self._slurm = Slurm()
        self._kinds = {kind.name: _Kind(kind) for kind in plan.kinds}
        self._connect = connect
        self._folder = folder
        for kind in plan.kinds:
            self._script(kind, "farm-0-" + kind.name)
        # Set by `start`; then used by the loop only.
        self._dispatcher: Dispatcher
        self._restart_state: RestartState
        self._jobs: Jobs
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._hurried = False
        self._known = False  # squeue has answered, so the live jobs are known
        self._slurm_problem = ""
        self._look_at = 0.0
        self._look_every_s = FIRST_LOOK_S

    def start(self, dispatcher: Dispatcher) -> None:
        """Start on the running event loop."""
        try:
            self._restart_state = RestartState(self._folder)
        except OSError as error:
            raise Unavailable(f"folder {self._folder} cannot be used: {error}") from None
        self._jobs = Jobs(self._restart_state.identity)
        self._dispatcher = dispatcher
        for kind in self._kinds.values():
            known = self._restart_state.models(kind.settings)
            if known is not None:
                kind.models = frozenset(model.name for model in known)
                dispatcher.expect(known)
        dispatcher.add_part("slurm", self.snapshot)
        dispatcher.awaited = self.awaited
        self._task = asyncio.get_running_loop().create_task(self._run())

    def has_started(self, labels: Mapping[str, str]) -> bool:
        """Whether a worker with these labels belongs to a job of this farm.

        Until SLURM has listed the live jobs, workers of this farm's kinds are assumed to belong.
        """
        if labels.get("job", "") in self._jobs.live:
            return True
        return not self._known and labels.get("kind", "") in self._kinds

    # The loop

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._step()
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
        await self._let_go(waiting, "the farm stops")

    async def _step(self) -> None:
        now = time.monotonic()
        snapshot = self._dispatcher.snapshot()
        for change in self._jobs.hear(snapshot["workers"], now):
            if change.event == "started":
                self._kind_serves(change, snapshot["workers"])
            self._look_soon()
        if now >= self._look_at and (self._jobs.live or not self._known):
            await self._look()
        if not self._known:
            return  # a job that may exist must not be submitted a second time
        decisions = self._decide(snapshot, time.monotonic())
        await self._end_those_that_linger()
        await asyncio.gather(*(self._carry_out(name, d) for name, d in decisions.items()))

    def _kind_serves(self, change: Change, workers: Sequence[dict[str, Any]]) -> None:
        job = change.job
        self._tell(change.event, job, change.text)
        kind = self._kinds.get(job.kind)
        if kind is None:
            return
        kind.policy.worked()
        kind.failure = ""
        models = [model for row in workers if row["job"] == job.id for model in row["models"]]
        kind.models = frozenset(models)
        infos = self._dispatcher.models()
        self._restart_state.keep(kind.settings, [infos[name] for name in sorted(kind.models)])

    def _decide(self, snapshot: dict[str, Any], now: float) -> dict[str, Decision]:
        max_batch = {name: info.max_batch for name, info in self._dispatcher.models().items()}
        found = demands(snapshot, max_batch)
        kinds = list(self._kinds.items())
        jobs = {name: self._jobs.for_policy(name, now) for name, _ in kinds}
        offers = [
            Offer(
                kind.models,
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
            kind.wanted = decision.wanted
            if too_long and too_long != kind.too_long:
                self._dispatcher.note("too long", name, too_long)
            kind.too_long = too_long
            decisions[name] = decision
        for job in self._jobs.live.values():
            if job.kind not in self._kinds and not job.is_leaving:
                decisions[job.kind] = Decision(
                    0, release=tuple(j.id for j in self._jobs.of(job.kind))
                )
        return decisions

    # Carrying out decisions

    async def _carry_out(self, name: str, decision: Decision) -> None:
        await self._let_go([self._jobs.live[i] for i in decision.release], "not needed now")
        for _ in range(min(decision.submit, AT_ONCE)):
            if self._stopping.is_set() or not await self._submit(self._kinds[name]):
                return

    async def _submit(self, kind: _Kind) -> bool:
        name = kind.settings.name
        self._look_soon()
        try:
            job_id = await self._slurm.submit(self._script(kind.settings, self._jobs.prefix + name))
        except SlurmError as error:
            self._known = False  # if sbatch was interrupted, the job may exist
            now = time.monotonic()
            kind.policy.failed(now)
            kind.refusal = f"refused: {error}"
            pause_s = kind.policy.paused_until - now
            self._dispatcher.note("refused", name, f"{error}; next try in {pause_s:.0f} s")
            return False
        kind.refusal = ""
        self._tell("submitted", self._jobs.submitted(job_id, name, time.monotonic()), "")
        return True

    def _script(self, kind: WorkerKind, job_name: str) -> str:
        return job_script(
            kind,
            job_name=job_name,
            connect=self._connect,
            output=self._folder,
            folder=Path.cwd(),
        )

    async def _let_go(self, jobs: Sequence[FarmJob], why: str) -> None:
        """Release jobs: drain those that have started, cancel the pending ones."""
        now = time.monotonic()
        jobs = [job for job in jobs if not job.phase.was_let_go]
        pending = [job for job in jobs if job.phase is PENDING]
        begun = [job for job in jobs if job.phase is not PENDING]
        for job in pending:
            job.goes_on(ON_CANCELLED, now)
            self._tell("cancelled", job, why)
        for job in begun:
            job.goes_on(ON_LET_GO, now)
            self._tell("let go", job, why)
        await self._command(begun, cancel=False)
        await self._command(pending, cancel=True)

    async def _end_those_that_linger(self) -> None:
        """Cancel released jobs that have not ended, for example as the signal came too early."""
        now = time.monotonic()
        late = [
            job
            for job in self._jobs.live.values()
            if job.phase.was_let_go
            and not job.in_flight
            and now > job.phase_since + DRAIN_S
            and job.state != "COMPLETING"
        ]
        for job in late:
            job.goes_on(ON_CANCELLED, now)
            self._tell("cancelled", job, f"it did not end within {DRAIN_S:.0f} s")
        await self._command(late, cancel=True)

    async def _command(self, jobs: Sequence[FarmJob], *, cancel: bool) -> bool:
        """Ask SLURM to cancel jobs or to signal them to drain; return whether that worked."""
        if not jobs:
            return True
        self._look_soon()
        ids = [job.id for job in jobs]
        try:
            await (self._slurm.cancel(ids) if cancel else self._slurm.drain(ids))
        except SlurmError as error:
            self._dispatcher.note("scancel fails", ", ".join(f"job {i}" for i in ids), str(error))
            return False
        return True

    # Querying SLURM

    def _look_soon(self) -> None:
        self._look_every_s = FIRST_LOOK_S
        self._look_at = min(self._look_at, time.monotonic() + FIRST_LOOK_S)

    async def _look(self) -> bool:
        """Query the state of the jobs from SLURM; False if the query failed."""
        asked_at = time.monotonic()
        try:
            rows = await self._slurm.jobs()
        except SlurmError as error:
            if not self._slurm_problem:
                self._dispatcher.note("no word from SLURM", "", str(error))
            self._slurm_problem = str(error)
            rows = None
        now = time.monotonic()
        self._look_every_s = min(LOOK_GROWS * self._look_every_s, LONGEST_LOOK_S)
        self._look_at = now + self._look_every_s
        if rows is None:
            return False
        self._slurm_problem = ""
        self._known = True
        changes = self._jobs.looked(rows, asked_at, now)
        for change in changes:
            await self._changed(change, now)
        if changes:
            self._look_soon()
        return True

    async def _changed(self, change: Change, now: float) -> None:
        job, text = change.job, change.text
        kind = self._kinds.get(job.kind)
        if change.event == "gone":
            text = await self._slurm.fate(job.id) or "SLURM no longer knows it"
        if change.event in ("ended", "gone"):
            state = text.split()[0]
            crashed = state in ("FAILED", "OUT_OF_MEMORY", "BOOT_FAIL")
            in_vain = not change.before.has_served and state not in ("PREEMPTED", "NODE_FAIL")
            if not change.before.was_let_go and (crashed or in_vain):
                text += await asyncio.to_thread(self._last_words, job)
                if kind is not None:
                    kind.policy.failed(now)
                    kind.failure = f"job {job.id}: {text}"
                self._tell("failed", job, text)
                return
            self._tell("ended", job, text)
            return
        self._tell(change.event, job, text)

    def _last_words(self, job: FarmJob) -> str:
        """Return the last output of a job: farm's error line if there is one, or the last lines."""
        path = self._folder / f"{job.id}.out"
        try:
            lines = path.read_text(errors="replace")[-8192:].splitlines()
        except OSError:
            return f"; {path} cannot be read"
        lines = [line.strip() for line in lines if line.strip()]
        errors = [line for line in lines if line.startswith("farm: error: ")]
        said = " / ".join(errors[-1:] or lines[-2:])
        return f"; {path} ends: {said[-400:]}" if said else f"; {path} is empty"

    def _tell(self, event: str, job: FarmJob, text: str) -> None:
        self._dispatcher.note(event, f"job {job.id}", f"{job.kind}: {text}" if text else job.kind)

    # The end

    def begin_stop(self) -> None:
        """Submit no more jobs; call `stop` afterwards."""
        self._stopping.set()

    async def stop(self) -> None:
        """Wait until no job of this farm is left.

        Call this after the workers were asked to exit: their jobs then end; others are cancelled.
        """
        self.begin_stop()
        if self._task is None:
            return
        await self._task  # not cancelled: a running sbatch must return its job id
        self._task = None
        end_at = time.monotonic() + ENDING_S
        give_up_at = end_at + GONE_S
        cancelled: set[str] = set()
        while time.monotonic() < give_up_at:
            heard = await self._look()
            if heard and not any(j.state != "COMPLETING" for j in self._jobs.live.values()):
                self._restart_state.forget_models()
                return
            late = self._hurried or time.monotonic() >= end_at
            if late and not heard and not self._jobs.live:
                break
            todo = [
                job
                for job in self._jobs.live.values()
                if job.id not in cancelled and (late or job.phase in (PENDING, STARTING, STOPPED))
            ]
            for job in todo:
                if not job.phase.was_let_go:
                    job.goes_on(ON_LET_GO, time.monotonic())
                    self._tell("cancelled", job, "the farm stops")
            if await self._command(todo, cancel=True):
                cancelled.update(job.id for job in todo)
            await asyncio.sleep(STEP_S)
        left = " ".join(self._jobs.live) or "unknown, as squeue fails"
        log.error("jobs of this farm may still be running: %s; see: squeue --me", left)

    def hurry(self) -> None:
        """Let a running `stop` cancel all jobs now."""
        self._hurried = True

    # Status

    def awaited(self) -> str:
        """Return why some models are not yet known; empty if those of all kinds are."""
        unknown = [kind for kind in self._kinds.values() if kind.models is None]
        return "; ".join(self._how_it_stands(kind) for kind in unknown)

    def _how_it_stands(self, kind: _Kind) -> str:
        name, models = kind.settings.name, ", ".join(kind.settings.models)
        jobs = self._jobs.of(name)
        if jobs:
            how = ", ".join(
                f"job {j.id} {j.state or 'submitted'} {j.reason}".strip() for j in jobs[:3]
            )
        else:
            how = kind.refusal or kind.failure or self._slurm_problem or "no job yet"
        return f"waiting for workers of kind {name} ({models}): {how}"

    def snapshot(self) -> dict[str, Any]:
        """Return kinds and jobs as JSON data."""
        now = time.monotonic()
        kinds = []
        for name, kind in self._kinds.items():
            jobs = self._jobs.of(name)
            pause_s = max(0.0, kind.policy.paused_until - now)
            kinds.append(
                {
                    "name": name,
                    "models": sorted(kind.models or kind.settings.models),
                    "partition": kind.settings.partition,
                    "min_jobs": kind.settings.min_jobs,
                    "max_jobs": kind.settings.max_jobs,
                    "wanted": kind.wanted,
                    "pending": sum(job.is_pending for job in jobs),
                    "running": sum(not job.is_pending for job in jobs),
                    "workers": sum(job.workers for job in jobs),
                    "next_try_in_s": pause_s or None,
                    "problem": "; ".join(
                        text for text in (kind.refusal, kind.failure, kind.too_long) if text
                    ),
                }
            )
        jobs_now = [
            {
                "id": job.id,
                "kind": job.kind,
                "phase": job.shown,
                "state": job.state,
                "reason": job.reason,
                "nodes": job.nodes,
                "workers": job.workers,
                "idle_s": None if job.idle_since is None else now - job.idle_since,
                "ends_in_s": job.ends_in_s,
            }
            for job in self._jobs.live.values()
        ]
        return {"problem": self._slurm_problem, "kinds": kinds, "jobs": jobs_now}
