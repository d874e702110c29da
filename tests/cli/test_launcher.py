"""`farm launcher`, and the parts of its script that need no SLURM: words and arithmetic."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from farm.cli import launcher, run
from farm.cli.launcher import LAUNCHER, script
from farm.provision.batch.allocation import STEP_SIZES
from tests.support.dispatcher_farm import run_farm
from tests.support.wheel import distributions_of_farm, fresh_environment

ROOT = Path(__file__).parents[2]
BESIDE = Path(sys.executable).with_name("farm")

BASH_BUILTINS_AND = "env sed tr paste realpath dirname hostname"
"""Programs that the launcher calls before the first one of SLURM."""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["launcher", *words]) == 0
    return capsys.readouterr().out


def test_it_prints_the_script_for_this_environment(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    assert f"\nprogram={BESIDE}\n" in text
    assert text.replace(str(BESIDE), "''", 1) == LAUNCHER.read_text()
    assert text.startswith("#!/usr/bin/env bash\n#SBATCH ")


def test_the_script_in_the_repository_is_that_of_the_package() -> None:
    ours = ROOT / "launchers" / "farm.sh"
    assert ours.read_bytes() == LAUNCHER.read_bytes()
    assert not ours.is_symlink() or not ours.readlink().is_absolute()


def test_the_script_and_the_package_agree_on_what_a_step_requests() -> None:
    assert f"\nsizes='{STEP_SIZES.pattern}'\n" in LAUNCHER.read_text()


@pytest.mark.slow
def test_a_wheel_and_a_source_distribution_have_the_script(tmp_path: Path) -> None:
    """`farm launcher` of a fresh environment outside the checkout prints its own script."""
    wheel, source = distributions_of_farm(tmp_path / "dist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    [root] = (tmp_path / "source").iterdir()
    for copy in ("farm/cli/farm.sh", "launchers/farm.sh"):
        assert (root / copy).read_bytes() == LAUNCHER.read_bytes()
    program = fresh_environment(wheel, tmp_path / "environment") / "farm"
    done = subprocess.run([program, "launcher"], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode() == script(program)
    where = [str(program.with_name("python")), "-c", "import farm; print(farm.__file__)"]
    done = subprocess.run(where, cwd=tmp_path, capture_output=True, check=True)
    assert Path(done.stdout.decode()).is_relative_to(tmp_path)


def test_path_is_a_file_with_the_same_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = Path(printed(capsys, "--path").removesuffix("\n"))
    assert first.read_text() == printed(capsys)
    first.write_text("changed by hand")
    assert Path(printed(capsys, "--path").removesuffix("\n")) == first
    assert first.read_text() == printed(capsys)
    assert list((tmp_path / "cache" / "farm").iterdir()) == [first]


def test_environments_have_files_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = tmp_path / "other" / "farm"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    first = printed(capsys, "--path")
    monkeypatch.setattr(sys, "argv", [str(other)])
    second = printed(capsys, "--path")
    assert first != second
    assert f"\nprogram={other}\n" in Path(second.removesuffix("\n")).read_text()


def test_a_cache_that_cannot_be_written_is_one_line_with_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert run(["launcher", "--path"]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.count("\n") == 1
    assert f"cannot write into {tmp_path}/file/farm" in errors
    assert "farm launcher > farm.sh" in errors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with models and programs: the launcher sees no other."""
    for name in ("beam.py", "gpu.py", "solver.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "bin").mkdir()
    for name in BASH_BUILTINS_AND.split():
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    return tmp_path


JOB = {"SLURM_JOB_ID": "0", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}
TASKS = {**JOB, "SLURM_NTASKS": "8"}
PAIRS = {**TASKS, "SLURM_CPUS_PER_TASK": "2", "SLURM_NTASKS": "4"}
UNEVEN = {**JOB, "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_CPUS_PER_NODE": "4(x2),2"}
TWO = {
    "SLURM_JOB_ID": "0",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_CPUS_PER_NODE": "2",
    "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "2",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "3",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "4(x3)",
    "SLURM_CPUS_PER_TASK_HET_GROUP_1": "2",
    "SLURM_NTASKS_HET_GROUP_0": "2",
}


def checked(folder: Path, words: str, job: dict[str, str]) -> tuple[int, str, str]:
    """Run the launcher up to its first call of SLURM; return its status, output and errors."""
    launcher = folder / "launcher.sh"
    launcher.write_text(script(BESIDE))
    done = subprocess.run(
        [shutil.which("bash") or "", str(launcher), "--check", *words.split()],
        cwd=folder,
        env={"PATH": str(folder / "bin"), **job},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "job", "plan"),
    [
        ("beam.py", JOB, ["beam.py: 8 workers with 1 CPU each on 2 nodes"]),
        ("beam.py:Beam m=gpu.py", JOB, ["beam.py:Beam m=gpu.py: 8 workers with 1 CPU each on 2"]),
        ("--cpus 2 beam.py", JOB, ["beam.py: 4 workers with 2 CPUs each on 2 nodes"]),
        ("--cpus=2 beam.py", JOB, ["beam.py: 4 workers with 2 CPUs each on 2 nodes"]),
        ("--cpus 3 beam.py", JOB, ["beam.py: 2 workers with 3 CPUs each on 2 nodes"]),
        ("beam.py", PAIRS, ["beam.py: 4 workers with 2 CPUs each on 2 nodes"]),
        ("beam.py", UNEVEN, ["beam.py: 10 workers with 1 CPU each on 3 nodes"]),
        ("--workers 16 beam.py", JOB, ["beam.py: 16 workers on each of 2 nodes"]),
        ("--workers 2 --cpus 2 beam.py", JOB, ["beam.py: 2 workers on each of 2 nodes"]),
        ("--gpus auto gpu.py", JOB, ["gpu.py: 1 worker for each GPU (--gpus auto) on 2 nodes"]),
        ("--mpi 4 solver.py", TASKS, ["solver.py: 2 groups of 4 ranks with 1 CPU each on 2 nodes"]),
        ("--mpi 4 solver.py", JOB, ["solver.py: 2 groups of 4 ranks with 1 CPU each on 2 nodes"]),
        ("--mpi 3 solver.py", TASKS, ["solver.py: 2 groups of 3 ranks with 1 CPU"]),
        ("--mpi 2 solver.py", PAIRS, ["solver.py: 2 groups of 2 ranks with 2 CPUs"]),
        ("--mpi 2 --cpus 2 solver.py", TASKS, ["solver.py: 2 groups of 2 ranks with 2 CPUs"]),
        ("--mpi 2 --workers 1 solver.py", TASKS, ["solver.py: 1 group of 2 ranks with 1 CPU"]),
        (
            "--workers 2 beam.py + --gpus auto gpu.py + --mpi 2 --workers 2 solver.py",
            TASKS,
            ["beam.py: 2 workers on each of 2", "gpu.py: 1 worker", "solver.py: 2 groups of 2"],
        ),
        ("beam.py", TWO, ["beam.py: 2 workers with 1 CPU", "beam.py: 6 workers with 2 CPUs each"]),
        ("beam.py + gpu.py", TWO, ["beam.py: 2 workers with 1 CPU", "gpu.py: 6 workers with 2"]),
        ("--mpi 2 solver.py + gpu.py", TWO, ["solver.py: 1 group of 2 ranks", "gpu.py: 6 work"]),
        ("--dask node1:8786 beam.py", TASKS, []),
    ],
)
def test_the_launcher_says_which_workers_the_job_gets(
    folder: Path, words: str, job: dict[str, str], plan: list[str]
) -> None:
    status, out, errors = checked(folder, words, job)
    assert status == 0, errors
    lines = out.splitlines()
    assert len(lines) == len(plan)
    assert all(line.startswith(begin) for line, begin in zip(lines, plan, strict=True)), lines


