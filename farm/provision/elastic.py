"""The elastic farm: submits SLURM jobs of workers as demand grows, and lets them go when idle.

`policy` decides how many, `jobs` keeps the record, `slurm` speaks to the cluster; this is the loop
between them and the dispatcher.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.dispatcher import Dispatcher
from farm.errors import Unavailable
from farm.provision.jobs import Change, FarmJob, Jobs
from farm.provision.kinds import Plan, WorkerKind
from farm.provision.legacy import Legacy
from farm.provision.policy import Bounds, Decision, KindPolicy, Offer, demands, share
from farm.provision.script import job_script
from farm.provision.slurm import Slurm, SlurmError

log = logging.getLogger(__name__)

STEP_S = 0.5
"""Between two looks at demand, which cost little."""

FIRST_LOOK_S = 1.0
LONGEST_LOOK_S = 30.0
LOOK_GROWS = 1.5
"""Between two queries of SLURM: short after a change, then longer and longer."""

AT_ONCE = 20
"""Submissions of a kind between two looks at demand."""

DRAIN_S = 60.0
"""A job that was asked to drain, and whose workers have left, is cancelled after so long."""

ENDING_S = 5.0
"""When the farm stops its workers end, and jobs with them; those that take longer are cancelled."""

GONE_S = 60.0
"""SLURM kills what does not end, after KillWait, 30 s by default."""


class _Kind:
    """One kind with its policy and what is known of it."""

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
        self.refusal = ""  # of the last submission, in SLURM's words
        self.failure = ""  # why the last job came to nothing
        self.too_long = ""


class Elastic:
    """The SLURM jobs of one farm, from `start` to `stop`.

    connect: the connection file that workers get; folder: where the jobs' output and the identity
    of the farm are kept, by which a farm that is started anew finds the jobs of the one before.
    Raises Unavailable when SLURM's commands are not there, SettingsError when a template is wrong.
    """

    def __init__(self, plan: Plan, *, connect: Path, folder: Path) -> None:
        self._slurm = Slurm()
        self._kinds = {kind.name: _Kind(kind) for kind in plan.kinds}
        self._connect = connect
        self._folder = folder
        for kind in plan.kinds:
            self._script(kind, "farm-0-" + kind.name)
        # Set at the start; then the loop's own.
        self._dispatcher: Dispatcher
        self._legacy: Legacy
        self._jobs: Jobs
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._hurried = False
        self._known = False  # squeue has answered: we know what lives
        self._slurm_problem = ""
        self._look_at = 0.0
        self._look_every_s = FIRST_LOOK_S

    def start(self, dispatcher: Dispatcher) -> None:
        """Begin, on the running loop."""
        try:
            self._legacy = Legacy(self._folder)
        except OSError as error:
            raise Unavailable(f"folder {self._folder} cannot be used: {error}") from None
        self._jobs = Jobs(self._legacy.identity)
        self._dispatcher = dispatcher
        for kind in self._kinds.values():
            known = self._legacy.models(kind.settings)
            if known is not None:
                kind.models = frozenset(model.name for model in known)
                dispatcher.expect(known)
        dispatcher.add_part("slurm", self.snapshot)
        dispatcher.awaited = self.awaited
        self._task = asyncio.get_running_loop().create_task(self._run())

    def has_started(self, labels: Mapping[str, str]) -> bool:
        """Whether a worker with these labels is one of its jobs'.

        While SLURM has not said which jobs live, those of its kinds are taken for its own.
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
                # What went wrong now may go right the next time; without us nothing would.
                log.exception("a step of the elastic farm fails")
            try:
                async with asyncio.timeout(STEP_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        # At once: calls that still run may take as long as whoever stops us lets us live.
        waiting = [job for job in self._jobs.live.values() if job.phase == "pending"]
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
            return  # what lives must not be submitted a second time
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
        self._legacy.keep(kind.settings, [infos[name] for name in sorted(kind.models)])

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

    # Doing it

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
            self._known = False  # where sbatch was not heard to its end, the job may exist
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
        """End jobs in order: those that have begun drain, the others are cancelled."""
        now = time.monotonic()
        jobs = [job for job in jobs if job.let_go_at is None]
        for job in jobs:
            job.let_go_at = now
            job.cancelled = job.phase == "pending"
            self._tell("cancelled" if job.cancelled else "let go", job, why)
        await self._command([j for j in jobs if not j.cancelled], cancel=False)
        await self._command([j for j in jobs if j.cancelled], cancel=True)

    async def _end_those_that_linger(self) -> None:
        """A job that was let go is cancelled if it does not end, or was said to too early."""
        now = time.monotonic()
        late = [
            job
            for job in self._jobs.live.values()
            if job.let_go_at is not None
            and not job.in_flight
            and now > job.let_go_at + DRAIN_S
            and job.state != "COMPLETING"
        ]
        for job in late:
            job.let_go_at = now
            job.cancelled = True
            self._tell("cancelled", job, f"it did not end within {DRAIN_S:.0f} s")
        await self._command(late, cancel=True)

    async def _command(self, jobs: Sequence[FarmJob], *, cancel: bool) -> bool:
        """Tell SLURM to cancel jobs or have them drain; whether it was told."""
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

    # Looking

    def _look_soon(self) -> None:
        self._look_every_s = FIRST_LOOK_S
        self._look_at = min(self._look_at, time.monotonic() + FIRST_LOOK_S)

    async def _look(self) -> bool:
        """Ask SLURM what has become of the jobs; False when it does not say."""
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
            text = await self._slurm.fate(job.id) or "SLURM does not know it any more"
        if change.event in ("ended", "gone"):
            state = text.split()[0]
            crashed = state in ("FAILED", "OUT_OF_MEMORY", "BOOT_FAIL")
            in_vain = not job.served and state not in ("PREEMPTED", "NODE_FAIL")
            if job.let_go_at is None and (crashed or in_vain):
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
        """What a job printed last: its own error if it names one, else the end."""
        path = self._folder / f"{job.id}.out"
        try:
            lines = path.read_text(errors="replace")[-8192:].splitlines()
        except OSError:
            return f"; nothing is to be read at {path}"
        lines = [line.strip() for line in lines if line.strip()]
        errors = [line for line in lines if line.startswith("farm: error: ")]
        said = " / ".join(errors[-1:] or lines[-2:])
        return f"; {path} ends: {said[-400:]}" if said else f"; {path} is empty"

    def _tell(self, event: str, job: FarmJob, text: str) -> None:
        self._dispatcher.note(event, f"job {job.id}", f"{job.kind}: {text}" if text else job.kind)

    # The end

    def begin_stop(self) -> None:
        """Submit nothing more; `stop` is to follow."""
        self._stopping.set()

    async def stop(self) -> None:
        """Until no job of this farm is left.

        The workers have been asked to end, and their jobs end with them; the others are cancelled.
        """
        self.begin_stop()
        if self._task is None:
            return
        await self._task  # not cancelled: an sbatch under way must be heard to its end
        self._task = None
        end_at = time.monotonic() + ENDING_S
        give_up_at = end_at + GONE_S
        cancelled: set[str] = set()
        while time.monotonic() < give_up_at:
            heard = await self._look()
            if heard and not any(j.state != "COMPLETING" for j in self._jobs.live.values()):
                self._legacy.forget_models()
                return
            late = self._hurried or time.monotonic() >= end_at
            if late and not heard and not self._jobs.live:
                break
            todo = [
                job
                for job in self._jobs.live.values()
                if job.id not in cancelled and (late or not (job.served or job.cancelled))
            ]
            for job in todo:
                if job.let_go_at is None:
                    job.let_go_at = time.monotonic()
                    self._tell("cancelled", job, "the farm stops")
            if await self._command(todo, cancel=True):
                cancelled.update(job.id for job in todo)
            await asyncio.sleep(STEP_S)
        left = " ".join(self._jobs.live) or "which cannot be told, as squeue fails"
        log.error("jobs of this farm may live on: %s; see: squeue --me", left)

    def hurry(self) -> None:
        """Let a `stop` under way cancel all jobs now."""
        self._hurried = True

    # For people

    def awaited(self) -> str:
        """Why some models may not be known yet; empty when those of all kinds are."""
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
        return f"workers of kind {name} ({models}) are awaited: {how}"

    def snapshot(self) -> dict[str, Any]:
        """Kinds and jobs, as JSON data."""
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
                    "pending": sum(job.phase == "pending" for job in jobs),
                    "running": sum(job.phase != "pending" for job in jobs),
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
                "phase": _phase(job),
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


def _phase(job: FarmJob) -> str:
    """Where a job is on its way, for people."""
    if job.let_go_at is None and job.is_deserted:
        return "deserted"
    return "leaving" if job.is_leaving else job.phase
