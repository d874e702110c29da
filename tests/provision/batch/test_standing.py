"""How the kinds of an elastic farm stand, in rows and words."""

from __future__ import annotations

from farm.provision.batch.jobs import Jobs
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.standing import KindState, how_it_stands, job_row, kind_row

KIND = WorkerKind(name="small", models=["beam.py"], max_jobs=3)


def test_callers_hear_what_a_kind_waits_for() -> None:
    kind, jobs = KindState(KIND), Jobs("ab")

    def how(problem: str = "") -> str:
        return how_it_stands(kind, jobs, problem).removeprefix(
            "waiting for workers of kind small (beam.py): "
        )

    assert how() == "no job yet"
    assert how("squeue fails") == "squeue fails"
    kind.failure = "job 7: FAILED"
    assert how("squeue fails") == "job 7: FAILED"
    kind.refusal = "refused: no account"
    assert how() == "refused: no account"
    job = jobs.submits("farm-ab-small+1", "small", 0.0)
    assert how() == "job farm-ab-small+1 submitted"
    jobs.submitted(job, "8", 1.0)
    job.state, job.reason = "PENDING", "Priority"
    assert how() == "job 8 PENDING Priority"


def test_a_submission_without_an_id_is_shown_by_its_name() -> None:
    kind, jobs = KindState(KIND), Jobs("ab")
    job = jobs.submits("farm-ab-small+1", "small", 0.0)
    jobs.in_doubt(job, 1.0)
    row = job_row(job, 5.0)
    assert (row["id"], row["phase"], row["idle_s"]) == ("farm-ab-small+1", "unsure", None)
    counts = kind_row(kind, jobs, 5.0)
    assert (counts["pending"], counts["running"], counts["next_try_in_s"]) == (1, 0, None)
    kind.policy.failed(5.0)
    assert kind_row(kind, jobs, 6.0)["next_try_in_s"] == 4.0
