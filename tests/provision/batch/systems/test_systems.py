"""The batch systems: each is whole, and those of other packages are found."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.errors import Unavailable
from farm.machine.private import user_name
from farm.provision.batch.allocation import job_id
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.plan import KEYS, read_plan
from farm.provision.batch.script import DEFAULT_TEMPLATE, PLACEHOLDER, JobScripts
from farm.provision.batch.system import SubmissionRefused
from farm.provision.batch.systems import (
    BUILT_IN,
    PBS,
    BatchSystem,
    every,
    installed,
    named,
    usable,
)
from farm.settings import SettingsError
from farm.sweep.file.provenance import job_of, restarted_job
from tests.provision.batch.systems.conftest import Commands
from tests.support.batch_jobs import JOBS
from tests.support.dispatcher_farm import FARM, environment
from tests.support.wheel import installed as installed_wheel
from tests.support.wheel import wheel_of

DOCS = Path(__file__).parents[4] / "docs"
EACH = pytest.mark.parametrize("system", BUILT_IN, ids=lambda system: system.name)


def test_the_documents_list_each_of_them() -> None:
    table = re.findall(r"^\| `([a-z-]+)` \| ", (DOCS / "clusters.md").read_text(), re.M)
    assert table[1:] == [system.name for system in BUILT_IN], "below the head of the table"


@EACH
def test_its_words_are_farms_and_its_name_is_its_own(system: BatchSystem) -> None:
    assert system.load().system is system
    assert [other for other in BUILT_IN if system.title == other.title] == [system]
    assert named(system.name) is system
    words = system.words
    assert set(words.keys.values()) | words.lacks <= set(KEYS)
    assert not words.lacks & set(words.keys.values())
    assert set(words.template.values()) <= set(PLACEHOLDER.findall(DEFAULT_TEMPLATE.read_text()))


@EACH
def test_the_script_identifies_its_job(
    system: BatchSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM sets the variables of its own that farm reads; the scripts of others say FARM_JOB."""
    kind = WorkerKind(name="small", models=["m.py"], time="10", cpus=2)
    monkeypatch.chdir(tmp_path)
    scripts = JobScripts(system, Path("/run dir/farm.json"), Path("/run dir/jobs"))
    text = scripts.of(kind, "farm-1-small+ab")
    assert "farm-1-small+ab" in text
    assert str(tmp_path) in text, "jobs work in this process's folder"
    assert not PLACEHOLDER.search(re.sub("^# .*", "", text, flags=re.MULTILINE))
    assert system.title == "SLURM" or "FARM_JOB=" in text
    assert system.warns or '--ends-at "$FARM_ENDS_AT" --drain-before 60' in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@EACH
def test_a_template_may_have_the_own_words_of_its_system_alone(
    system: BatchSystem, tmp_path: Path
) -> None:
    template = tmp_path / "site.in"
    template.write_text("@directives@\n@preamble@\nsrun @srun@ @farm@\n")
    kind = WorkerKind(name="small", models=["m.py"], template=str(template))
    folder = Path("/run")

    def text() -> str:
        return JobScripts(system, folder, folder).of(kind, "a")

    if "srun" in system.words.template:
        assert "\nsrun --cpus-per-task=1 " in text()
    else:
        with pytest.raises(SettingsError, match=r"has @srun@; expected: (?!.*srun)"):
            text()


