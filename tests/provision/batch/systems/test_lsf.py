"""LSF: what its commands print, and its job scripts.

The JSON is that of an LSF 10.1 in the documentation of buildtest (job 58652, on hold) and in the
tests of Roddy's BatchEuphoria (job 22005, done) and of mskcc/beagle (reasons), with our names. An
entry with ERROR is as psij-python reads it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.provision.batch.system import BatchError, JobRow, Stand
from farm.provision.batch.systems.lsf import Lsf, parse_job, parse_jobs, row_of
from tests.provision.batch.systems.conftest import assert_whole, directives

WAIT = "Cannot connect to LSF. Please wait ...\n"


def record(**values: str) -> dict[str, str]:
    names = ("JOBID", "STAT", "JOB_NAME", "USER", "EXEC_HOST", "PEND_REASON", "EXIT_REASON")
    empty = dict.fromkeys((*names, "EXIT_CODE"), "")
    return {**empty, "JOBID": "7", "JOB_NAME": "farm-ab-x+1", "USER": "me", **values}


def answer(*records: Any, count: Any = None) -> str:
    jobs = len(records) if count is None else count
    return json.dumps({"COMMAND": "bjobs", "JOBS": jobs, "RECORDS": list(records)}, indent=2)


HELD = record(JOBID="58652", STAT="PSUSP", PEND_REASON="The job was suspended by the user;")
DONE = record(JOBID="22005", STAT="DONE", EXEC_HOST="tbi-cn019:tbi-cn019")
PENDING = record(STAT="PEND", PEND_REASON="New job is waiting for scheduling;")


def test_rows_of_bjobs_are_read() -> None:
    listing = parse_jobs(f"{WAIT}{answer(HELD, DONE, PENDING)}\n{WAIT}", "me")
    name = "farm-ab-x+1"
    assert listing.problem == ""
    assert listing.rows == (
        JobRow(
            *("58652", Stand.PENDING, "PSUSP", name, "", "The job was suspended by the user"),
            needs_action=True,
        ),
        JobRow("22005", Stand.ENDED, "DONE", name, "tbi-cn019:tbi-cn019"),
        JobRow("7", Stand.PENDING, "PEND", name, "", "New job is waiting for scheduling"),
    )


@pytest.mark.parametrize(
    ("text", "problem", "count"),
    [
        (answer(), "", 0),
        ("No job found\n", "", 0),
        ("No unfinished job found\n", "", 0),
        (answer(DONE, count="1"), "", 1),
        ("", "bjobs printed no list of jobs, but ''", 0),
        (WAIT, "bjobs printed no list", 0),
        (answer(DONE)[:-20], "bjobs printed no list", 0),
        (answer(DONE, count=2), "bjobs printed 1 records, and that there are '2'", 1),
        (answer(DONE, record(STAT="NEW")), "job '7' in state 'NEW'", 1),
        (answer(DONE, "x"), "job '' in state ''", 1),
        ('{"RECORDS": null}', "bjobs printed 0 records", 0),
    ],
)
def test_a_list_counts_as_whole_only_if_all_of_it_can_be_read(
    text: str, problem: str, count: int
) -> None:
    assert_whole(parse_jobs(text, "me"), problem, count)


def test_jobs_of_other_users_are_not_ours() -> None:
    assert parse_jobs(answer(record(STAT="RUN", USER="you")), "me").rows == ()
    assert parse_job("7", answer(record(STAT="RUN", USER="you")), "me") is None


@pytest.mark.parametrize(
    ("values", "reason", "crashed", "taken"),
    [
        ({"EXIT_CODE": "7"}, "exit code 7", True, False),
        ({"EXIT_REASON": "TERM_OWNER: job killed by owner"}, "TERM_OWNER", False, False),
        ({"EXIT_REASON": "TERM_RUNLIMIT: job killed after …"}, "TERM_RUNLIMIT", False, False),
        ({"EXIT_REASON": "TERM_MEMLIMIT: job killed after …"}, "TERM_MEMLIMIT", True, False),
        ({"EXIT_REASON": "TERM_PREEMPT: job killed …"}, "TERM_PREEMPT", False, True),
    ],
)
def test_how_a_job_ended(values: dict[str, str], reason: str, crashed: bool, taken: bool) -> None:
    row = row_of(record(STAT="EXIT", **values))
    assert row.reason.startswith(reason)
    assert (row.stand, row.crashed, row.taken) == (Stand.ENDED, crashed, taken)


def test_a_host_that_is_lost_or_comes_to_an_end() -> None:
    assert row_of(record(STAT="UNKWN")).in_words == "UNKWN (LSF has lost contact with its host)"
    assert row_of(record(STAT="ZOMBI")).stand is Stand.COMPLETING


def test_one_job_by_its_id() -> None:
    assert parse_job("7", f"{WAIT}{answer(PENDING)}", "me") == row_of(PENDING)
    for text in (
        answer({"JOBID": "7", "ERROR": "Job <7> is not found"}),
        "Job <7> is not found\n",
    ):
        assert parse_job("7", text, "me") is None


@pytest.mark.parametrize(
    "text",
    [
        *("", WAIT, answer(DONE), answer(PENDING, PENDING), answer(), answer("x")),
        *("Job <77> is not found\n", answer(PENDING)[:-30], '{"RECORDS": 7}'),
    ],
)
def test_what_does_not_describe_the_job_says_nothing(text: str) -> None:
    with pytest.raises(BatchError, match="bjobs did not describe job 7, but printed"):
        parse_job("7", text, "me")


def test_a_job_asks_for_what_its_kind_needs() -> None:
    lines = directives(
        Lsf, queue="q", account="p1", time="90", cpus=2, workers=4, gpus=2, options=["-app x"]
    )
    assert lines == [
        *("#BSUB -J farm-1-small+ab", "#BSUB -o /dev/null", "#BSUB -cwd '/home me'", "#BSUB -q q"),
        *("#BSUB -P p1", "#BSUB -n 16", "#BSUB -R 'span[ptile=16]'", "#BSUB -gpu num=2"),
        *("#BSUB -W 1:30", "#BSUB -r", "#BSUB -app x"),
        "exec >> '/run dir/jobs'/\"$LSB_JOBID.out\" 2>&1",
    ]


def test_mpi_ranks_are_spread_over_the_nodes() -> None:
    lines = directives(Lsf, ranks=8, workers=2, cpus=3, nodes=4, time="0:00:30")
    assert {"#BSUB -n 48", "#BSUB -R 'span[ptile=12]'", "#BSUB -W 0:01"} <= set(lines)
