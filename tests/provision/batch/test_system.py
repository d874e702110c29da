"""The interface of a batch system, and that each system fulfils it."""

from __future__ import annotations

import inspect
import re
import subprocess
from pathlib import Path

import pytest

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.plan import KEYS
from farm.provision.batch.script import DEFAULT_TEMPLATE, PLACEHOLDER, job_script
from farm.provision.batch.system import BatchSystem, JobRow, Stand
from farm.provision.batch.systems import SYSTEMS
from farm.settings import SettingsError

EACH = pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)


def test_a_row_is_told_with_its_reason_if_it_has_one() -> None:
    assert JobRow("1", Stand.ENDED, "COMPLETED", "x").in_words == "COMPLETED"
    row = JobRow("1", Stand.ENDED, "FAILED", "x", reason="NonZeroExitCode")
    assert row.in_words == "FAILED (NonZeroExitCode)"


@EACH
def test_each_system_has_all_calls_and_facts_of_the_interface(system: type[BatchSystem]) -> None:
    calls = [name for name in vars(BatchSystem) if not name.startswith("_")]
    assert {"submit", "jobs", "job", "drain", "cancel", "cancel_named", "launch"} <= set(calls)
    for name in calls:
        expected = inspect.signature(getattr(BatchSystem, name)).parameters
        assert list(inspect.signature(getattr(system, name)).parameters) == list(expected)
    for name in ("title", "own_words", "own_jobs", "lacks", "starts_ranks", "warns"):
        assert hasattr(system, name)
    assert not system.lacks & set(system.own_words.keys.values())


@EACH
def test_the_script_of_each_system_identifies_its_job(system: type[BatchSystem]) -> None:
    """SLURM sets the variables of its own that farm reads; the scripts of others say FARM_JOB."""
    kind = WorkerKind(name="small", models=["m.py"], time="10", cpus=2)
    text = job_script(
        kind,
        system,
        job_name="farm-1-small+ab",
        connect=Path("/run dir/farm.json"),
        output=Path("/run dir/jobs"),
        folder=Path("/home/me"),
    )
    assert "farm-1-small+ab" in text
    assert not PLACEHOLDER.search(re.sub("^# .*", "", text, flags=re.MULTILINE))
    assert system.title == "SLURM" or "FARM_JOB=" in text
    assert system.warns or '--ends-at "$FARM_ENDS_AT" --drain-before 60' in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@EACH
def test_own_words_stand_for_words_that_all_systems_have(system: type[BatchSystem]) -> None:
    own = system.own_words
    assert set(own.keys.values()) <= set(KEYS)
    assert set(own.template.values()) <= set(PLACEHOLDER.findall(DEFAULT_TEMPLATE.read_text()))


@EACH
def test_a_template_may_have_the_own_words_of_its_system_alone(
    system: type[BatchSystem], tmp_path: Path
) -> None:
    template = tmp_path / "site.in"
    template.write_text("@directives@\n@preamble@\nsrun @srun@ @farm@\n")
    kind = WorkerKind(name="small", models=["m.py"], template=str(template))
    folder = Path("/run")

    def text() -> str:
        return job_script(kind, system, job_name="a", connect=folder, output=folder, folder=folder)

    if "srun" in system.own_words.template:
        assert "\nsrun --cpus-per-task=1 " in text()
    else:
        with pytest.raises(SettingsError, match=r"has @srun@; expected: (?!.*srun)"):
            text()
