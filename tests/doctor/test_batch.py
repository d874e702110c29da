"""Checks of the batch system, with commands of the test's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farm.doctor import batch
from farm.doctor.finding import Weight
from farm.errors import Unavailable
from farm.provision.batch.systems import BatchSystem
from farm.provision.batch.systems.slurm import HEADER

SINFO = "debug*|up|3|idle\ndebug*|up|1|down*\ngpu|up|2|drain\nold|inact|4|idle\nslurm_load noise\n"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of programs, the only one on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def program(folder: Path, name: str, body: str = "exit 0") -> None:
    """Write a program of shell words."""
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def slurm(folder: Path, squeue: str = "exit 0", sinfo: str = "") -> None:
    """Write the commands of a SLURM; sinfo: what that prints."""
    for name in ("sbatch", "scancel", "scontrol", "sacct", "srun"):
        program(folder, name)
    program(folder, "squeue", squeue)
    program(folder, "sinfo", f"/bin/cat <<'EOF'\n{sinfo}EOF")


def test_no_batch_system_is_no_fault(commands: Path) -> None:
    (found,) = batch.systems()
    assert (found.weight, found.text) == (Weight.OK, "none on this machine")


def test_a_package_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[BatchSystem, ...]:
        raise Unavailable("the batch system 'odd' of odd cannot be loaded")

    monkeypatch.setattr(batch, "every", broken)
    (found,) = batch.systems()
    assert (found.weight, "of odd" in found.text) == (Weight.WRONG, True)


def test_partitions_are_those_that_sinfo_lists() -> None:
    assert batch.partitions(SINFO) == {"debug": (True, 3), "gpu": (True, 0), "old": (False, 4)}


def test_a_cluster_that_answers_has_partitions(commands: Path) -> None:
    slurm(commands, squeue="echo", sinfo="debug*|up|3|idle\n")
    found = batch.systems()
    assert [f.subject for f in found] == ["batch system", "partitions"]
    assert found[1].weight is Weight.OK
    assert found[1].text == "debug (3 nodes)"


@pytest.mark.parametrize(
    ("sinfo", "weight", "words"),
    [
        (SINFO, Weight.WARNING, "gpu, old is down"),
        ("gpu|up|2|drain\n", Weight.WRONG, "none is up with usable nodes"),
        ("", Weight.WRONG, "sinfo lists none"),
    ],
)
def test_partitions_without_nodes(commands: Path, sinfo: str, weight: Weight, words: str) -> None:
    slurm(commands, sinfo=sinfo)
    found = batch.systems()[-1]
    assert (found.subject, found.weight) == ("partitions", weight)
    assert words in found.text


def test_a_system_that_does_not_answer(commands: Path, tmp_path: Path) -> None:
    slurm(commands, squeue="echo 'slurm_load_jobs error: Unable to contact controller' >&2; exit 1")
    (found,) = batch.systems()
    assert found.weight is Weight.WARNING
    assert "SLURM does not answer: slurm_load_jobs error: Unable to contact" in found.text
    (found,) = batch.systems(cluster_file(tmp_path))
    assert found.weight is Weight.WRONG


def test_a_system_that_hangs(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "ANSWER_S", 0.2)
    slurm(commands, squeue="exec /bin/sleep 60")
    (found,) = batch.systems()
    assert (found.weight, found.text) == (
        Weight.WARNING,
        "SLURM does not answer: no answer in 0.2 s",
    )


GRID_ENGINE = """case "$1" in
    -help) echo 'SGE 8.1.9'; echo 'usage: qstat [options]' ;;
    -xml) echo "<?xml version='1.0'?><job_info><queue_info/></job_info>" ;;
    *) echo "error: Unknown option $1" >&2; exit 1 ;;
esac"""
PBS = """case "$1" in
    --version) echo 'pbs_version = 23.06.06' ;;
    *) echo 'Connection refused' >&2; exit 1 ;;
