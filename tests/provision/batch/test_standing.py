"""How the kinds of an elastic farm stand, in rows and words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from farm.call import ModelInfo
from farm.provision.batch import standing
from farm.provision.batch.farm_job import FarmJob
from farm.provision.batch.jobs import Jobs
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.standing import (
    KindState,
    how_it_stands,
    job_row,
    kind_row,
    kinds_with,
    starts_in,
)
from farm.provision.batch.system import JobRow, Stand
from tests.support.dispatcher_farm import LIMIT_S

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
    row = job.row = JobRow("8", Stand.PENDING, "PENDING", job.name, reason="Priority")
    assert how() == "job 8 PENDING Priority"
    job.row = replace(row, starts_at=time.time() - 1)
    assert how() == "job 8 PENDING Priority"
    job.row = replace(row, starts_at=time.mktime((2125, 11, 25, 8, 0, 0, 0, 0, -1)))
    assert how() == "job 8 PENDING Priority, expected to start 2125-11-25 08:00"


def test_the_first_job_with_a_model_is_expected_when_the_batch_system_says() -> None:
    kinds = {name: KindState(replace(KIND, name=name)) for name in ("small", "big", "other")}
    for name, models in (("small", {"beam"}), ("big", {"beam", "plate"}), ("other", None)):
        kinds[name].models = models if models is None else frozenset(models)
    jobs = Jobs("ab")

    def submit(kind: str, job_id: str, starts_in_s: float | None) -> FarmJob:
        job = jobs.submits(f"farm-ab-{kind}+{job_id}", kind, 0.0)
        jobs.submitted(job, job_id, 0.0)
        starts_at = None if starts_in_s is None else time.time() + starts_in_s
        job.row = JobRow(job_id, Stand.PENDING, "", job.name, starts_at=starts_at)
        return job

    def expected(model: str) -> float | None:
        found = starts_in(kinds_with(model, kinds.values()), jobs)
        return None if found is None else round(found, -2)

    assert expected("beam") is None
    submit("small", "1", None)
    submit("small", "2", -100.0)
    assert expected("beam") is None
    submit("small", "3", 5000.0)
    submit("big", "4", 90_000.0)
    assert (expected("beam"), expected("plate")) == (5000.0, 90_000.0)
    assert expected("") is None
    other = submit("other", "5", 700.0)
    assert expected("") == 700.0
    other.row = replace(other.row, stand=Stand.RUNNING)
    assert starts_in(kinds_with("", kinds.values()), jobs) == 0.0


def test_models_are_missing_until_a_kind_is_described_or_its_job_has_failed() -> None:
    kind = KindState(KIND)
    found = [kind.is_incomplete]
    kind.failure = "job 7: FAILED"
    found.append(kind.is_incomplete)
    kind.failure = ""
    kind.models = frozenset()
    found.append(kind.is_incomplete)
    assert found == [True, False, False]


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


# The models of kinds whose workers have not started yet

MODEL = """
import farm

class Double(farm.Model):
    inputs, outputs = {"x": 1}, {"y": 1}

    def evaluate(self, inputs, config):
        return 2 * inputs["x"]
"""


class Known:
    """Keeps what is reported to a dispatcher."""

    def __init__(self) -> None:
        self.models: list[str] = []
        self.notes: list[tuple[str, str, str]] = []

    def expect(self, infos: Sequence[ModelInfo]) -> None:
        self.models += [info.name for info in infos]

    def note(self, *note: Any) -> None:
        self.notes.append(note)


def kind(name: str, *models: str) -> KindState:
    return KindState(WorkerKind(name=name, models=models))


def names(kind: KindState) -> list[str]:
    return sorted(kind.models or ())


async def test_kinds_learn_the_names_of_their_models_unless_a_worker_has_said_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "double.py").write_text(MODEL)
    spec = str(tmp_path / "double.py")
    known, small, large = Known(), kind("small", spec), kind("large", f"plate={spec}", spec)
    bad, restarted = kind("bad", str(tmp_path / "none.py")), kind("restarted", spec)
    tasks = [each.describe(cast(Any, known)) for each in (small, large, bad, restarted)]
    assert all(each.describing for each in (small, large, bad, restarted))
    restarted.models = frozenset({"earlier"})
    await asyncio.wait_for(asyncio.gather(*tasks), LIMIT_S)
    assert names(small) == ["Double"]
    assert names(large) == ["Double", "plate"]
    assert bad.models is None
    assert names(restarted) == ["earlier"]
    assert not any(each.describing for each in (small, large, bad, restarted))
    assert sorted(known.models) == ["Double", "Double", "plate"]
    ((event, subject, text),) = known.notes
    assert (event, subject) == ("not described", "bad")
    assert "there is no file" in text


async def test_the_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    async def describe(models: Sequence[str]) -> tuple[ModelInfo, ...]:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(models[0])
        raise AssertionError("the future has no end")

    monkeypatch.setattr(standing, "describe", describe)
    known, small = Known(), kind("small", "m.py")
    task = small.describe(cast(Any, known))
    await asyncio.wait({task}, timeout=0.01)
    assert small.describing
    task.cancel()
    await asyncio.wait({task}, timeout=LIMIT_S)
    assert ended == ["m.py"]
    assert not small.describing
