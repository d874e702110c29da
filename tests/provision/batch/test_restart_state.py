"""State that one farm leaves for the next in the same folder."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from pathlib import Path

import pytest

from farm.call import ModelInfo, Operation, TensorInfo
from farm.machine.private import replace_private
from farm.provision.batch import restart_state
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.restart_state import JobKey, RestartState
from tests.support.coroutines import until

BEAM = ModelInfo(
    "beam",
    (TensorInfo("E", (3,)),),
    (TensorInfo("bent", (31,)),),
    frozenset({Operation.EVALUATE, Operation.GRADIENT}),
    repeatable=False,
)
SMALL = WorkerKind(name="small", models=["beam.py"])


async def test_the_next_farm_has_the_identity_and_knows_the_models(tmp_path: Path) -> None:
    one = RestartState(tmp_path / "jobs")
    assert one.models(SMALL) is None
    one.save_models(SMALL, [BEAM])
    one.save_models(WorkerKind(name="other", models=["a.py"]), [])
    await one.done()
    two = RestartState(tmp_path / "jobs")
    assert two.identity == one.identity
    assert two.models(SMALL) == [BEAM]
    assert two.models(WorkerKind(name="small", models=["plate.py"])) is None, "it loads another"
    assert RestartState(tmp_path / "elsewhere").identity != one.identity


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"small": 1}', '{"small": {"loads": ["beam.py"], "serves": [{}]}}']
)
async def test_a_file_of_no_use_is_passed_over(tmp_path: Path, text: str) -> None:
    state = RestartState(tmp_path)
    (tmp_path / "models.json").write_text(text)
    assert state.models(SMALL) is None
    state.save_models(SMALL, [BEAM])
    await state.done()
    assert state.models(SMALL) == [BEAM]


async def test_the_next_farm_knows_the_jobs_and_submissions(tmp_path: Path) -> None:
    one = RestartState(tmp_path)
    assert one.jobs() == [], "a new identity has no jobs"
    assert RestartState(tmp_path).jobs() == []
    for jobs in ([job(7), ("", "farm-ab-small+2", "small")], []):
        one.save_jobs(jobs)
        await one.done()
        assert RestartState(tmp_path).jobs() == jobs


@pytest.mark.parametrize("text", [None, "", "{", "7", '[["7"]]', '{"a": 1}'])
async def test_without_a_list_of_the_jobs_they_are_unknown(
    tmp_path: Path, text: str | None
) -> None:
    RestartState(tmp_path)
    if text is None:
        (tmp_path / "jobs.json").unlink()
    else:
        (tmp_path / "jobs.json").write_text(text)
    state = RestartState(tmp_path)
    assert state.jobs() is None
    state.save_jobs([])
    await state.done()
    assert RestartState(tmp_path).jobs() == []


async def test_a_list_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = RestartState(tmp_path)
    state.save_jobs([job(6)])
    await state.done()

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(restart_state, "replace_private", full)
    state.save_jobs([job(7)])
    state.save_models(SMALL, [BEAM])
    await state.done()
    assert RestartState(tmp_path).jobs() is None, "better no list than a wrong one"
    assert "models.json cannot be written" in caplog.text


def job(number: int) -> JobKey:
    return (str(number), f"farm-ab-small+{number}", "small")


async def test_the_loop_runs_while_the_last_list_of_jobs_waits_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = RestartState(tmp_path)
    begun, may_write, written = threading.Event(), threading.Event(), []

    def replace_later(path: Path, data: bytes) -> None:
        if path.name == "jobs.json":
            begun.set()
            may_write.wait(30)
            written.append([tuple(row) for row in json.loads(data)])
        replace_private(path, data)

    monkeypatch.setattr(restart_state, "replace_private", replace_later)
    try:
        state.save_jobs([job(1)])
        await until(begun.is_set)
        state.save_jobs([job(1), job(2)])
        state.save_jobs([job(2)])
        state.save_jobs([job(2)])
        state.save_models(SMALL, [BEAM])
        await state.done(within_s=0.01)
        assert written == []
        waiting = asyncio.ensure_future(state.done())
        await asyncio.sleep(0)
        assert not waiting.done()
    finally:
        may_write.set()
    await waiting
    assert written == [[job(1)], [job(2)]]
    after = RestartState(tmp_path)
    assert after.jobs() == [job(2)]
    assert after.models(SMALL) == [BEAM]
    state.forget_models()
    await state.done()
    assert RestartState(tmp_path).models(SMALL) is None


async def test_a_write_that_fails_ends_no_later_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = RestartState(tmp_path)
    await state.done()  # nothing to write
    (tmp_path / "models.json").mkdir()
    state.forget_models()
    state.save_jobs([job(1)])
    await state.done()
    assert "cannot be saved" in caplog.text
    assert RestartState(tmp_path).jobs() == [job(1)]
