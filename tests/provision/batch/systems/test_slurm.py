"""SLURM's commands: their arguments, and what of their output counts."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from farm.provision.batch.commands import only_id
from farm.provision.batch.system import BatchError, JobRow, Stand, SubmissionRefused
from farm.provision.batch.systems.slurm import (
    HEADER,
    ID,
    Slurm,
    parse_accounted,
    parse_jobs,
    parse_shown,
)
from tests.provision.batch.systems.conftest import Commands, assert_whole, told

BANNER = "*** maintenance tonight ***\n"
ROW = "farm|7|RUNNING|n1|farm-ab-x+1|None|N/A|end\n"


EIGHT = time.mktime((2026, 11, 25, 8, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("state", "start", "starts_at"),
    [
        ("PENDING", "2026-11-25T08:00:00", EIGHT),
        ("RUNNING", "2026-11-25T08:00:00", None),
        ("PENDING", "N/A", None),
        ("PENDING", "Unknown", None),
        ("PENDING", "", None),
        ("PENDING", "2026-13-25T08:00:00", None),
        ("PENDING", "25 Nov 08:00", None),
        ("PENDING", "2026-11-25T08:00:00+01:00", None),
        ("PENDING", "0001-01-01T00:00:00", None),
    ],
)
def test_an_expected_start_counts_if_it_can_be_read(
    state: str, start: str, starts_at: float | None
) -> None:
    listing = parse_jobs(f"{HEADER}\nfarm|7|{state}||x|None|{start}|end\n")
    assert listing.problem == ""
    assert [row.starts_at for row in listing.rows] == [starts_at]
    shown = f"JobId=7 UserId=me({os.getuid()}) JobState={state} StartTime={start} NodeList=(null)"
    row = parse_shown("7", shown)
    assert row is not None
    assert row.starts_at == starts_at


def test_rows_of_squeue_are_read() -> None:
    text = (
        f"{HEADER}\nfarm|7|PENDING||farm-ab-x+1|(Resources)|2026-11-25T08:00:00|end\n"
        "farm|8|RUNNING|n[1-2]|a |b|None|N/A|end\nfarm|9_[1-3]|PENDING||c|PartitionDown|N/A|end\n"
    )
    listing = parse_jobs(text)
    assert listing.problem == ""
    assert listing.rows == (
        JobRow("7", Stand.PENDING, "PENDING", "farm-ab-x+1", "", "Resources", starts_at=EIGHT),
        JobRow("8", Stand.RUNNING, "RUNNING", "a |b", "n[1-2]", ""),
        JobRow("9_[1-3]", Stand.PENDING, "PENDING", "c", "", "PartitionDown", needs_action=True),
    )


@pytest.mark.parametrize(
    ("text", "problem", "rows"),
    [
        (f"{HEADER}\n", "", 0),
        (f"{BANNER}{HEADER}\n{ROW}{BANNER}", "", 1),
        ("", "squeue printed nothing", 0),
        ("\n\n", "squeue printed nothing", 0),
        (BANNER, "squeue printed no header", 0),
        (ROW, "squeue printed no header", 1),
        (f"{HEADER}\n{ROW}farm|8|RUNN", "a damaged line: 'farm|8|RUNN'", 1),
        (f"{HEADER}\n{ROW}farm|8|RUNN\n", "a damaged line: 'farm|8|RUNN'", 1),
        (f"{HEADER}\n{ROW}f", "a damaged line: 'f'", 1),
        (f"{HEADER}\n{ROW}NING|n1|farm-ab-x+1|None|N/A|end\n", "a damaged line", 1),
        (f"{HEADER}\n{ROW}farm|8\0|RUNNING|n1|farm-ab-x+2|None|N/A|end\n", "a damaged line", 1),
        (f"{HEADER}\n{ROW}farm|8|RUNNING|n1|farm\0|None|N/A|end\n", "a damaged line", 1),
        (HEADER, "squeue printed no header", 0),
    ],
)
def test_a_list_counts_as_whole_only_if_all_of_it_can_be_read(
    text: str, problem: str, rows: int
) -> None:
    assert_whole(parse_jobs(text), problem, rows)


@pytest.mark.parametrize(
    ("state", "stand"),
    [
        *[("PENDING", Stand.PENDING), ("REQUEUED", Stand.PENDING)],
        *[("RUNNING", Stand.RUNNING), ("A_STATE_OF_TOMORROW", Stand.RUNNING)],
        ("COMPLETING", Stand.COMPLETING),
        *[("TIMEOUT", Stand.ENDED), ("NODE_FAIL", Stand.ENDED)],
    ],
)
def test_states_say_whether_a_job_waits_runs_or_has_ended(state: str, stand: Stand) -> None:
    (row,) = parse_jobs(f"{HEADER}\nfarm|1|{state}||x|None|N/A|end\n").rows
    assert row.stand is stand


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("42\n", "42"),
        ("42;main\n", "42"),
        (f"{BANNER}42\n{BANNER}", "42"),
        ("Submitted batch job 42\n", "42"),
        ("Submitted batch job 42 on cluster main\n", "42"),
        (BANNER, ""),
        ("4\0 2\n", ""),
        ("job 42 is great\n", ""),
        ("0\n", ""),
    ],
)
def test_a_job_id_is_found_among_banners(text: str, job_id: str) -> None:
    assert only_id(text, ID) == job_id


def test_the_id_is_what_sbatch_says(commands: Commands) -> None:
    commands.does("sbatch", 'cat >/dev/null; echo hello; echo "42;main"')
    assert asyncio.run(Slurm().submit("#!/bin/sh\n")) == "42"


ERROR = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("text", "then", "surely_refused"),
    [
        (f"{ERROR}Invalid account", ">&2; exit 1", True),
        ("sbatch: error: Invalid --time specification", ">&2; exit 1", True),
        ("sbatch: unrecognized option --x", ">&2; exit 1", True),
        (f"{ERROR}Unable to contact slurm controller (connect failure)", ">&2; exit 1", True),
        (f"{ERROR}Socket timed out on send/recv operation", ">&2; exit 1", False),
        ("", ">&2; exit 1", False),
        ("site policy", ">&2; exit 1", False),
        ("", "; kill -KILL $$", False),
        ("hello", "", False),
        ("", "", False),
        ("4\0002", "", False),
    ],
)
def test_only_a_clear_refusal_means_that_there_is_no_job(
    text: str, then: str, surely_refused: bool, commands: Commands
) -> None:
    commands.prints("sbatch", text, then)
    with pytest.raises(BatchError) as caught:
        asyncio.run(Slurm().submit("#!/bin/sh\n"))
    assert isinstance(caught.value, SubmissionRefused) == surely_refused


SHOWN = f"JobId=1 JobName=farm-ab-x UserId=me({os.getuid()}) JobState="
NODES = "Reason=None ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1"
UNKNOWN = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"


def test_a_job_that_scontrol_shows() -> None:
    row = parse_shown("1", f"{BANNER}{SHOWN}RUNNING {NODES}\n{BANNER}")
    assert row == JobRow("1", Stand.RUNNING, "RUNNING", "farm-ab-x", "n[1-2]")
    ended = f"{SHOWN}FAILED Reason=NonZeroExitCode NodeList=(null)\n"
    row = parse_shown("1", ended)
    assert row is not None
    assert (row.in_words, row.crashed, row.nodes) == ("FAILED (NonZeroExitCode)", True, "")
    parts = ended.replace("JobId=1", "JobId=2 ArrayJobId=1") + f"{SHOWN}PENDING {NODES}\n" + ended
    part = parse_shown("1", parts)
    assert part is not None
    assert part.stand is Stand.PENDING, "a part of it lives"


def test_an_id_that_is_in_use_by_another_user_is_no_job_of_ours() -> None:
    text = f"{SHOWN}RUNNING {NODES}\n".replace(f"({os.getuid()})", "(4711)")
    assert parse_shown("1", text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", BANNER, "\0\0", f"{SHOWN}", f"{SHOWN}RUN\0NING {NODES}\n", "JobState=FAILED\n"),
        f"{SHOWN}FAILED {NODES}\n".replace("JobId=1", "JobId=12"),
        f"{SHOWN}FAILED {NODES}\n".replace("UserId", "User"),
        "No jobs in the system\n",
    ],
)
def test_what_does_not_describe_the_job_says_nothing(text: str) -> None:
    with pytest.raises(BatchError, match="scontrol did not describe job 1, but printed"):
        parse_shown("1", text)


def test_accounts_count_only_for_jobs_that_have_ended() -> None:
    row = parse_accounted("1", f"{BANNER}1|CANCELLED by 1000|0:15|farm-ab-x\n")
    assert row is not None
    assert (row.in_words, row.name) == ("CANCELLED (exit code 0:15)", "farm-ab-x")
    for text in ("1|RUNNING|0:0|x\n", "", "12|FAILED|1:0|x\n", "1|FAILED", "1|FAI\0LED|1:0|x\n"):
        assert parse_accounted("1", text) is None


@pytest.mark.parametrize(
    ("scontrol", "sacct", "state"),
    [
        (f"echo '{SHOWN}COMPLETED {NODES}'", "exit 1", "COMPLETED"),
        (UNKNOWN, 'echo "1|FAILED|1:0|x"', "FAILED (exit code 1:0)"),
        (UNKNOWN, 'echo "1|RUNNING|0:0|x"', None),
        (UNKNOWN, "echo accounting storage is disabled >&2; exit 1", None),
        (UNKNOWN, "true", None),
        ("exit 1", 'echo "1|FAILED|1:0|x"', BatchError),
        ("true", 'echo "1|FAILED|1:0|x"', BatchError),
    ],
)
def test_accounts_are_asked_only_if_the_controller_says_that_it_knows_no_such_job(
    scontrol: str, sacct: str, state: str | type[BatchError] | None, commands: Commands
) -> None:
    commands.does("scontrol", scontrol)
    commands.does("sacct", sacct)
    assert told(Slurm().job("1")) == state
