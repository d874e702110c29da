"""What of the output of Grid Engine's commands counts, in texts recorded from Grid Engine 8.1.9."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.provision.batch.commands import only_id
from farm.provision.batch.system import BatchError, JobRow, Stand
from farm.provision.batch.systems.grid_engine_output import (
    ID,
    UnknownJob,
    parse_accounted,
    parse_described,
    parse_jobs,
    parse_reasons,
)
from tests.provision.batch.systems.conftest import assert_whole

RECORDED = Path(__file__).with_name("recorded") / "grid_engine"
BANNER = "*** maintenance <b>tonight</b> ***\n"
NO_JOBS = """<?xml version='1.0'?>
<job_info  xmlns:xsd="http://arc.liv.ac.uk/qstat.xsd">
  <queue_info>
  </queue_info>
  <job_info>
  </job_info>
</job_info>
"""
NO_MASTER = """<?xml version='1.0'?>
<comunication_error >
    <AN_status>11</AN_status>
    <AN_text>unable to send message to qmaster using port 9 on host &quot;login&quot;</AN_text>
    <AN_quality>1</AN_quality>
</comunication_error>
"""
UNKNOWN = "<?xml version='1.0'?>\n<unknown_jobs >\n    <ST_name>999</ST_name>\n</unknown_jobs>\n"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def one_job(state: str, of: str = "pending", name: str = "farm-a+1") -> str:
    row = (
        f'<job_list state="{of}"><JB_job_number>7</JB_job_number><JB_name>{name}</JB_name>'
        f"<JB_owner>root</JB_owner><state>{state}</state><queue_name>main.q@n1</queue_name>"
        "</job_list>"
    )
    return NO_JOBS.replace("<queue_info>", f"<queue_info>{row}")


def test_rows_of_a_list_are_read() -> None:
    listing = parse_jobs(recorded("list.xml"))
    assert listing.problem == ""
    assert listing.rows == (
        JobRow("3", Stand.RUNNING, "r", "run", "node1"),
        JobRow("7", Stand.RUNNING, "s", "susp", "node1", "suspended", needs_action=True),
        JobRow("5", Stand.PENDING, "Eqw", "err", needs_action=True),
        JobRow("4", Stand.PENDING, "hqw", "held", needs_action=True),
        JobRow("6", Stand.PENDING, "hqw", "deps", needs_action=True),
        JobRow("8", Stand.PENDING, "qw", "future"),
        JobRow("1", Stand.ENDED, "z", "farm-ab12-w1+cafe"),
        JobRow("2", Stand.ENDED, "z", "farm-ab12-w1+cafe"),
    )


@pytest.mark.parametrize(
    ("text", "problem", "rows"),
    [
        (NO_JOBS, "", 0),
        (BANNER + one_job("r") + BANNER, "", 1),
        ("", "no whole document", 0),
        (BANNER, "no whole document", 0),
        (NO_MASTER, "unable to send message to qmaster", 0),
        (UNKNOWN, "no list of jobs", 0),
        (one_job("r")[:-12], "damaged document", 1),
        (one_job("r")[:180], "no whole document", 0),
        (one_job("r").replace("</job_list>", ""), "damaged document", 0),
        (one_job("r").replace("  <job_info>", "\0 <job_info>"), "damaged document", 1),
        (one_job("r").replace("<JB_name>farm-a+1</JB_name>", ""), "1 damaged rows", 0),
        (one_job("r").replace(">7<", "><"), "1 damaged rows", 0),
        (one_job("running?"), "1 damaged rows", 0),
        (NO_JOBS + NO_JOBS, "damaged document", 0),
    ],
)
def test_a_list_counts_as_whole_only_if_all_of_it_can_be_read(
    text: str, problem: str, rows: int
) -> None:
    assert_whole(parse_jobs(text), problem, rows)


def test_states_say_whether_a_job_waits_runs_or_has_ended() -> None:
    """The states of sge_status(5)."""
    stands = {
        Stand.PENDING: "qw Rq hqw hRwq Eqw Ehqw EhRqw",
        Stand.RUNNING: "r hr t Rr Rt s ts S tS T tT Rs Rts RS RtS RT RtT",
        Stand.COMPLETING: "dr dt dRr dRt ds dS dT dRs dRS dRT",
        Stand.ENDED: "z",
    }
    for stand, states in stands.items():
        for state in states.split():
            (row,) = parse_jobs(one_job(state)).rows
            assert (state, row.stand) == (state, stand)
            for_people = {Stand.PENDING: "Eh", Stand.RUNNING: "sST"}.get(stand, "")
            assert (state, row.needs_action) == (state, bool(set(state) & set(for_people)))


def test_a_job_is_described() -> None:
    row = parse_described("3", BANNER + recorded("running.xml"), "root")
    assert row == JobRow("3", Stand.RUNNING, "r", "run")
    reason = 'can\'t open output file "/nonexistent/x": No such file or directory'
    assert parse_described("5", recorded("error.xml"), "root") == JobRow(
        "5", Stand.PENDING, "Eqw", "err", reason=reason, needs_action=True
    )
    assert parse_reasons(recorded("error.xml")) == {"5": reason}
    assert parse_described("4", recorded("held.xml"), "root") == JobRow(
        "4", Stand.PENDING, "hqw", "held", reason="Job is in hold state", needs_action=True
    )


@pytest.mark.parametrize(
    ("status", "stand"),
    [
        (0, Stand.PENDING),
        (64, Stand.PENDING),
        (128, Stand.RUNNING),
        (512, Stand.RUNNING),
        (65536, Stand.COMPLETING),
    ],
)
def test_the_bits_of_a_job_say_where_it_is(status: int, stand: Stand) -> None:
    text = recorded("running.xml").replace("<JAT_status>128", f"<JAT_status>{status}")
    row = parse_described("3", text, "root")
    assert row is not None
    assert row.stand is stand


def test_only_the_own_job_with_this_id_is_described() -> None:
    assert parse_described("3", recorded("running.xml"), "alice") is None
    with pytest.raises(BatchError, match="did not describe job 4"):
        parse_described("4", recorded("running.xml"), "root")
    with pytest.raises(BatchError, match="unable to send message"):
        parse_described("3", NO_MASTER, "root")
    with pytest.raises(BatchError, match="no whole document"):
        parse_described("3", recorded("running.xml")[:-20], "root")


@pytest.mark.parametrize(
    "text",
    [UNKNOWN, BANNER + UNKNOWN, UNKNOWN.replace("<ST", "<>\n<ST").replace("</un", "</></un")],
)
def test_an_unknown_job_is_told_from_no_answer(text: str) -> None:
    with pytest.raises(UnknownJob):
        parse_described("999", text, "root")
    with pytest.raises(BatchError) as caught:
        parse_described("99", text, "root")
    assert not isinstance(caught.value, UnknownJob)


def test_an_account_says_how_a_job_ended() -> None:
    reason = "failed 100: assumedly after job; exit status 137 (Killed)"
    assert parse_accounted("3", recorded("killed.txt"), "root") == JobRow(
        "3", Stand.ENDED, "ended", "run", reason=reason
    )
    assert parse_accounted("4", recorded("killed.txt"), "root") is None
    assert parse_accounted("3", recorded("killed.txt"), "alice") is None
    assert parse_accounted("3", "", "root") is None


def test_the_last_record_of_a_job_is_that_of_the_whole_job() -> None:
    """Before it are those of the parts on other nodes, which ended with 127."""
    row = parse_accounted("2", recorded("three_parts.txt"), "root")
    assert row == JobRow("2", Stand.ENDED, "ended", "farm-ab12-many+1", reason="exit status 0")


@pytest.mark.parametrize(
    ("failed", "status", "crashed"),
    [
        ("0", "0", False),
        ("0", "7", True),
        ("26  : opening input/output file", "0", True),
        ("15  : in epilog", "0", False),
        ("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137 (Killed)", False),
        ("100 : assumedly after job", "139 (Segmentation fault)", True),
        ("100 : assumedly after job", "143 (Terminated)", False),
    ],
)
def test_a_crash_is_told_from_the_end_of_a_deleted_job(
    failed: str, status: str, crashed: bool
) -> None:
    text = recorded("killed.txt").replace("100 : assumedly after job", failed)
    row = parse_accounted("3", text.replace("137                  (Killed)", status), "root")
    assert row is not None
    assert (row.stand, row.crashed, row.taken) == (Stand.ENDED, crashed, False)


def test_the_record_of_a_start_that_was_given_up_is_not_the_end_of_the_job() -> None:
    text = recorded("killed.txt").replace("100 : assumedly after job", "25  : rescheduling")
    assert parse_accounted("3", text, "root") is None


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("42\n", "42"),
        (f"{BANNER}42\n{BANNER}", "42"),
        ('Your job 42 ("farm-a+1") has been submitted\n', "42"),
        ("42.1-3:1\n", ""),
        (BANNER, ""),
        ("4\0 2\n", ""),
        ("0\n", ""),
    ],
)
def test_a_job_id_is_found_among_banners(text: str, job_id: str) -> None:
    assert only_id(text, ID) == job_id
