"""The batch job that a worker runs in."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from farm.provision.batch.allocation import STARTED_BY, end_time, job_id, labels, seconds_of
from farm.provision.batch.systems import BUILT_IN
from tests.support.batch_jobs import JOBS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("5:30", 330),
        ("1:02:03", 3723),
        ("2-3", 2 * 86400 + 3 * 3600),
        ("2-3:4", 2 * 86400 + 3 * 3600 + 240),
        ("1-02:03:04", 86400 + 7384),
        (" 30:00\n", 1800),
        ("0:00", 0),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("NOT_SET", None),
        ("", None),
        ("1:2:3:4", None),
    ],
)
def test_times_are_read_as_slurm_writes_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def answering(folder: Path, script: str) -> dict[str, str]:
    """Return an environment of job 7 in which squeue runs `script`."""
    command = folder / "squeue"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    "script",
    [
        '[ "$*" = "-h -j 7 -o %L" ] && echo 1:00',
        "echo 5:00; echo 1:00; echo UNLIMITED",  # a line for each component of the job
    ],
)
def test_the_end_is_asked_of_squeue(script: str, tmp_path: Path) -> None:
    before = time.time()
    end = end_time(answering(tmp_path, script))
    assert end is not None
    assert before <= end - 60 <= time.time()


@pytest.mark.parametrize("script", ["echo UNLIMITED", "echo broken >&2; exit 1", "echo"])
def test_an_end_that_cannot_be_had_is_none(script: str, tmp_path: Path) -> None:
    environment = answering(tmp_path, script)
    assert end_time(environment) is None


def test_the_end_in_the_environment_goes_first() -> None:
    assert end_time({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000000"}) == 1.7e9


def test_outside_a_job_there_is_no_end_and_no_label() -> None:
    assert end_time({"PATH": ""}) is None
    assert labels({"PATH": ""}) == {}


@pytest.mark.parametrize("system", [system.name for system in BUILT_IN])
def test_the_job_is_known_in_each_system(system: str) -> None:
    environment, expected = JOBS[system].variables, JOBS[system].id
    assert job_id(environment) == expected
    assert labels(environment)["job"] == expected
    assert job_id({**environment, "FARM_JOB": "f7"}) == "f7", "the id that `submit` returns"


def test_a_variable_that_other_programs_set_makes_no_job_of_grid_engine() -> None:
    assert job_id({"JOB_ID": "12"}) == ""


def test_labels_tell_the_incarnations_of_a_job_apart() -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "FARM_KIND": "big"}
    assert labels({STARTED_BY: "a farm"}) == {"started_by": "a farm"}
    assert labels(environment) == {"job": "7", "task": "0", "kind": "big"}
    again = labels({**environment, "SLURM_RESTART_COUNT": "1"})
    assert again == {"job": "7", "task": "0", "kind": "big", "restart": "1"}
