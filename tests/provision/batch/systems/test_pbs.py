"""PBS: what its commands print, as recorded from OpenPBS 23.06.06, and its job scripts."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.system import BatchError, JobRow, Listing, Stand
from farm.provision.batch.systems.pbs import Pbs, parse_jobs, row_of
from tests.provision.batch.systems.conftest import Commands, directives

RECORDED = (Path(__file__).parent / "recorded" / "openpbs_qstat.dsv").read_text()
BANNER = "*** maintenance tonight ***\n"
USER = pwd.getpwuid(os.getuid()).pw_name
NAMED = "Job Id: 7.s|Job_Name=farm-ab-x+1|Job_Owner="


def rows(text: str) -> dict[str, JobRow]:
    """The rows by id and state, as two jobs are in the recording twice."""
    found = {}
    for line in text.splitlines():
        jobs, damaged = parse_jobs(f"{line}\n")
        assert not damaged
        for job_id, job in jobs.items():
            row = row_of(job_id, job)
            found[f"{job_id} {row.state}"] = row
    return found


def test_recorded_jobs() -> None:
    found = rows(RECORDED)
    never = "Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 2 T: 2)"
    assert {key: (row.stand, row.needs_action, row.crashed) for key, row in found.items()} == {
        "48.farmbox finished": (Stand.ENDED, False, True),
        "49.farmbox running": (Stand.RUNNING, False, False),
        "50.farmbox queued": (Stand.PENDING, True, False),
        "51.farmbox held": (Stand.PENDING, True, False),
        "52.farmbox waiting for its time": (Stand.PENDING, False, False),
        "53.farmbox running": (Stand.RUNNING, False, False),
        "54.farmbox queued": (Stand.PENDING, False, False),
        "55.farmbox held": (Stand.PENDING, False, False),  # until another job has ended
        "49.farmbox finished": (Stand.ENDED, False, False),  # deleted
        "50.farmbox finished": (Stand.ENDED, False, False),
        "9.farmbox held": (Stand.PENDING, True, False),
    }
    assert found["50.farmbox queued"].reason == never
    assert found["54.farmbox queued"].reason == "Not Running: Not enough free nodes available"
    assert found["49.farmbox running"].nodes == "farmbox/1"
    assert found["49.farmbox running"].name == "farm-ab-k_1.x+01"
    assert found["48.farmbox finished"].reason.startswith("exit status 3; Job run at ")
    assert found["49.farmbox finished"].reason.startswith("killed by signal 15; Job run at ")
    assert found["9.farmbox held"].name == "strange"


def ended(code: int, substate: int = 93) -> JobRow:
    text = f"{NAMED}me@h|job_state=F|substate={substate}|Exit_status={code}|comment=c\n"
    jobs, _ = parse_jobs(text)
    return row_of("7.s", jobs["7.s"])


def test_how_a_job_ended() -> None:
    assert {
        code: (ended(code).crashed, ended(code).taken) for code in (0, 3, 271, -29, -20, -1)
    } == {
        0: (False, False),
        3: (True, False),
        271: (True, False),
        -29: (False, False),  # its time was over
        -20: (False, True),  # the connection to its node was lost
        -1: (True, False),  # it could not be started
    }
    assert not ended(271, substate=91).crashed, "it was deleted"


@pytest.mark.parametrize(
    ("text", "jobs", "damaged"),
    [
        ("", 0, ""),
        (BANNER, 0, ""),
        (f"{BANNER}{NAMED}me@h|job_state=R\n{BANNER}", 1, ""),
        (f"{NAMED}me@h|job_state=R", 0, f"{NAMED}me@h|job_state=R"),
        (f"{NAMED}me@h\n", 0, f"{NAMED}me@h"),
        (f"{NAMED}me@h|job_state=Z\n", 0, f"{NAMED}me@h|job_state=Z"),
        (f"{NAMED}m\0e@h|job_state=R\n", 0, f"{NAMED}m\0e@h|job_state=R"),
    ],
)
def test_a_line_counts_only_as_a_whole(text: str, jobs: int, damaged: str) -> None:
    found, wrong = parse_jobs(text)
    assert (len(found), wrong) == (jobs, damaged)


def listed() -> Listing:
    return asyncio.run(Pbs().jobs())


RUNNING = f"{NAMED}{USER}@h|job_state=R"


def test_a_list_is_whole_if_all_selected_jobs_are_in_it_or_have_ended(commands: Commands) -> None:
    commands.does("qselect", "echo 7.s; echo 8.s")
    commands.does("qstat", f"echo '{RUNNING}'; echo 'qstat: Unknown Job Id 8.s' >&2; exit 153")
    assert [row.id for row in listed().rows] == ["7.s"]
    assert listed().problem == ""
    commands.does("qstat", f"echo '{RUNNING}'")
    assert listed().problem == "qstat did not describe job 8.s, which qselect lists"
    commands.does("qstat", f"echo '{RUNNING}'; echo 'qstat: cannot connect' >&2; exit 1")
    with pytest.raises(BatchError, match="cannot connect"):
        listed()


def test_no_jobs_are_believed_only_if_the_server_is_there(commands: Commands) -> None:
    commands.does("qselect", "true")
    commands.does("qstat", "echo 'Server: s|server_state=Active'")
    assert listed() == Listing(())
    commands.does("qstat", "true")
    assert listed().problem == "qselect printed nothing, and qstat -B only ''"


@pytest.mark.parametrize("text", ["7.s\\n8.", "7.s\\n8\\n", "7"])
def test_a_damaged_id_makes_no_list(text: str, commands: Commands) -> None:
    commands.does("qselect", f"printf '{text}'")
    with pytest.raises(BatchError, match=r"qselect printed a damaged line: '[78]"):
        listed()


def test_jobs_of_other_users_are_not_ours(commands: Commands) -> None:
    commands.does("qselect", "echo 7.s")
    commands.does("qstat", f"echo '{NAMED}other@h|job_state=R'")
    assert listed() == Listing(())
    assert asyncio.run(Pbs().job("7.s")) is None


def test_where_no_history_is_kept_jobs_are_asked_about_without_it(commands: Commands) -> None:
    """With -x such a server shows no job, which qstat counts as success."""
    said = "echo qstat: PBS is not configured to maintain job history >&2; exit 0"
    commands.does("qstat", f'case "$*" in *-x*) {said} ;; esac; echo "{RUNNING}"')
    row = asyncio.run(Pbs().job("7.s"))
    assert row is not None
    assert row.stand is Stand.RUNNING
    unknown = "echo qstat: Unknown Job Id 7.s >&2; exit 153"
    commands.does("qstat", f'case "$*" in *-x*) {said} ;; esac; {unknown}')
    assert asyncio.run(Pbs().job("7.s")) is None


def test_a_job_asks_for_what_its_kind_needs() -> None:
    lines = directives(
        Pbs,
        queue="q",
        account="a1",
        mem="8G",
        time="1:00:00",
        cpus=2,
        workers=4,
        gpus=2,
        options=["-m n"],
    )
    assert lines == [
        *("#PBS -N farm-1-small+ab", "#PBS -S /bin/bash", "#PBS -j oe", "#PBS -o /dev/null"),
        *("#PBS -r y", "#PBS -q q", "#PBS -A a1"),
        *("#PBS -l select=1:ncpus=16:mpiprocs=1:ngpus=2:mem=8gb", "#PBS -l walltime=1:00:00"),
        "#PBS -m n",
        "FARM_OUTPUT='/run dir/jobs'/\"$PBS_JOBID.out\"",
        'exec >> "$FARM_OUTPUT" 2>&1',
        "cd '/home me'",
    ]


def test_mpi_ranks_are_spread_over_the_nodes() -> None:
    lines = directives(Pbs, ranks=8, workers=2, cpus=3, nodes=4, mem="500", time="90")
    assert "#PBS -l select=4:ncpus=12:mpiprocs=4:mem=500mb" in lines
    assert {"#PBS -l place=scatter", "#PBS -l walltime=1:30:00"} <= set(lines)


def test_resources_that_the_options_name_are_left_to_them() -> None:
    lines = directives(Pbs, time="10", options=["-l select=1:ncpus=4:model=x", "-l place=excl"])
    assert [line for line in lines if "select" in line or "place" in line] == [
        "#PBS -l select=1:ncpus=4:model=x",
        "#PBS -l place=excl",
    ]
    assert "#PBS -l walltime=0:10:00" in lines


def test_a_task_of_another_node_gets_all_variables_and_writes_to_the_same_output(
    tmp_path: Path,
) -> None:
    """Here by a pbsdsh that passes on no variable and starts in another folder, as PBS's does."""
    pbsdsh = tmp_path / "pbsdsh"
    pbsdsh.write_text('#!/bin/bash\nshift; cd /; exec env -i PATH=/usr/bin:/bin "$@"\n')
    pbsdsh.chmod(0o755)
    folder = tmp_path / "it's here"
    folder.mkdir()
    launch = Pbs.launch(WorkerKind(name="small", models=["m.py"], nodes=2))
    script = (
        f'FARM_OUTPUT=$PWD/out\nexport A=$\'x "y\\nz\'\n{launch} printf "%s|" "$PWD" "a b" \'$A\''
    )
    subprocess.run(
        ["bash", "-c", f"{script}\n{launch} bash -c 'echo \"$A\"; pwd'"],
        cwd=folder,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
    )
    assert (folder / "out").read_text() == f'{folder}|a b|$A|x "y\nz\n{folder}\n'
