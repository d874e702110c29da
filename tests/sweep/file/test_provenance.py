"""Provenance: its facts, and that it contains no secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from farm.sweep.file.provenance import (
    command_line,
    is_of_restarted_job,
    job_of,
    provenance,
    restarted_job,
    without_secrets,
)
from farm.version import __version__


def test_it_says_what_ran_where() -> None:
    facts = provenance(
        ["farm", "sweep"],
        target="model.py",
        notes="first try",
        environment={"SLURM_JOB_ID": "42", "SLURM_CLUSTER_NAME": "big", "SECRET": "no"},
    )
    assert facts["argv"] == "farm sweep"
    assert facts["farm_version"] == __version__
    assert facts["numpy_version"] == np.__version__
    assert (facts["target"], facts["notes"]) == ("model.py", "first try")
    assert (facts["slurm_job_id"], facts["slurm_cluster"]) == ("42", "big")
    assert "no" not in facts.values()
    assert all(facts.values())


def test_it_names_the_commit_and_whether_files_differ(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e@x")
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    assert "git" not in provenance([], folder=tmp_path)
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "x")
    commit = provenance([], folder=tmp_path)["git"]
    assert len(commit) == 40
    (tmp_path / "a").write_text("2")
    assert provenance([], folder=tmp_path)["git"] == f"{commit}-dirty"


def test_without_git_it_says_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git" not in provenance([], folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("--to http://user:TOKEN@host:4242/x", "--to http://host:4242/x"),
        ("M@http://TOKEN@host", "M@http://host"),
        ("http://host:1 mail@x", "http://host:1 mail@x"),
    ],
)
def test_tokens_in_addresses_are_left_out(text: str, kept: str) -> None:
    assert without_secrets(text) == kept
    assert "TOKEN" not in str(provenance([text], target=text))


def test_the_command_is_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/farm", "sweep", "a b"])
    assert command_line() == ["farm", "sweep", "a b"]


JOB = {"SLURM_JOB_ID": "42", "SLURM_CLUSTER_NAME": "big"}


@pytest.mark.parametrize(
    ("now", "is_it"),
    [
        ({**JOB, "SLURM_RESTART_COUNT": "1"}, True),
        (JOB, False),
        ({**JOB, "SLURM_RESTART_COUNT": "0"}, False),
        ({**JOB, "SLURM_RESTART_COUNT": "1", "SLURM_JOB_ID": "43"}, False),
        ({**JOB, "SLURM_RESTART_COUNT": "1", "SLURM_CLUSTER_NAME": "small"}, False),
        ({}, False),
        ({"SLURM_RESTART_COUNT": "1"}, False),
    ],
)
def test_a_requeued_job_knows_what_it_began(now: dict[str, str], is_it: bool) -> None:
    assert is_of_restarted_job(provenance(["farm"], environment=JOB), now) == is_it
    outside = provenance(["farm"], environment={})
    assert not is_of_restarted_job(outside, now)


def test_a_job_keeps_its_name_when_it_is_requeued() -> None:
    assert job_of(JOB) == job_of({**JOB, "SLURM_RESTART_COUNT": "2"}) == "42 on big"
    assert job_of({}) == restarted_job({"SLURM_RESTART_COUNT": "1"}) == restarted_job(JOB) == ""
    assert restarted_job({**JOB, "SLURM_RESTART_COUNT": "1"}) == "42 on big"


GRID_ENGINE = {"JOB_ID": "42", "SGE_TASK_ID": "undefined", "SGE_CELL": "default", "RESTARTED": "0"}
LSF = {"LSB_JOBID": "42", "LSB_JOBINDEX": "0"}
PBS = {"PBS_JOBID": "42.server", "PBS_ENVIRONMENT": "PBS_BATCH"}
FLUX = {"FLUX_JOB_ID": "f42"}


@pytest.mark.parametrize(
    ("began", "now", "is_it"),
    [
        (GRID_ENGINE, {**GRID_ENGINE, "RESTARTED": "1"}, True),
        (GRID_ENGINE, GRID_ENGINE, False),
        (GRID_ENGINE, {**GRID_ENGINE, "RESTARTED": "1", "JOB_ID": "43"}, False),
        (GRID_ENGINE, {**GRID_ENGINE, "RESTARTED": "1", "SGE_CELL": "other"}, False),
        (GRID_ENGINE, {**GRID_ENGINE, "RESTARTED": "1", "SGE_TASK_ID": "2"}, False),
        (LSF, {**LSF, "LSB_RESTART": "Y"}, True),
        (LSF, LSF, False),
        (LSF, {**LSF, "LSB_RESTART": "Y", "LSB_JOBID": "43"}, False),
        (LSF, {**LSF, "LSB_RESTART": "Y", "LSB_JOBINDEX": "2"}, False),
        (LSF, {**GRID_ENGINE, "RESTARTED": "1"}, False),
        (JOB, {**LSF, "LSB_RESTART": "Y"}, False),
        # Their manuals name no variable that tells a second start from the first.
        (PBS, PBS, False),
        (FLUX, FLUX, False),
    ],
)
def test_a_restarted_job_of_another_system_knows_what_it_began(
    began: dict[str, str], now: dict[str, str], is_it: bool
) -> None:
    assert is_of_restarted_job(provenance(["farm"], environment=began), now) == is_it


def test_tasks_of_an_array_are_different_jobs() -> None:
    tasks = [{**GRID_ENGINE, "SGE_TASK_ID": str(k)} for k in (1, 2)]
    tasks += [{**LSF, "LSB_JOBINDEX": str(k)} for k in (1, 2)]
    assert len({job_of(task) for task in (*tasks, GRID_ENGINE, LSF, JOB)}) == len(tasks) + 3
    assert job_of({"JOB_ID": "42"}) == "", "other programs use this name, too"
