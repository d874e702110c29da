"""The lines of docs/slurm.md and docs/mpi.md about the launcher, from a wheel outside the checkout.

Jobs have nothing of the shell that submits them (SBATCH_EXPORT=NONE): no active environment.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.launched import ENDED, workers_of
from tests.support.shown_blocks import text_of
from tests.support.time_limits import scaled
from tests.support.wheel import distributions_of_farm, fresh_environment

ROOT = Path(__file__).parents[2]
PAGE = text_of("docs/slurm.md")
MPI_PAGE = (ROOT / "docs" / "mpi.md").read_text()


def lines_of(text: str) -> list[tuple[str, str]]:
    """Return the lines of a page's shell blocks that are about the launcher, and their comments."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", "")
    lines = [re.fullmatch(r"(.*?)(?:\s+# (.*))?", line) for line in blocks.splitlines()]
    found = [(match[1], match[2] or "") for match in lines if match]
    return [line for line in found if re.match(r"sbatch|farm launcher", line[0])]


LINES = lines_of(PAGE)
MPI_LINES = lines_of(MPI_PAGE)
TABLE = re.findall(
    r"^\| `(-[^`]*)` \| `([^`]*)` \| (\d+)(?: groups?)? \|", PAGE, re.MULTILINE | re.ASCII
)


