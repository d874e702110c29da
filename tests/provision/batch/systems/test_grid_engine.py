"""Grid Engine's commands: their arguments, what their answers mean, and the words of a script."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from farm.machine.private import user_name
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.script import JobScripts
from farm.provision.batch.system import BatchError, Stand, SubmissionRefused
from farm.provision.batch.systems import GRID_ENGINE
from farm.provision.batch.systems.grid_engine import ACCOUNTS_LAG_S, EACH_HOST, GridEngine
from farm.settings import SettingsError
from tests.provision.batch.systems.conftest import Commands, told
from tests.provision.batch.systems.test_grid_engine_output import NO_JOBS, RECORDED, one_job

UNKNOWN = "echo \"<?xml version='1.0'?><unknown_jobs ><ST_name>7</ST_name></unknown_jobs>\""


def script_of(kind: WorkerKind, folder: Path = Path("/home/me")) -> str:
    scripts = JobScripts(GRID_ENGINE, folder / "workers.json", folder / "jobs", folder)
    return scripts.of(kind, "farm-a-x+1")


# Submission


def test_the_id_is_what_qsub_says_even_if_it_fails_after_a_warning(commands: Commands) -> None:
    commands.prints("qsub", "hello\n42\n")
    assert asyncio.run(GridEngine().submit("#!/bin/sh\n")) == "42"
    warning = (
        "Unable to run job: warning: root's job is not allowed to run in any queue\n"
        'Your job 2 ("farm-a-x+1") has been submitted\nExiting.\n'
    )
    commands.prints("qsub", warning, ">&2; exit 1")
    assert asyncio.run(GridEngine().submit("#!/bin/sh\n")) == "2"


@pytest.mark.parametrize(
    ("text", "surely_refused"),
    [
        ('Unable to run job: Job was rejected because job requests unknown queue "q"', True),
        ('Unable to run job: unknown resource "gpu"', True),
        ('qsub: invalid option argument "-zork"', True),
        ("Unable to read script file because of error: error opening a", True),
        ('Unable to initialize environment because of error: SGE_ROOT "/a" does not exist', True),
        ('Unable to run job: unable to send message to qmaster using port 1 on "login"', False),
        ("error: commlib error: got select error (Connection refused)", False),
        ("Unable to run job: failed receiving gdi request response: sync timeout", False),
        ("site policy", False),
        ("", False),
    ],
)
def test_only_a_clear_refusal_means_that_there_is_no_job(
    text: str, surely_refused: bool, commands: Commands
) -> None:
    commands.prints("qsub", text, ">&2; exit 1")
    with pytest.raises(BatchError) as caught:
        asyncio.run(GridEngine().submit("#!/bin/sh\n"))
    assert isinstance(caught.value, SubmissionRefused) == surely_refused


# Questions


@pytest.mark.parametrize("described", [True, False])
def test_a_list_of_this_users_jobs_has_the_reasons_of_those_of_farm(
    commands: Commands, described: bool
) -> None:
    """It is of use without them, too."""
    commands.prints("error", (RECORDED / "error.xml").read_text().replace(">5<", ">7<"))
    commands.prints("list", one_job("Eqw"))
    commands.does("qstat", f'[ "$2" != -j ] && exec list; {"error" if described else "exit 1"}')
    listing = asyncio.run(GridEngine().jobs())
    (row,) = listing.rows
    assert (row.id, row.state, row.needs_action, listing.problem) == ("7", "Eqw", True, "")
    assert ("can't open output file" in row.reason) == described
    asked = [words for words in commands.said() if words.startswith("qstat")]
    assert asked == [f"qstat -xml -u {user_name()} -s prsz", "qstat -xml -j 7"]


NOT_7 = "echo 'Following jobs do not exist: 7' >&2; exit 1"
NOT_77 = NOT_7.replace("7'", "77'")


@pytest.fixture
def answers(commands: Commands) -> Commands:
    """Commands that print lists, `none` and `zombie`, and the account of job 7."""
    record = ("jobnumber    7", f"owner  {user_name()}  ", "jobname  x", "failed  0   ")
    commands.prints("account", "\n".join([*record, "exit_status  7   \n"]))
    commands.prints("none", NO_JOBS)
    commands.prints("zombie", one_job("z", "zombie"))
    return commands


@pytest.mark.parametrize(
    ("first", "then", "account", "state"),
    [
        (UNKNOWN, "echo", "account", "ended (exit status 7)"),
        (NOT_7, "echo", "account", "ended (exit status 7)"),
        (UNKNOWN, "none", "exit 1", None),
        (UNKNOWN, "zombie", "exit 1", None),
        ("exit 1", "zombie", "account", BatchError),
        (NOT_77, "echo", "account", BatchError),
        ("none", "zombie", "account", BatchError),
        ("true", "zombie", "account", BatchError),
    ],
)
def test_accounts_are_asked_only_if_the_master_says_that_it_knows_no_such_job(
    first: str, then: str, account: str, state: str | type[BatchError] | None, answers: Commands
) -> None:
    answers.does("qstat", f'if [ "$2" = -j ]; then {first}; else {then}; fi')
    answers.does("qacct", account)
    assert told(GridEngine().job("7")) == state


def test_an_ended_job_without_an_account_is_ended_after_a_while_or_if_it_was_deleted(
    answers: Commands,
) -> None:
    answers.does("qstat", f'if [ "$2" = -j ]; then {UNKNOWN}; else zombie; fi')
    answers.does("qacct", "echo error: job id 7 not found; exit 1")
    now = 100.0
    system = GridEngine(clock=lambda: now)
    assert asyncio.run(system.job("7")) is None
    now += ACCOUNTS_LAG_S - 0.1
    assert asyncio.run(system.job("7")) is None
    now += 0.2
    other = GridEngine()
    asyncio.run(other.cancel(["7"]))
    for each in (system, other):
        row = asyncio.run(each.job("7"))
        assert row is not None
        assert row.stand is Stand.ENDED


# Deletion


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ('root has deleted job 1\ndenied: job "2" does not exist', False),
        ("root has registered the job 1 for deletion\njob 2 is already in deletion", False),
        ("The job farm-a-x+1 of user(s) root does not exist", False),
        ("error: commlib error: got select error (Connection refused)", True),
        ('root has deleted job 1\ndenied: host "a" is no submit host', True),
        ("", True),
    ],
)
def test_a_job_that_is_gone_is_no_error(text: str, fails: bool, commands: Commands) -> None:
    commands.prints("qdel", text, "; exit 1")
    with pytest.raises(BatchError) if fails else nullcontext():
        asyncio.run(GridEngine().cancel(["1", "2"]))


# Scripts


def test_a_script_asks_for_what_a_job_needs() -> None:
    kind = WorkerKind(
        name="x",
        models=["a.py"],
        workers=2,
        cpus=3,
        time="1:02:03",
        queue="main.q",
        account="physics",
        options=["-l mem_free=2G"],
    )
    lines = script_of(kind, Path("/home/me too")).splitlines()
    assert [line for line in lines if line.startswith("#$")] == [
        "#$ -S /bin/bash",
        "#$ -N farm-a-x+1",
        "#$ -j y",
        "#$ -r y",
        "#$ -notify",
        '#$ -o "/home/me too/jobs/$JOB_ID.out"',
        '#$ -wd "/home/me too"',
        "#$ -q main.q",
        "#$ -P physics",
        "#$ -l h_rt=1:02:03",
        "#$ -pe smp 6",
        "#$ -l mem_free=2G",
    ]
    assert "export FARM_ENDS_AT=$(($(date +%s) + 3723))" in lines
    assert lines[-1].endswith('--ends-at "$FARM_ENDS_AT" --drain-before 60 -- a.py')


def test_one_slot_needs_no_parallel_environment_and_options_may_name_another() -> None:
    assert "-pe" not in script_of(WorkerKind(name="x", models=["a.py"]))
    kind = WorkerKind(name="x", models=["a.py"], cpus=4, options=["-pe threaded 4"])
    assert [line for line in script_of(kind).splitlines() if "-pe" in line] == ["#$ -pe threaded 4"]
    ranks = WorkerKind(name="x", models=["a.py"], ranks=4, workers=2, cpus=3)
    assert "#$ -pe smp 24\n" in script_of(ranks)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"nodes": 2}, 'options = ["-pe mpi 32"]'),
        ({"gpus": 1}, 'options = ["-l gpu=1"]'),
    ],
)
def test_what_a_site_names_itself_must_be_in_options(
    settings: dict[str, int], complaint: str
) -> None:
    options = ["-pe mpi 32", "-l gpu=1"]
    kind = WorkerKind(name="x", models=["a.py"], **settings)  # type: ignore[arg-type]  # ints
    with pytest.raises(SettingsError) as caught:
        script_of(kind)
    assert complaint in str(caught.value)
    named = WorkerKind(name="x", models=["a.py"], options=options, **settings)  # type: ignore[arg-type]  # ints
    assert "#$ -l gpu=1\n" in script_of(named)


@pytest.mark.parametrize("character", ["'", '"', ",", ":", "$", "\\"])
def test_a_folder_that_qsub_would_misread_is_refused(character: str) -> None:
    with pytest.raises(SettingsError, match="in its name"):
        script_of(WorkerKind(name="x", models=["a.py"]), Path(f"/home/a{character}b"))


def test_shellcheck_finds_nothing() -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("no shellcheck here: apt-get install shellcheck")
    cluster = Path(__file__).parents[3] / "grid_engine" / "dev-cluster"
    done = subprocess.run(
        [program, EACH_HOST, cluster], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    assert done.returncode == 0


def test_a_command_runs_on_each_node_of_a_job(commands: Commands, tmp_path: Path) -> None:
    """With a qrsh that runs it here, in a shell and an environment of its own."""
    (tmp_path / "hosts").write_text("n1 2 main.q@n1 UNDEFINED\nn2 1 main.q@n2 UNDEFINED\n")
    folder = tmp_path / "a folder"
    folder.mkdir()
    run = 'shift 2; host=$1; shift; exec env -i HOST=$host PATH=/usr/bin:/bin sh -c "cd /; $*"'
    commands.does("qrsh", run)
    script = 'echo "$HOST $PWD $FARM_KIND $FARM_JOB $1"; [ $HOST = n1 ] || exit 3'
    done = subprocess.run(
        ["bash", EACH_HOST, "sh", "-c", script, "sh", "a  b'c$d"],
        env={
            "PATH": f"{commands.folder}:/usr/bin:/bin",
            "PE_HOSTFILE": str(tmp_path / "hosts"),
            "FARM_KIND": "x y",
            "FARM_JOB": "7",
            "FARM_JOB_RESTART": "0.1",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert sorted(done.stdout.splitlines()) == [
        f"{n} {folder} x y 7 a  b'c$d" for n in ("n1", "n2")
    ]
    assert done.returncode == 3
    assert all(line.startswith("qrsh -inherit -nostdin n") for line in commands.said())
    kind = WorkerKind(name="x", models=["a.py"], nodes=2, options=["-pe mpi 2"])
    assert GridEngine.launch(kind) == f"bash {EACH_HOST}"
