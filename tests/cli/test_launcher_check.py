"""`farm launcher --check` with an sbatch that answers as SLURM's does.

With a real one: tests/slurm/test_launcher_installed.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from farm.cli import launcher, run
from farm.cli.launcher import script
from tests.support.dispatcher_farm import run_farm

ANSWER = "sbatch: Job 7 to start at 2026-11-24T12:29:04 using {} processors on {} in partition cpu"

SBATCH = """#!/bin/bash
printf '%s ' "$@" >>asked; echo >>asked
cat answer >&2
exit $(cat status)
"""
SCONTROL = """#!/bin/bash
case $3 in n1) echo n1 ;; 'n[1-2]' | n1,n2) printf 'n1\\nn2\\n' ;; *) exit 1 ;; esac
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a launcher, a model, and SLURM's programs on the PATH."""
    (tmp_path / "bin").mkdir()
    for name, text in {"sbatch": SBATCH, "scontrol": SCONTROL}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "farm.sh").write_text(script(Path(sys.executable).with_name("farm")))
    (tmp_path / "beam.py").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    answer(tmp_path, ANSWER.format(8, "nodes n[1-2]"))
    return tmp_path


def answer(folder: Path, text: str, status: int = 0) -> None:
    (folder / "answer").write_text(text + "\n")
    (folder / "status").write_text(str(status))


def checked(folder: Path, line: str) -> tuple[int, str, str]:
    return run_farm("launcher", "--check", *line.split(), cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words", "plan"),
    [
        ("-N2", "beam.py", "8 workers with 1 CPU each on 2 nodes"),
        ("-c 2", "beam.py", "4 workers with 2 CPUs each"),
        ("-c2", "beam.py", "4 workers with 2 CPUs each"),
        ("--cpus-per-task=2", "beam.py", "4 workers with 2 CPUs each"),
        ("--cpus-per-task 2", "beam.py", "4 workers with 2 CPUs each"),
        ("-n 6", "--mpi 2 beam.py", "3 groups of 2 ranks with 1 CPU each"),
        ("-n6", "--mpi 2 beam.py", "3 groups of 2 ranks with 1 CPU each"),
        ("-n 8 --ntasks=6", "--mpi 2 beam.py", "3 groups of 2 ranks with 1 CPU each"),
        ("--ntasks-per-node=2 -c 2", "--mpi 2 beam.py", "2 groups of 2 ranks with 2 CPUs each"),
        ("-J n6", "--mpi 2 beam.py", "4 groups of 2 ranks with 1 CPU each"),
    ],
)
def test_it_prints_what_the_job_would_get(
    folder: Path, options: str, words: str, plan: str
) -> None:
    status, out, errors = checked(folder, f"sbatch {options} farm.sh {words} -- env --version")
    assert (status, errors) == (0, "")
    assert out.startswith(f"beam.py: {plan}")
    assert (folder / "asked").read_text() == f"--test-only {options} farm.sh \n"


def test_older_slurm_words_the_nodes_differently(folder: Path) -> None:
    answer(folder, ANSWER.format(3, "n1,n2"))
    status, out, _ = checked(folder, "sbatch -N2 farm.sh beam.py")
    assert (status, out) == (0, "beam.py: 3 workers with 1 CPU each on 2 nodes\n")


def test_components_are_asked_one_by_one(folder: Path) -> None:
    """The #SBATCH lines of the script are for the first one."""
    lines = (folder / "farm.sh").read_text()
    (folder / "farm.sh").write_text(lines.replace("#SBATCH", "#SBATCH -c 4 # wide\n#SBATCH", 1))
    status, out, _ = checked(folder, "sbatch -N2 : -p gpu farm.sh beam.py + beam.py")
    assert status == 0
    assert out == (
        "beam.py: 2 workers with 4 CPUs each on 2 nodes\n"
        "beam.py: 8 workers with 1 CPU each on 2 nodes\n"
    )
    asked = (folder / "asked").read_text().splitlines()
    assert asked == ["--test-only -N2 farm.sh ", "--test-only -p gpu --wrap true "]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "expects the whole line"),
        ("srun farm.sh beam.py", "got: srun farm.sh beam.py"),
        ("sbatch -N2 beam.py", "with a file that `farm launcher` has written"),
        ("sbatch farm.sh beam.py : beam.py", "between kinds of workers use +"),
        ("sbatch farm.sh --cpus 5 beam.py", "a worker needs 5 CPUs on a node, and the job has 4"),
        ("sbatch farm.sh nosuch.py", "there is no file nosuch.py"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(folder: Path, line: str, complaint: str) -> None:
    status, out, errors = checked(folder, line)
    assert (status, out) == (2, "")
    assert complaint in errors
    assert errors.count("\n") == 1


def test_slurms_refusal_is_the_error(folder: Path) -> None:
    answer(folder, "allocation failure: Invalid account", status=1)
    status, _, errors = checked(folder, "sbatch -A x farm.sh beam.py")
    assert status == 2
    assert "sbatch --test-only -A x farm.sh: allocation failure: Invalid account" in errors


def test_an_answer_without_a_size_is_an_error(folder: Path) -> None:
    answer(folder, "Welcome to the cluster!")
    status, _, errors = checked(folder, "sbatch farm.sh beam.py")
    assert status == 2
    assert "answers 'Welcome to the cluster!'; expected the processors and nodes" in errors


def test_a_machine_without_slurm_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bin" / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(folder / "bin"))
    status, _, errors = checked(folder, "sbatch farm.sh beam.py")
    assert status == 2
    assert "no sbatch here; --check asks SLURM" in errors


def test_a_slurm_that_does_not_answer_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bin" / "sbatch").write_text("#!/bin/bash\nexec sleep 60\n")
    monkeypatch.setattr(launcher, "ASK_TIMEOUT_S", 0.2)
    monkeypatch.chdir(folder)
    assert run(["launcher", "--check", "sbatch", "farm.sh", "beam.py"]) == 2
    assert "sbatch has not answered in 0.2 s" in capsys.readouterr().err
