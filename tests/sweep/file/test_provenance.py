"""Provenance: its facts, that it has no secrets, and the fingerprint of a model's code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from farm.sweep.file.provenance import (
    command_line,
    is_of_restarted_job,
    job_of,
    provenance,
    restarted_job,
    without_secrets,
)
from farm.version import __version__


def test_it_says_what_ran_where() -> None:
    facts = provenance(
        ["farm", "sweep"],
        target="model.py",
        notes="first try",
        environment={"SLURM_JOB_ID": "42", "SLURM_CLUSTER_NAME": "big", "SECRET": "no"},
    )
    assert facts["argv"] == "farm sweep"
    assert facts["farm_version"] == __version__
    assert facts["numpy_version"] == np.__version__
    assert (facts["target"], facts["notes"]) == ("model.py", "first try")
    assert (facts["slurm_job_id"], facts["slurm_cluster"]) == ("42", "big")
    assert "no" not in facts.values()
    assert all(facts.values())


def test_it_names_the_commit_and_whether_files_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e@x")
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    assert "git" not in provenance([], folder=tmp_path)
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "x")
    commit = provenance([], folder=tmp_path)["git"]
    assert len(commit) == 40
    (tmp_path / "a").write_text("2")
    assert provenance([], folder=tmp_path)["git"] == f"{commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git" not in provenance([], folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("--to http://user:TOKEN@host:4242/x", "--to http://host:4242/x"),
        ("M@http://TOKEN@host", "M@http://host"),
        ("http://host:1 mail@x", "http://host:1 mail@x"),
    ],
)
def test_tokens_in_addresses_are_left_out(text: str, kept: str) -> None:
    assert without_secrets(text) == kept
    assert "TOKEN" not in str(provenance([text], target=text))


def test_the_command_is_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/farm", "sweep", "a b"])
    assert command_line() == ["farm", "sweep", "a b"]


JOB = {"SLURM_JOB_ID": "42", "SLURM_CLUSTER_NAME": "big"}


GRID_ENGINE = {"JOB_ID": "42", "SGE_TASK_ID": "undefined", "SGE_CELL": "default", "RESTARTED": "0"}
LSF = {"LSB_JOBID": "42", "LSB_JOBINDEX": "0"}
PBS = {"PBS_JOBID": "42.server", "PBS_ENVIRONMENT": "PBS_BATCH"}
FLUX = {"FLUX_JOB_ID": "f42"}


@pytest.mark.parametrize(
    ("began", "now", "is_it"),
    [
        (JOB, {**JOB, "SLURM_RESTART_COUNT": "1"}, True),
        (JOB, JOB, False),
        (JOB, {**JOB, "SLURM_RESTART_COUNT": "0"}, False),
        (JOB, {**JOB, "SLURM_RESTART_COUNT": "1", "SLURM_JOB_ID": "43"}, False),
        (JOB, {**JOB, "SLURM_RESTART_COUNT": "1", "SLURM_CLUSTER_NAME": "small"}, False),
        (JOB, {}, False),
        (JOB, {"SLURM_RESTART_COUNT": "1"}, False),
        (GRID_ENGINE, {**GRID_ENGINE, "RESTARTED": "1"}, True),
        (GRID_ENGINE, GRID_ENGINE, False),
        (GRID_ENGINE, {**GRID_ENGINE, "RESTARTED": "1", "JOB_ID": "43"}, False),
        (GRID_ENGINE, {**GRID_ENGINE, "RESTARTED": "1", "SGE_CELL": "other"}, False),
        (GRID_ENGINE, {**GRID_ENGINE, "RESTARTED": "1", "SGE_TASK_ID": "2"}, False),
        (LSF, {**LSF, "LSB_RESTART": "Y"}, True),
        (LSF, LSF, False),
        (LSF, {**LSF, "LSB_RESTART": "Y", "LSB_JOBID": "43"}, False),
        (LSF, {**LSF, "LSB_RESTART": "Y", "LSB_JOBINDEX": "2"}, False),
        (LSF, {**GRID_ENGINE, "RESTARTED": "1"}, False),
        (JOB, {**LSF, "LSB_RESTART": "Y"}, False),
        # Their manuals name no variable that tells a second start from the first.
        (PBS, PBS, False),
        (FLUX, FLUX, False),
    ],
)
def test_a_restarted_job_knows_what_it_began(
    began: dict[str, str], now: dict[str, str], is_it: bool
) -> None:
    assert not is_of_restarted_job(provenance(["farm"], environment={}), now)
    assert is_of_restarted_job(provenance(["farm"], environment=began), now) == is_it


def test_a_job_keeps_its_name_and_tasks_of_an_array_have_others() -> None:
    tasks = [{**GRID_ENGINE, "SGE_TASK_ID": str(k)} for k in (1, 2)]
    tasks += [{**LSF, "LSB_JOBINDEX": str(k)} for k in (1, 2)]
    assert len({job_of(task) for task in (*tasks, GRID_ENGINE, LSF, JOB)}) == len(tasks) + 3
    assert job_of({"JOB_ID": "42"}) == "", "other programs use this name, too"
    assert job_of(JOB) == job_of({**JOB, "SLURM_RESTART_COUNT": "2"}) == "42 on big"
    assert job_of({}) == restarted_job({"SLURM_RESTART_COUNT": "1"}) == restarted_job(JOB) == ""
    assert restarted_job({**JOB, "SLURM_RESTART_COUNT": "1"}) == "42 on big"


CLASS = """
import farm

