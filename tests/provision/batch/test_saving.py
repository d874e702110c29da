"""Writes that must not block the event loop, although the file system does."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from farm.call import ModelInfo
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.restart_state import JobKey, RestartState
from farm.provision.batch.saving import Saving
from tests.support.coroutines import on_loop, until

SMALL = WorkerKind(name="small", models=["beam.py"])
BEAM = ModelInfo("beam", (), ())


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