esac"""


def with_qstat(folder: Path, qstat: str) -> None:
    """Write commands whose names PBS and Grid Engine share. qstat: what that does."""
    for name in ("qsub", "qdel", "qselect", "qacct", "qconf"):
        program(folder, name, "echo no such thing >&2; exit 1")
    program(folder, "qstat", qstat)


def test_the_commands_of_grid_engine_are_not_taken_for_those_of_pbs(commands: Path) -> None:
    with_qstat(commands, GRID_ENGINE)
    (found,) = batch.systems()
    assert (found.weight, found.text) == (Weight.OK, "Grid Engine answers; you have 0 jobs")
    silent = GRID_ENGINE.replace(
        "-xml)", "-xml) echo 'commlib error: no qmaster' >&2; exit 1 ;; x)"
    )
    program(commands, "qstat", silent)
    (found,) = batch.systems()
    assert found.weight is Weight.WARNING
    assert found.text.startswith("Grid Engine does not answer: ")


def test_the_commands_of_pbs_are_not_taken_for_those_of_grid_engine(commands: Path) -> None:
    with_qstat(commands, PBS)
    (found,) = batch.systems()
    assert found.weight is Weight.WARNING
    assert re.match("PBS.* does not answer: ", found.text)


PBS_PRO = """case "$1" in
    --version) echo 'pbs_version = 2022.1.1' >&2 ;;
    *) exit 2 ;;
esac"""
UNIVA = """case "$1" in
    -help) echo 'UGE 8.6.7'; exit 0 ;;
    *) echo "error: Unknown option" >&2; exit 1 ;;
esac"""


@pytest.mark.parametrize(
    ("qstat", "text"),
    [
        (PBS_PRO, "PBS does not answer: "),
        (UNIVA, "Grid Engine does not answer: "),
        ("echo 'Version: 4.2.10'", "qstat is neither that of PBS nor that of Grid Engine"),
        ("exec /bin/sleep 60", "qstat is neither that of PBS nor that of Grid Engine"),
    ],
)
def test_the_owner_of_qstat(
    commands: Path, monkeypatch: pytest.MonkeyPatch, qstat: str, text: str
) -> None:
    monkeypatch.setattr(batch, "PROOF_S", 0.5 if "sleep" in qstat else 60.0)
    with_qstat(commands, qstat)
    (found,) = batch.systems()
    assert found.weight is Weight.WARNING
    assert found.text.startswith(text)
    assert "neither" not in text or "`qstat --version` and `qstat -help`" in found.remedy


def test_only_the_system_of_the_cluster_file_or_of_the_farm_is_asked(
    commands: Path, tmp_path: Path
) -> None:
    slurm(commands, squeue="echo", sinfo="gpu|up|3|idle\n")
    with_qstat(commands, PBS)
    for found in (batch.systems(cluster_file(tmp_path)), batch.systems(used="SLURM")):
        assert [finding.subject for finding in found] == ["batch system", "partitions"]
        assert found[0].text.startswith("SLURM")
    (only,) = batch.systems(used="Grid Engine")
    assert "Grid Engine does not answer" in only.text


def test_a_cluster_file(commands: Path, tmp_path: Path) -> None:
    file = cluster_file(tmp_path)
    (found,) = batch.systems(file)
    assert found.weight is Weight.WRONG
    assert "SLURM's commands are not on the PATH" in found.text
    slurm(commands, sinfo="debug|up|3|idle\n")
    (found,) = batch.plan(file)
    assert found.weight is Weight.WRONG
    assert found.text == "kind 'small' wants partition 'gpu', which SLURM does not have"
    assert found.remedy == "set queue to one of: debug"
    slurm(commands, sinfo="gpu|up|3|idle\n")
    assert batch.plan(file)[0].weight is Weight.OK
    file.write_text("nonsense = [")
    assert batch.plan(file)[0].weight is Weight.WRONG


def cluster_file(folder: Path) -> Path:
    """Return a file for `farm serve --cluster` with one kind on the partition gpu."""
    file = folder / "cluster.toml"
    file.write_text('[[workers]]\nname = "small"\nqueue = "gpu"\nmax_jobs = 2\n')
    return file


def test_only_jobs_that_have_not_ended_count(commands: Path) -> None:
    """squeue lists a job for minutes after its end."""
    states = ("RUNNING", "PENDING", "COMPLETING", "COMPLETED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
    rows = [f"farm|{i}|{state}||name|None|N/A|end" for i, state in enumerate(states, 1)]
    listing = "\n".join([HEADER, *rows])
    slurm(commands, squeue=f"/bin/cat <<'EOF'\n{listing}\nEOF", sinfo="debug*|up|3|idle\n")
    assert batch.systems()[0].text == "SLURM answers; you have 3 jobs"
