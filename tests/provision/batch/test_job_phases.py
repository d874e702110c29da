"""The life of a SLURM job: every row of the table happens, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farm.provision.batch import job_phases as phases
from farm.provision.batch.job_phases import JOBS, SHOWN, JobPhase
from farm.provision.batch.jobs import DESERTED_S, DRAINING_S, ON_CANCELLED, ON_LET_GO, FarmJob, Jobs
from farm.provision.batch.slurm import JobRow
from farm.transitions import Transition, words


class Scene:
    """The job "1" of a farm, and its clock."""

    def __init__(self) -> None:
        self.jobs = Jobs("ab")
        self.now = 0.0
        self.job: FarmJob = self.jobs.submitted("1", "small", 0.0)
        self.rows: list[dict[str, Any]] = []

    def squeue(self, state: str) -> None:
        self.now += 1.0
        rows = [JobRow("1", state, "farm-ab-small", "n1")] if state else []
        self.jobs.looked(rows, self.now - 0.5, self.now)

    def hear(self, *slots: int, after: float = 0.1) -> None:
        """Workers with so many slots are there now."""
        self.now += after
        self.rows = [
            {"job": "1", "host": "n1", "slots": n, "in_flight": 0, "done": 0, "ends_in_s": None}
            for n in slots
        ]
        self.jobs.hear(self.rows, self.now)


def pending(scene: Scene) -> None:
    scene.squeue("PENDING")


def starting(scene: Scene) -> None:
    scene.squeue("RUNNING")


def serving(scene: Scene) -> None:
    starting(scene)
    scene.hear(1, 1)


def shut(scene: Scene) -> None:
    serving(scene)
    scene.hear(0, 0)


def draining(scene: Scene) -> None:
    shut(scene)
    scene.hear(0, 0, after=DRAINING_S)


def deserted(scene: Scene) -> None:
    serving(scene)
    scene.hear()


def given_up(scene: Scene) -> None:
    deserted(scene)
    scene.hear(after=DESERTED_S)


def stopped(scene: Scene) -> None:
    starting(scene)
    let_go(scene)


def leaving(scene: Scene) -> None:
    serving(scene)
    let_go(scene)


def cancelled(scene: Scene) -> None:
    pending(scene)
    cancel(scene)


def let_go(scene: Scene) -> None:
    scene.job.goes_on(ON_LET_GO, scene.now)


def cancel(scene: Scene) -> None:
    scene.job.goes_on(ON_CANCELLED, scene.now)


def requeue(scene: Scene) -> None:
    scene.squeue("PENDING")


SCENES: dict[JobPhase, Callable[[Scene], None]] = {
    phases.PENDING: pending,
    phases.STARTING: starting,
    phases.SERVING: serving,
    phases.SHUT: shut,
    phases.DRAINING: draining,
    phases.DESERTED: deserted,
    phases.GIVEN_UP: given_up,
    phases.STOPPED: stopped,
    phases.LEAVING: leaving,
    phases.CANCELLED: cancelled,
}

STEPS: dict[str, Callable[[Scene], None]] = {
    "gets nodes": lambda scene: scene.squeue("CONFIGURING"),
    "workers take calls": lambda scene: scene.hear(0, 1),
    "workers take none": lambda scene: scene.hear(0, 0),
    "workers gone": lambda scene: scene.hear(),
    "for long": lambda scene: scene.hear(
        *(row["slots"] for row in scene.rows), after=DRAINING_S if scene.rows else DESERTED_S
    ),
    "requeued": requeue,
    "let go": let_go,
    "cancelled": cancel,
    "ended": lambda scene: scene.squeue("COMPLETED"),
}


@pytest.mark.parametrize("row", list(JOBS), ids=lambda row: f"{words(row.phase)}, {row.event}")
def test_every_row_happens(row: Transition[JobPhase]) -> None:
    scene = Scene()
    SCENES[row.phase](scene)
    assert scene.job.phase is row.phase
    STEPS[row.event](scene)
    assert scene.job.phase is row.then
    assert scene.job.phase_since == scene.now


ELSE = [
    (phase, event)
    for phase in SCENES
    for event in STEPS
    if phase not in JOBS.event(event) and event not in ("let go", "cancelled", "for long")
]


@pytest.mark.parametrize(
    ("phase", "event"), ELSE, ids=[f"{words(phase)}, {event}" for phase, event in ELSE]
)
def test_what_is_in_no_row_changes_no_phase(phase: JobPhase, event: str) -> None:
    """Squeue and the dispatcher say much that leads nowhere, and it must not end in an error."""
    scene = Scene()
    SCENES[phase](scene)
    since = scene.job.phase_since
    before = words(scene.job.phase)
    STEPS[event](scene)
    assert (words(scene.job.phase), scene.job.phase_since) == (before, since)


def test_a_job_that_squeue_forgot_has_ended() -> None:
    scene = Scene()
    serving(scene)
    scene.squeue("")
    assert scene.job.phase is phases.ENDED
    assert scene.jobs.live == {}


def test_every_phase_can_be_reached_and_has_a_word() -> None:
    assert {*JOBS.begins.values(), *(row.then for row in JOBS)} == set(JobPhase)
    assert set(SHOWN) == set(JobPhase)
    assert {phase.shown for phase in JobPhase} == {
        "pending",
        "starting",
        "serving",
        "deserted",
        "leaving",
    }


def test_which_phases_count() -> None:
    counted = {words(phase) for phase in JobPhase if phase.counts}
    assert counted == {"pending", "starting", "serving", "shut", "deserted"}
    assert {words(p) for p in JobPhase if p.was_let_go} == {"stopped", "leaving", "cancelled"}
    never = {words(phase) for phase in JobPhase if not phase.has_served}
    assert never == {"pending", "starting", "stopped", "cancelled", "ended"}