class Beam(farm.Model):
    inputs = {"k": 1}
    outputs = {"y": 1}

    @property
    def factor(self): return 2.0

    @staticmethod
    def square(x): return x * x

    def evaluate(self, inputs, config):
        names = {"one", "two", "three", "four"}
        return [(lambda q: q + 1)(x) for x in inputs["k"]] if "one" in names else 0
"""
FUNCTION = """
import farm

@farm.model(inputs={"k": 1}, outputs={"y": 1})
def Beam(k):
    return 2 * k
"""
PRINT = """
from farm.sweep.file.provenance import code_of
print(code_of(Beam() if isinstance(Beam, type) else Beam))
"""
DERIVED = CLASS.replace("Beam", "Base") + "\nclass Beam(Base):\n    pass\n"
EDITS = [
    (CLASS, "q + 1", "q + 2"),
    (CLASS, "return 2.0", "return 3.0"),
    (CLASS, "x * x", "x + x"),
    (CLASS, '"four"', '"five"'),
    (CLASS, 'inputs["k"]', 'inputs["l"]'),
    (FUNCTION, "2 * k", "3 * k"),
    (DERIVED, "q + 1", "q - 1"),
]


def fingerprints(folder: Path, *sources: str) -> list[str]:
    """Return the fingerprints that a new process gives; its sets have another order."""
    for number, source in enumerate(sources):
        (folder / f"model{number}.py").write_text(source + PRINT)
    program = "; ".join(f"import model{number}" for number in range(len(sources)))
    run = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=folder, capture_output=True, check=True
    )
    return run.stdout.decode().split()


def test_it_is_the_same_in_every_process_and_after_a_comment_not_after_an_edit(
    tmp_path: Path,
) -> None:
    sources = (CLASS, FUNCTION, DERIVED)
    edited = [source.replace(old, new) for source, old, new in EDITS]
    first = dict(zip((*sources, *edited), fingerprints(tmp_path, *sources, *edited), strict=True))
    assert all(found.startswith("code:") for found in first.values())
    commented = [f"# note\n\n{source}" for source in sources]
    assert fingerprints(tmp_path, *commented) == [first[source] for source in sources]
    assert [old for source, old, new in EDITS
            if first[source] == first[source.replace(old, new)]] == []  # fmt: skip