@pytest.mark.parametrize(
    ("words", "job", "complaints"),
    [
        ("", JOB, ["which MODEL? See farm.sh --help"]),
        (
            "beam.py",
            {},
            ["this is no SLURM job; submit it with sbatch, or use: farm serve beam.py"],
        ),
        ("--speed beam.py", JOB, ["no option --speed", "Options of sbatch stand before"]),
        ("beam.py --cpus", JOB, ["--cpus needs a value"]),
        ("--cpus many beam.py", JOB, ["--cpus is many; expected a number"]),
        ("--time-limit soon beam.py", JOB, ["--time-limit is soon; expected seconds"]),
        ("missing.py", JOB, [" no file missing.py in "]),
        ("m=missing.onnx", JOB, [" no file missing.onnx in "]),
        ("beam.py --", JOB, ["which COMMAND?"]),
        ("beam.py -- nosuch", JOB, ["no program nosuch on "]),
        ("beam.py +", JOB, ["which MODEL?"]),
        ("+ beam.py", JOB, ["which MODEL? There is none before +"]),
        ("--to run beam.py -- env", JOB, ["--to only adds workers"]),
        ("--to run --dir x beam.py", JOB, ["--to is for a farm that runs elsewhere"]),
        ("--dask a:1 --cpus 2 beam.py", JOB, ["with --dask there are none"]),
        ("--dask a:1 beam.py + gpu.py", JOB, ["--dask runs all models"]),
        ("--mpi 2 --gpus auto solver.py", JOB, ["SLURM assigns those of MPI ranks"]),
        ("--cpus 8 beam.py", JOB, ["needs 8 CPUs on a node, and the job has 4", "-N 2", "-c 8"]),
        ("--workers 3 --cpus 2 beam.py", JOB, ["need 6 CPUs on a node, and the job has 4", "=3"]),
        ("--mpi 16 solver.py", TASKS, ["1 group of 16 ranks need 16 tasks", "has 8", "-n 16 -c 1"]),
        ("--mpi 4 --workers 3 solver.py", TASKS, ["3 groups of 4 ranks need 12 tasks", "-n 12"]),
        ("--mpi 4 --cpus 4 solver.py", TASKS, ["need 4 tasks with 4 CPUs each", "has 2", "-c 4"]),
        ("beam.py + --gpus auto gpu.py", JOB, ["each needs its number", "for beam.py"]),
        (
            "--workers 4 --cpus 1 beam.py + --workers 2 --cpus 1 gpu.py",
            JOB,
            ["need 12 CPUs together, and the job has 8"],
        ),
        (
            "beam.py + gpu.py + solver.py",
            TWO,
            ["2 components", "3 kinds", "one component for each"],
        ),
        ("--cpus 4 beam.py", TWO, ["needs 4 CPUs", "the job of component 0 has 2"]),
    ],
)
def test_what_can_never_run_ends_with_expected_actual_and_remedy(
    folder: Path, words: str, job: dict[str, str], complaints: list[str]
) -> None:
    status, _, errors = checked(folder, words, job)
    assert status == 2
    assert errors.startswith("farm.sh: ")
    assert errors.count("\n") == 1
    assert all(complaint in errors for complaint in complaints), errors


