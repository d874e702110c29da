"""State that one farm leaves for the next in the same folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farm.call import ModelInfo, Operation, TensorInfo
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.restart_state import RestartState

BEAM = ModelInfo(
    "beam",
    (TensorInfo("E", (3,)),),
    (TensorInfo("bent", (31,)),),
    frozenset({Operation.EVALUATE, Operation.GRADIENT}),
    repeatable=False,
)
SMALL = WorkerKind(name="small", models=["beam.py"])


def test_the_next_farm_has_the_identity_and_knows_the_models(tmp_path: Path) -> None:
    one = RestartState(tmp_path / "jobs")
    assert one.models(SMALL) is None
    one.keep(SMALL, [BEAM])
    one.keep(WorkerKind(name="other", models=["a.py"]), [])
    two = RestartState(tmp_path / "jobs")
    assert two.identity == one.identity
    assert two.models(SMALL) == [BEAM]
    assert RestartState(tmp_path / "elsewhere").identity != one.identity


def test_a_kind_that_loads_something_else_is_not_known(tmp_path: Path) -> None:
    legacy = RestartState(tmp_path)
    legacy.keep(SMALL, [BEAM])
    assert legacy.models(WorkerKind(name="small", models=["plate.py"])) is None
    legacy.forget_models()
    assert legacy.models(SMALL) is None
    legacy.forget_models()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"small": 1}', '{"small": {"loads": ["beam.py"], "serves": [{}]}}']
)
def test_a_file_of_no_use_is_passed_over(tmp_path: Path, text: str) -> None:
    legacy = RestartState(tmp_path)
    (tmp_path / "models.json").write_text(text)
    assert legacy.models(SMALL) is None
    legacy.keep(SMALL, [BEAM])
    assert legacy.models(SMALL) == [BEAM]


def test_the_next_farm_knows_the_jobs_and_submissions(tmp_path: Path) -> None:
    jobs = [("7", "farm-ab-small+1", "small"), ("", "farm-ab-small+2", "small")]
    one = RestartState(tmp_path)
    assert one.jobs() == [], "a new identity has no jobs"
    assert RestartState(tmp_path).jobs() == []
    one.keep_jobs(jobs)
    assert RestartState(tmp_path).jobs() == jobs
    one.keep_jobs([])
    assert RestartState(tmp_path).jobs() == []


@pytest.mark.parametrize("text", [None, "", "{", "7", '[["7"]]', '{"a": 1}'])
def test_without_a_list_of_the_jobs_they_are_unknown(tmp_path: Path, text: str | None) -> None:
    RestartState(tmp_path)
    if text is None:
        (tmp_path / "jobs.json").unlink()
    else:
        (tmp_path / "jobs.json").write_text(text)
    state = RestartState(tmp_path)
    assert state.jobs() is None
    state.keep_jobs([])
    assert RestartState(tmp_path).jobs() == []


def test_a_list_that_cannot_be_written_is_removed(tmp_path: Path) -> None:
    state = RestartState(tmp_path)
    (tmp_path / f".jobs.json.{os.getpid()}").mkdir()
    state.keep_jobs([("7", "farm-ab-small+1", "small")])
    assert RestartState(tmp_path).jobs() is None, "better no list than a wrong one"
