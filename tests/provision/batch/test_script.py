"""Job scripts: how sbatch and the shell read them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.script import JobScripts, last_words
from farm.provision.batch.systems import SLURM
from farm.provision.batch.systems.pbs import Pbs
from farm.settings import SettingsError


def script(**values: Any) -> str:
    kind = WorkerKind(**{"name": "small", "models": ["m.py"], **values})
    paths = ("/run dir/farm.json", "/run dir/jobs", "/home/me")
    return JobScripts(SLURM, *map(Path, paths)).of(kind, "farm-1-small")


def sbatch_options(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    return [word for line in lines for word in shlex.split(line.removeprefix("#SBATCH "))]


def srun_line(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("srun ")]
    return shlex.split(line)


def test_a_job_asks_for_what_its_kind_needs() -> None:
    text = script(
        queue="gpu",
        account="a1",
        qos="high",
        mem="8G",
        time="1:00:00",
        cpus=2,
        workers=4,
        gpus=2,
        options=["--exclusive"],
    )
    options = sbatch_options(text)
    assert {
        "--job-name=farm-1-small",
        "--output=/run dir/jobs/%j.out",
        "--partition=gpu",
        "--account=a1",
        "--qos=high",
        "--mem=8G",
        "--time=1:00:00",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=16",
        "--gres=gpu:2",
        "--signal=TERM@60",
        "--requeue",
        "--exclusive",
    } <= set(options)
    assert srun_line(text) == [
        *("srun", "--cpus-per-task=16", sys.executable, "-P", "-m", "farm", "worker"),
        *("--to", "/run dir/farm.json", "-n", "4", "--cpus", "2"),
        *("--gpus", "auto", "--", "m.py"),
    ]


def test_what_is_not_set_is_left_to_slurm() -> None:
    options = sbatch_options(script())
    for name in ("partition", "account", "qos", "mem", "time", "gres", "constraint"):
        assert not any(option.startswith(f"--{name}=") for option in options)


def test_mpi_groups_get_all_their_ranks_from_one_srun() -> None:
    text = script(ranks=8, workers=2, cpus=1, nodes=4, srun=["--mpi=pmi2"], call_limit_s=600)
    assert {"--ntasks=16", "--nodes=4", "--cpus-per-task=1"} <= set(sbatch_options(text))
    line = srun_line(text)
    assert line[1:4] == ["--cpus-per-task=1", "--kill-on-bad-exit=1", "--mpi=pmi2"]
    assert line[line.index("--mpi") + 1] == "8"
    assert line[line.index("--time-limit") + 1] == "600"


def test_every_value_reaches_the_program_as_it_was_written(tmp_path: Path) -> None:
    """Run the script, with a program in place of srun that prints its arguments."""
    strange = "a b'c\"$HOME`x`@farm@"
    text = script(models=[strange, "-x"], setup=["export SEEN='x y'"])
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$FARM_KIND" "$SEEN" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    said = subprocess.run(
        ["bash"],
        input=text,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert said[:2] == ["small", "x y"]
    assert said[-3:] == ["--", strange, "-x"]


@pytest.mark.parametrize("run", ["@launch@", "srun @srun@"])
@pytest.mark.parametrize("top", ["@directives@", "@sbatch@"])
def test_a_site_has_a_template_of_its_own(top: str, run: str, tmp_path: Path) -> None:
    """SLURM's own words may be used as well."""
    template = tmp_path / "site.in"
    template.write_text(f"#!/bin/sh\n{top}\nmodule load x\n{run} @farm@\n")
    text = script(template=str(template))
    assert "#SBATCH --job-name=farm-1-small\n" in text
    assert f"module load x\nsrun --cpus-per-task=1 {sys.executable} " in text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("@directives@\n@farm@ @whatever@\n", "has @whatever@; expected: @directives@, @preamble@"),
        ("#!/bin/sh\n# @farm@\n@sbatch@\n", "lacks @farm@"),
        ("@farm@\n", "lacks @directives@"),
    ],
)
def test_a_template_that_cannot_work_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    template = tmp_path / "site.in"
    template.write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        script(template=str(template))


def test_a_missing_template_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        script(template=str(tmp_path / "none.in"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            b"loading\nfarm: error: no file beam.py\nsrun: error: cpu1: task 0\n",
            " ends: farm: error: no file beam.py",
        ),
        (
            b"loading\n\nmodule: command not found\nkilled\n",
            " ends: module: command not found / killed",
        ),
        (b"", " is empty"),
        (None, " cannot be read"),
    ],
    ids=["farm's own error", "last lines", "empty", "none"],
)
def test_the_last_words_of_a_job(text: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    if text is not None:
        path.write_bytes(text)
    assert last_words(path) == f"; {path}{words}"


def test_only_the_end_of_a_long_output_is_read(tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    path.write_bytes(b"farm: error: an old one\n" + b"\xff" * 9000 + b"\nlast\n")
    assert last_words(path).endswith(" / last")
    assert "an old one" not in last_words(path)


def test_a_job_that_starts_again_has_its_id_and_another_restart(tmp_path: Path) -> None:
    date = tmp_path / "date"
    date.write_text("#!/bin/sh\nread -r now <now && echo $((now + 1)) >now && echo $now\n")
    date.chmod(0o755)
    (tmp_path / "now").write_text("100\n")
    lines = [
        *Pbs.preamble(WorkerKind(name="small", models=["m.py"])),
        "echo $FARM_JOB $FARM_JOB_RESTART",
    ]

    def said() -> str:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PBS_JOBID": "7.server"}
        command = ["bash", "-c", "\n".join(lines)]
        return subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)

    assert [said(), said()] == ["7.server 100\n", "7.server 101\n"]