def python_after(mark: str, text: str) -> str:
    found = re.search(mark + r".*?```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


SURROGATE = """
import os, farm

@farm.model(inputs={"x": 1}, outputs={"device": 1})
def surrogate(x):
    return float(os.environ["CUDA_VISIBLE_DEVICES"])
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `farm` of a fresh environment with farm's wheel."""
    folder = tmp_path_factory.mktemp("installed")
    wheel, _ = distributions_of_farm(folder / "dist")
    return fresh_environment(wheel, folder / "environment") / "farm"


class Shell:
    """A shell on the login node, with the environment active."""

    def __init__(self, cluster: Cluster, folder: Path, program: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        path = f"{program.parent}:{os.environ['PATH']}"
        cache = folder / "cache"
        self.variables = [f"PATH={path}", f"XDG_CACHE_HOME={cache}", "SBATCH_EXPORT=NONE"]

    def run(self, line: str) -> str:
        """Run a line of a page to its end; return its output."""
        command = ["env", *self.variables, "bash", "-euc", line]
        return self.cluster.run(command, cwd=self.folder, timeout_s=scaled(60))

    def submitted(self, line: str) -> str:
        """Run a line that submits a job; return the job's id."""
        said = re.fullmatch(r"Submitted batch job (\d+)\n", self.run(line))
        assert said is not None
        return said[1]

    def output(self, job: str) -> str:
        """Return the output of a job so far."""
        path = self.folder / f"farm-{job}.out"
        return path.read_text() if path.exists() else ""

    def exit_code(self, job: str) -> str:
        """Wait for a job's end; return its exit code as SLURM writes it."""
        try:
            return self.cluster.wait_for_job(job, *ENDED, limit_s=scaled(120))["ExitCode"]
        except AssertionError as error:
            error.add_note(self.output(job))
            raise


@pytest.fixture
def shell(cluster: Cluster, program: Path, tmp_path: Path) -> Shell:
    (tmp_path / "beam.py").write_text(python_after("`beam.py`", (ROOT / "README.md").read_text()))
    (tmp_path / "surrogate.py").write_text(SURROGATE)
    norm = python_after("## Write one", MPI_PAGE)
    (tmp_path / "norm.py").write_text(norm)
    (tmp_path / "solver.py").write_text(norm)
    shell = Shell(cluster, tmp_path, program)
    shell.run("farm launcher > farm.sh")
    return shell


def test_the_pages_have_the_lines_and_the_table() -> None:
    assert {line.split()[0] for line, _ in LINES} == {"sbatch", "farm"}
    assert len(LINES) >= 8
    assert len(MPI_LINES) >= 3
    assert len(TABLE) == 13


@pytest.mark.parametrize("line", [line for line, _ in [*LINES, *MPI_LINES] if " -- " in line])
def test_a_job_with_a_command_does_it(shell: Shell, line: str) -> None:
    job = shell.submitted(line)
    assert shell.exit_code(job) == "0:0", shell.output(job)
    called, swept = "farm call" in line, re.search(r"-o (\S+)", line)
    assert called or swept
    assert not called or re.search(r"= \[0?\.\d+", shell.output(job)), shell.output(job)
    assert not swept or (shell.folder / swept[1]).stat().st_size


@pytest.fixture
def front_door(shell: Shell) -> Iterator[None]:
    """The farm of the comment: `farm serve --workers 0 --host 0.0.0.0`, at a free port."""
    serve = ["farm", "serve", "--workers", "0", "--host", "0.0.0.0", "--port", "0"]
    command = ["env", *shell.variables, *serve]
    with shell.cluster.start(command, cwd=shell.folder) as farm:
        try:
            wait_for((shell.folder / "farm-run" / "farm.json").exists, "the farm")
            yield
        finally:
            farm.terminate()
            farm.communicate()


@pytest.mark.usefixtures("front_door")
@pytest.mark.parametrize(
    "line", [line for line, _ in [*LINES, *MPI_LINES] if "--to farm-run" in line]
)
def test_a_job_of_workers_joins_a_running_farm(shell: Shell, line: str) -> None:
    job = shell.submitted(line)
    count = 8 if "beam.py" in line else 2
    workers_of(shell.cluster, shell.folder / "farm-run", count, lambda: shell.output(job))


@pytest.mark.parametrize(
    ("line", "comment"), [(line, comment) for line, comment in LINES if "--check" in line]
)
def test_check_prints_what_the_page_says(shell: Shell, line: str, comment: str) -> None:
    assert shell.run(line) == comment + "\n"


def test_the_table_of_the_page_is_right(shell: Shell) -> None:
    for sbatch, words, count in TABLE:
        text = shell.run(f"farm launcher --check sbatch {sbatch} farm.sh {words}")
        found = re.search(r": (\d+) (worker|group)s? (.*) (\d+) nodes?\n", text)
        assert found is not None, text
        total = int(found[1])
        if "on each of" in found[3] or "for each GPU" in found[3]:
            total *= int(found[4])
        gpus = re.search(r"--gpus-per-node=(\d+)", sbatch)
        assert total * (int(gpus[1]) if gpus else 1) == int(count), (sbatch, words, text)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("-N 9 farm.sh beam.py", "Requested node configuration is not available"),
        ("-n 8 farm.sh --mpi 16 solver.py", "1 group of 16 ranks need 16 tasks"),
        (
            "-N 2 -n 2 farm.sh --cpus 2 beam.py",
            "a worker needs 2 CPUs on a node, and the job has 1",
        ),
        ("-N1 -c2 : -N1 farm.sh --cpus 2 beam.py", "the job of component 1 has 1"),
        ("-N1 : -N1 farm.sh beam.py : beam.py", "between kinds of workers use +"),
        ("-N1 beam.py", "with a file that `farm launcher` has written"),
        ("-A closed farm.sh beam.py", "account"),
    ],
)
def test_check_refuses_what_can_never_run(shell: Shell, line: str, complaint: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        shell.run(f"farm launcher --check sbatch {line}")
    assert caught.value.returncode == 2
    assert complaint in caught.value.stderr
    assert caught.value.stderr.count("\n") == 1
    assert shell.cluster.run(["squeue", "-h"]) == ""


def test_lines_of_the_script_count(shell: Shell) -> None:
    """A user adds #SBATCH lines to the script: --check knows them, for the first component."""
    script = shell.folder / "farm.sh"
    script.write_text(script.read_text().replace("#SBATCH", "#SBATCH -n 4 -c 2\n#SBATCH", 1))
    text = shell.run("farm launcher --check sbatch -N2 farm.sh beam.py")
    assert text == "beam.py: 4 workers with 2 CPUs each on 2 nodes\n"
    text = shell.run("farm launcher --check sbatch -N2 : -N1 farm.sh beam.py")
    assert text.endswith("beam.py: 1 worker with 1 CPU each on 1 node\n")
