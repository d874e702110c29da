"""The life of a SLURM job: every row of the table happens, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farm.provision.batch import job_phases as phases
from farm.provision.batch.absence import CONFIRM_S
from farm.provision.batch.farm_job import FarmJob
from farm.provision.batch.job_phases import JOBS, SHOWN, JobPhase
from farm.provision.batch.jobs import DESERTED_S, DRAINING_S, ON_CANCELLED, ON_LET_GO, Jobs
from farm.provision.batch.system import JobRow, Listing, Stand
from farm.transitions import Transition, words


def job_row(state: str) -> JobRow:
    stands = {"COMPLETED": Stand.ENDED, "PENDING": Stand.PENDING}
    return JobRow("1", stands.get(state, Stand.RUNNING), state, "farm-ab-small+1", "n1")


class Scene:
    """The job "1" of a farm, and its clock."""

    def __init__(self) -> None:
        self.jobs = Jobs("ab")
        self.now = 0.0
        self.job: FarmJob = self.jobs.submits("farm-ab-small+1", "small", 0.0)
        self.rows: list[dict[str, Any]] = []

    def has_id(self) -> None:
        if not self.job.id:
            self.jobs.submitted(self.job, "1", self.now)

    def listed(self, state: str) -> None:
        self.now += 1.0
        listing = Listing((job_row(state),) if state else ())
        self.jobs.looked(listing, self.now - 0.5, self.now)

    def asked(self, state: str) -> None:
        self.now += 1.0
        self.jobs.answered("1", job_row(state) if state else None, self.now - 0.5, self.now)

    def hear(self, *slots: int, after: float = 0.1) -> None:
        """Workers with so many slots are there now."""
        self.now += after
        self.rows = [
            {
                "job": "1",
                "host": "n1",
                "slots": n,
                "in_flight": 0,
                "done": 0,
                "failed": 0,
                "ends_in_s": None,
            }
            for n in slots
        ]
        self.jobs.hear(self.rows, self.now)

    def absent(self) -> None:
        """Two lists lack it, a minute apart, and it is unknown by its id."""
        if self.rows:
            self.hear()
        self.listed("")
        self.now += CONFIRM_S
        self.listed("")
        self.asked("")


STEPS: dict[str, Callable[[Scene], None]] = {
    "gets id": Scene.has_id,
    "gets no id": lambda scene: scene.jobs.in_doubt(scene.job, scene.now),
    "refused": lambda scene: scene.jobs.refused(scene.job, scene.now),
    "never existed": lambda scene: scene.jobs.never_existed(scene.job, scene.now),
    "gets nodes": lambda scene: scene.listed("CONFIGURING"),
    "workers take calls": lambda scene: scene.hear(0, 1),
    "workers take none": lambda scene: scene.hear(0, 0),
    "workers gone": lambda scene: scene.hear(),
    "for long": lambda scene: scene.hear(
        *(row["slots"] for row in scene.rows), after=DRAINING_S if scene.rows else DESERTED_S
    ),
    "requeued": lambda scene: scene.asked("PENDING"),
    "let go": lambda scene: scene.job.goes_on(ON_LET_GO, scene.now),
    "cancelled": lambda scene: scene.job.goes_on(ON_CANCELLED, scene.now),
    "absent": Scene.absent,
    "ended": lambda scene: scene.asked("COMPLETED"),
}

STARTING = ("gets id", "gets nodes")
SERVING = (*STARTING, "workers take calls")
WAYS: dict[JobPhase, tuple[str, ...]] = {
    phases.SUBMITTING: (),
    phases.UNSURE: ("gets no id",),
    phases.PENDING: ("gets id",),
    phases.STARTING: STARTING,
    phases.SERVING: SERVING,
    phases.SHUT: (*SERVING, "workers take none"),
    phases.DRAINING: (*SERVING, "workers take none", "for long"),
    phases.DESERTED: (*SERVING, "workers gone"),
    phases.GIVEN_UP: (*SERVING, "workers gone", "for long"),
    phases.STOPPED: (*STARTING, "let go"),
    phases.LEAVING: (*SERVING, "let go"),
    phases.CANCELLED: ("gets id", "cancelled"),
}
"""The events that lead to each phase."""


def at(phase: JobPhase) -> Scene:
    scene = Scene()
    for event in WAYS[phase]:
        STEPS[event](scene)
    assert scene.job.phase is phase
    return scene


@pytest.mark.parametrize("row", list(JOBS), ids=lambda row: f"{words(row.phase)}, {row.event}")
def test_every_row_happens(row: Transition[JobPhase]) -> None:
    scene = at(row.phase)
    STEPS[row.event](scene)
    assert scene.job.phase is row.then
    assert scene.job.phase_since == scene.now


CALLED = ("let go", "cancelled", "gets no id", "refused")
"""Events that the farm itself causes, and only where the table allows them."""

BY_ROWS = ("gets nodes", "requeued", "ended")
"""Events by a row of the job; a job without an id is found by such a row."""

ELSE = [
    (phase, event)
    for phase in WAYS
    for event in STEPS
    if phase not in JOBS.event(event)
    and event not in (*CALLED, "for long")
    and event not in (("absent",) if phase.has_id else BY_ROWS)
]


@pytest.mark.parametrize(
    ("phase", "event"), ELSE, ids=[f"{words(phase)}, {event}" for phase, event in ELSE]
)
def test_what_is_in_no_row_changes_no_phase(phase: JobPhase, event: str) -> None:
    """Squeue and the dispatcher say much that leads nowhere, and it must not end in an error."""
    scene = at(phase)
    since = scene.job.phase_since
    before = words(scene.job.phase)
    STEPS[event](scene)
    assert (words(scene.job.phase), scene.job.phase_since) == (before, since)


@pytest.mark.parametrize("phase", [p for p in WAYS if p.has_id], ids=words)
def test_lists_alone_end_no_job(phase: JobPhase) -> None:
    scene = at(phase)
    for state in ("", "COMPLETED", "") * 3:
        scene.now += CONFIRM_S
        scene.listed(state)
    assert scene.job.phase is phase
    assert list(scene.jobs.live) == ["1"]


def test_no_job_that_serves_can_be_absent() -> None:
    absent_from = {row.phase for row in JOBS if row.event == "absent"}
    assert absent_from.isdisjoint({phases.SERVING, phases.SHUT, phases.DRAINING})


def test_every_phase_can_be_reached_and_has_a_word() -> None:
    assert {*JOBS.begins.values(), *(row.then for row in JOBS)} == set(JobPhase)
    assert set(SHOWN) == set(JobPhase)
    assert {phase.shown for phase in JobPhase} == {
        "submitting",
        "unsure",
        "pending",
        "starting",
        "serving",
        "deserted",
        "leaving",
    }


def test_which_phases_count() -> None:
    counted = {words(phase) for phase in JobPhase if phase.counts}
    assert counted == {
        *("submitting", "unsure"),
        *("pending", "starting", "serving", "shut", "deserted"),
    }
    assert {words(p) for p in JobPhase if p.was_let_go} == {"stopped", "leaving", "cancelled"}
    never = {words(phase) for phase in JobPhase if not phase.has_served}
    assert never == {
        *("submitting", "unsure", "pending", "starting", "stopped", "cancelled", "ended"),
    }