def test_an_environment_that_the_node_does_not_see_is_an_error(folder: Path) -> None:
    program = {"FARM": "/nowhere/bin/farm"}
    status, _, errors = checked(folder, "beam.py", {**JOB, **program})
    assert status == 2
    assert "does not see /nowhere/bin/farm: put the environment into a folder that all" in errors
    status, _, errors = checked(folder, "beam.py", {**JOB, "FARM": "farm"})
    assert status == 2
    assert "no farm on the PATH: activate farm's environment before sbatch" in errors


def test_help_explains_every_option(folder: Path) -> None:
    status, out, _ = checked(folder, "--help", {})
    assert status == 0
    for option in ("cpus", "workers", "gpus", "mpi", "time-limit", "dir", "to", "dask"):
        assert f"\n  --{option} " in out
    assert "FARM=" in out


@pytest.mark.slow
def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("no shellcheck here: apt-get install shellcheck")
    done = subprocess.run(
        [program, str(LAUNCHER)], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stdout


# `--check` with an sbatch that answers as SLURM's does; with a real one: tests/slurm


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
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def answer(slurm: Path, text: str, status: int = 0) -> None:
    (slurm / "answer").write_text(text + "\n")
    (slurm / "status").write_text(str(status))


def planned(slurm: Path, line: str) -> tuple[int, str, str]:
    return run_farm("launcher", "--check", *line.split(), cwd=slurm)


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
def test_it_prints_what_the_job_would_get(slurm: Path, options: str, words: str, plan: str) -> None:
    status, out, errors = planned(slurm, f"sbatch {options} farm.sh {words} -- env --version")
    assert (status, errors) == (0, "")
    assert out.startswith(f"beam.py: {plan}")
    assert (slurm / "asked").read_text() == f"--test-only {options} farm.sh \n"


def test_older_slurm_words_the_nodes_differently(slurm: Path) -> None:
    answer(slurm, ANSWER.format(3, "n1,n2"))
    status, out, _ = planned(slurm, "sbatch -N2 farm.sh beam.py")
    assert (status, out) == (0, "beam.py: 3 workers with 1 CPU each on 2 nodes\n")


def test_components_are_asked_one_by_one(slurm: Path) -> None:
    """The #SBATCH lines of the script are for the first one."""
    lines = (slurm / "farm.sh").read_text()
    (slurm / "farm.sh").write_text(lines.replace("#SBATCH", "#SBATCH -c 4 # wide\n#SBATCH", 1))
    status, out, _ = planned(slurm, "sbatch -N2 : -p gpu farm.sh beam.py + beam.py")
    assert status == 0
    assert out == (
        "beam.py: 2 workers with 4 CPUs each on 2 nodes\n"
        "beam.py: 8 workers with 1 CPU each on 2 nodes\n"
    )
    asked = (slurm / "asked").read_text().splitlines()
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
def test_a_mistake_is_one_line_and_status_2(slurm: Path, line: str, complaint: str) -> None:
    status, out, errors = planned(slurm, line)
    assert (status, out) == (2, "")
    assert complaint in errors
    assert errors.count("\n") == 1


def test_slurms_refusal_or_an_answer_without_a_size_is_the_error(slurm: Path) -> None:
    for text, status, complaint in (
        ("allocation failure: Invalid account", 1, "-A x farm.sh: allocation failure: Invalid acc"),
        ("Welcome!", 0, "answers 'Welcome!'; expected the processors and nodes"),
    ):
        answer(slurm, text, status)
        code, _, errors = planned(slurm, "sbatch -A x farm.sh beam.py")
        assert (code, complaint in errors) == (2, True)


def test_a_machine_without_slurm_is_an_error(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "bin" / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(slurm / "bin"))
    status, _, errors = planned(slurm, "sbatch farm.sh beam.py")
    assert status == 2
    assert "no sbatch here; --check asks SLURM" in errors


def test_a_slurm_that_does_not_answer_is_an_error(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "bin" / "sbatch").write_text("#!/bin/bash\nexec sleep 60\n")
    monkeypatch.setattr(launcher, "ASK_TIMEOUT_S", 0.2)
    monkeypatch.chdir(slurm)
    assert run(["launcher", "--check", "sbatch", "farm.sh", "beam.py"]) == 2
    assert "sbatch has not answered in 0.2 s" in capsys.readouterr().err