@EACH
def test_without_its_commands_it_says_what_is_missing(
    system: BatchSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = f"{system.title}'s commands are not on the PATH of this machine: "
    with pytest.raises(Unavailable, match=missing + ", ".join(system.commands)):
        system.load()()


@EACH
def test_a_command_that_cannot_be_run_has_made_no_job(
    system: BatchSystem, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = system.load()()
    monkeypatch.setenv("PATH", str(commands.folder.parent))
    with pytest.raises(SubmissionRefused, match=f"{system.commands[0]} cannot be started"):
        asyncio.run(adapter.submit("#!/bin/sh\n"))


CANCELLED = {
    "slurm": [
        *("scancel --quiet 1 2", "scancel --signal=TERM 3"),
        f"scancel --quiet --user={os.getuid()} --name=farm-ab-x+1",
    ],
    "grid-engine": ["qdel 1 2", f"qdel -u {user_name()} farm-ab-x+1"],
}
"""What the commands are told; tests/contracts has the systems with stand-ins."""


@pytest.mark.parametrize("name", CANCELLED)
def test_jobs_are_cancelled_by_id_and_by_name(name: str, commands: Commands) -> None:
    system = named(name)
    assert system is not None
    adapter = system.load()()
    asyncio.run(adapter.cancel(["1", "2"]))
    asyncio.run(adapter.drain(["3"]))
    asyncio.run(adapter.cancel_named("farm-ab-x+1"))
    assert commands.said() == CANCELLED[name]


@EACH
def test_the_job_around_us_does_not_reach_the_commands(system: BatchSystem) -> None:
    known = JOBS[system.name]
    dropped = (*known.drops, *known.variables, "FARM_JOB")
    around = dict.fromkeys((*known.keeps, *dropped, "PATH"), "x")
    assert set(system.outside_jobs(around)) == {*known.keeps, "PATH"}


@EACH
def test_workers_on_several_nodes_are_started_on_each(system: BatchSystem) -> None:
    if system.starts_ranks:
        return
    kinds: list[dict[str, Any]] = [{}, {"nodes": 2}, {"nodes": 2, "ranks": 4}]
    one, several, ranks = (
        system.load().launch(WorkerKind(name="small", models=["m.py"], **values))
        for values in kinds
    )
    assert (one, ranks) == ("", "")
    assert several.split()[0] == JOBS[system.name].launcher


PYPROJECT = """
[project]
name = "farm-odd"
version = "1.0"

[project.entry-points."farm.batch_systems"]
odd = "farm_odd:SYSTEM"
"""

ODD = """
import asyncio

from farm.provision.batch.commands import CommandAdapter
from farm.provision.batch.system import JobRow, Listing, Stand
from farm.provision.batch.systems import BatchSystem, JobVariables, Words

SYSTEM = BatchSystem(
    name="odd",
    title="Odd",
    adapter="farm_odd:Odd",
    commands=("oddsub", "oddstat"),
    own_jobs="oddstat",
    job=JobVariables(id="ODD_ID", restart="ODD_AGAIN"),
    leaks=("ODD_*",),
    words=Words(keys={"lane": "queue"}, lacks=frozenset({"qos"})),
)


class Odd(CommandAdapter):
    system = SYSTEM

    @staticmethod
    def directives(kind, job_name, output, folder):
        return [f"#ODD name={job_name} lane={kind.queue}"]

    @staticmethod
    def preamble(kind):
        return ["export FARM_JOB=$ODD_ID"]

    async def submit(self, script):
        return (await self._run("oddsub", feed=script)).strip()

    async def jobs(self):
        ids = (await self._run("oddstat")).split()
        return Listing(tuple(JobRow(i, Stand.RUNNING, "running", "x") for i in ids))

    async def job(self, job_id):
        return None

    async def cancel(self, jobs):
        pass

    async def cancel_named(self, name):
        pass
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package of a batch system."""
    project = tmp_path_factory.mktemp("project")
    (project / "farm_odd").mkdir()
    (project / "farm_odd" / "__init__.py").write_text(ODD)
    (project / "pyproject.toml").write_text(PYPROJECT)
    return installed_wheel(wheel_of(project, project), project / "installed")


@pytest.fixture
def fresh() -> Iterator[None]:
    installed.cache_clear()
    yield
    installed.cache_clear()


def farm(package: Path, folder: Path, *words: str, **variables: str) -> str:
    """Run farm beside the package, with commands of the odd system that list two jobs."""
    for name in ("oddsub", "oddstat"):
        (folder / name).write_text("#!/bin/sh\n[ -z $ODD_ID ] && echo 1 2\n")
        (folder / name).chmod(0o755)
    around = environment()
    path = {"PATH": f"{folder}:{around['PATH']}", "PYTHONPATH": f"{package}:{Path.cwd()}"}
    done = subprocess.run(
        [*FARM, *words],
        cwd=folder,
        env=around | path | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.slow
def test_a_system_of_another_package_is_used_like_the_built_in_ones(
    package: Path, tmp_path: Path
) -> None:
    (tmp_path / "odd.toml").write_text('system = "odd"\nlane = "fast"\n[[workers]]\nname = "a"\n')
    printed = farm(package, tmp_path, "serve", "m.py", "--cluster", "odd.toml", "--dry-run")
    assert "#ODD name=farm-a lane=fast\n" in printed
    assert "export FARM_JOB=$ODD_ID\n" in printed
    printed = farm(package, tmp_path, "doctor", "--cluster", "odd.toml", ODD_ID="7")
    assert "Odd answers; you have 2 jobs" in printed, "its variables do not reach its commands"
    assert "odd.toml: 1 kind of workers for Odd" in printed


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> Callable[[str], None]:
    """Makes the text of a module a package on the path, one with a batch system."""

    def unpacked(text: str) -> None:
        info = tmp_path / "odd-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[farm.batch_systems]\nodd = farm_odd:SYSTEM\n")
        (tmp_path / "farm_odd.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "farm_odd", raising=False)

    return unpacked


def test_its_name_its_words_and_its_jobs_are_known(
    unpacked: Callable[[str], None], tmp_path: Path
) -> None:
    unpacked(ODD)
    assert [system.name for system in every()][-1] == "odd"
    for text, complaint in (
        (
            'system = "no"\n[[workers]]\n',
            "expected one of: slurm, pbs, lsf, flux, grid-engine, odd",
        ),
        ('system = "odd"\n[[workers]]\nqos = "x"\n', "'qos', for which Odd has no counterpart"),
    ):
        (tmp_path / "odd.toml").write_text(text)
        with pytest.raises(SettingsError, match=complaint):
            read_plan(tmp_path / "odd.toml", ["m.py"])
    job = {"ODD_ID": "7"}
    assert (job_id(job), job_id(job, every())) == ("", "7"), "only where a search costs little"
    assert job_of(job) == "7 on Odd"
    assert (restarted_job(job), restarted_job({**job, "ODD_AGAIN": "1"})) == ("", "7 on Odd")


@pytest.mark.parametrize(
    ("object_", "complaint"),
    [
        ("PBS", "has the name 'pbs', which another batch system already has"),
        ("7", "is a int; expected a farm.provision.batch.systems.BatchSystem"),
    ],
)
def test_one_that_cannot_be_used_is_named_with_its_package(
    object_: str, complaint: str, unpacked: Callable[[str], None]
) -> None:
    unpacked(f"from farm.provision.batch.systems import PBS\nSYSTEM = {object_}\n")
    with pytest.raises(
        Unavailable, match=rf"the batch system 'odd' of odd .*{re.escape(complaint)}"
    ):
        named("odd")
    assert named("pbs") is PBS, "built-in systems need no search"
    assert usable() == BUILT_IN
    assert job_of({"LSB_JOBID": "7"}) == "7 on LSF", "a sweep needs no package of another system"
