"""State that one farm leaves for the next in the same folder."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from farm.call import ModelInfo, Operation, TensorInfo
from farm.provision.batch import restart_state
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.restart_state import JobKey, RestartState, Saving
from tests.support.coroutines import on_loop, until

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
    state = RestartState(tmp_path)
    state.keep(SMALL, [BEAM])
    assert state.models(WorkerKind(name="small", models=["plate.py"])) is None
    state.forget_models()
    assert state.models(SMALL) is None
    state.forget_models()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"small": 1}', '{"small": {"loads": ["beam.py"], "serves": [{}]}}']
)
def test_a_file_of_no_use_is_passed_over(tmp_path: Path, text: str) -> None:
    state = RestartState(tmp_path)
    (tmp_path / "models.json").write_text(text)
    assert state.models(SMALL) is None
    state.keep(SMALL, [BEAM])
    assert state.models(SMALL) == [BEAM]


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


def test_a_list_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = RestartState(tmp_path)
    state.keep_jobs([("6", "farm-ab-small+1", "small")])

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(restart_state, "replace_private", full)
    state.keep_jobs([("7", "farm-ab-small+1", "small")])
    assert RestartState(tmp_path).jobs() is None, "better no list than a wrong one"


def job(number: int) -> JobKey:
    return (str(number), f"farm-ab-small+{number}", "small")


class SlowState(RestartState):
    """Writes nothing while `may_write` is not set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_write = threading.Event()
        self.begun = 0
        self.written: list[list[JobKey]] = []

    def keep_jobs(self, jobs: list[JobKey]) -> None:
        if not hasattr(self, "written"):  # for a new folder
            return super().keep_jobs(jobs)
        self.begun += 1
        self.may_write.wait(30)
        self.written.append(jobs)
        return super().keep_jobs(jobs)


@on_loop
async def test_the_loop_runs_while_the_last_list_of_jobs_waits_to_be_written(
    tmp_path: Path,
) -> None:
    state = SlowState(tmp_path)
    saving = Saving(state)
    try:
        saving.jobs([job(1)])
        await until(lambda: state.begun == 1)
        saving.jobs([job(1), job(2)])
        saving.jobs([job(2)])
        saving.jobs([job(2)])
        saving.models(SMALL, [BEAM])
        await saving.done(within_s=0.01)
        assert state.written == []
        waiting = asyncio.ensure_future(saving.done())
        await asyncio.sleep(0)
        assert not waiting.done()
    finally:
        state.may_write.set()
    await waiting
    assert state.written == [[job(1)], [job(2)]]
    after = RestartState(tmp_path)
    assert after.jobs() == [job(2)]
    assert after.models(SMALL) == [BEAM]
    saving.forget_models()
    await saving.done()
    assert RestartState(tmp_path).models(SMALL) is None


@on_loop
async def test_a_write_that_fails_ends_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = RestartState(tmp_path)
    saving = Saving(state)
    await saving.done()  # nothing to write
    (tmp_path / "models.json").mkdir()
    saving.forget_models()
    saving.jobs([job(1)])
    await saving.done()
    assert "cannot be saved" in caplog.text
    assert RestartState(tmp_path).jobs() == [job(1)]
