"""SLURM's commands: their arguments, their output, and that none blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.provision.batch.slurm import COMMANDS, JobRow, Slurm, SlurmError, clean, parse_jobs
from tests.support.time_limits import scaled


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands that record their arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in COMMANDS:
        say(folder, name, 'echo "$0 $*" | sed "s,.*/,,"')
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def say(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_rows_of_squeue_are_read() -> None:
    text = "7|PENDING||1:00|farm-ab-x|(Resources)\nslurm: warning\n8|RUNNING|n[1-2]|0:10|a b|None\n"
    assert parse_jobs(text) == [
        JobRow("7", "PENDING", "farm-ab-x", "", "1:00", "Resources"),
        JobRow("8", "RUNNING", "a b", "n[1-2]", "0:10", ""),
    ]


def test_states_say_whether_a_job_waits_runs_or_has_ended() -> None:
    states = {
        state: (JobRow("1", state, "").is_pending, JobRow("1", state, "").has_ended)
        for state in ("PENDING", "REQUEUED", "RUNNING", "COMPLETING", "TIMEOUT", "NODE_FAIL")
    }
    assert states == {
        "PENDING": (True, False),
        "REQUEUED": (True, False),
        "RUNNING": (False, False),
        "COMPLETING": (False, False),
        "TIMEOUT": (False, True),
        "NODE_FAIL": (False, True),
    }
    assert (
        JobRow("1", "FAILED", "", reason="NonZeroExitCode").in_words == "FAILED (NonZeroExitCode)"
    )
    assert JobRow("1", "COMPLETED", "").in_words == "COMPLETED"


def test_settings_of_the_job_around_us_and_of_commands_do_not_reach_them() -> None:
    environment = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_MEM_PER_CPU": "100",
        "SQUEUE_STATES": "PENDING",
        "SBATCH_ACCOUNT": "mine",
        "FARM_WORKERS": "3",
    }
    assert set(clean(environment)) == {"PATH", "SLURM_CONF", "SBATCH_ACCOUNT"}


async def submit_and_more(slurm: Slurm) -> str:
    await slurm.drain(["1", "2"])
    await slurm.cancel(["3"])
    return await slurm.submit("#!/bin/sh\n")


def test_the_id_is_what_sbatch_says_with_or_without_a_cluster(commands: Path) -> None:
    say(commands, "sbatch", 'cat >/dev/null; echo "42;main"')
    assert asyncio.run(submit_and_more(Slurm())) == "42"


def test_a_failing_command_is_told_in_slurms_words(commands: Path) -> None:
    say(commands, "sbatch", 'echo "sbatch: error: no such\n account" >&2; exit 1')
    with pytest.raises(SlurmError, match=r"^sbatch: error: no such account$"):
        asyncio.run(Slurm().submit("#!/bin/sh\n"))
    say(commands, "squeue", "exit 7")
    with pytest.raises(SlurmError, match="squeue ended with exit code 7"):
        asyncio.run(Slurm().jobs())


def test_a_command_that_hangs_is_ended(commands: Path) -> None:
    say(commands, "squeue", "exec sleep 600")
    began = time.monotonic()
    with pytest.raises(SlurmError, match=r"squeue did not answer in 0\.2 s"):
        asyncio.run(Slurm(timeout_s=0.2).jobs())
    assert time.monotonic() - began < scaled(10)


@pytest.mark.parametrize(
    ("scontrol", "sacct", "fate"),
    [
        ("echo JobId=1 JobState=FAILED Reason=NonZeroExitCode", "", "FAILED (NonZeroExitCode)"),
        ("echo JobId=1 JobState=COMPLETED Reason=None", "", "COMPLETED"),
        ("exit 1", 'echo "FAILED|1:0"', "FAILED (exit code 1:0)"),
        ("exit 1", "echo accounting storage is disabled >&2; exit 1", ""),
    ],
)
def test_how_a_forgotten_job_ended_is_asked_where_it_may_be_known(
    scontrol: str, sacct: str, fate: str, commands: Path
) -> None:
    say(commands, "scontrol", scontrol)
    say(commands, "sacct", sacct)
    assert asyncio.run(Slurm().fate("1")) == fate


def test_without_slurm_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="not on the PATH of this machine: sbatch, squeue"):
        Slurm()
