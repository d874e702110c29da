"""The models of kinds whose workers have not started yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from farm.call import ModelInfo
from farm.provision.batch import standing
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.standing import KindState
from tests.support.coroutines import on_loop
from tests.support.dispatcher_farm import LIMIT_S

MODEL = """
import farm

class Double(farm.Model):
    inputs, outputs = {"x": 1}, {"y": 1}

    def evaluate(self, inputs, config):
        return 2 * inputs["x"]
"""


class Known:
    """Keeps what is reported to a dispatcher."""

    def __init__(self) -> None:
        self.models: list[str] = []
        self.notes: list[tuple[str, str, str]] = []

    def expect(self, infos: Sequence[ModelInfo]) -> None:
        self.models += [info.name for info in infos]

    def note(self, *note: Any) -> None:
        self.notes.append(note)


def kind(name: str, *models: str) -> KindState:
    return KindState(WorkerKind(name=name, models=models))


def names(kind: KindState) -> list[str]:
    return sorted(kind.models or ())


@on_loop
async def test_kinds_learn_the_names_of_their_models(tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(MODEL)
    spec = str(tmp_path / "double.py")
    known, small, large = Known(), kind("small", spec), kind("large", f"plate={spec}", spec)
    bad, restarted = kind("bad", str(tmp_path / "none.py")), kind("restarted", spec)
    tasks = [each.describe(cast(Any, known)) for each in (small, large, bad, restarted)]
    assert all(each.describing for each in (small, large, bad, restarted))
    restarted.models = frozenset({"earlier"})
    await asyncio.wait_for(asyncio.gather(*tasks), LIMIT_S)
    assert names(small) == ["Double"]
    assert names(large) == ["Double", "plate"]
    assert bad.models is None
    assert names(restarted) == ["earlier"]
    assert not any(each.describing for each in (small, large, bad, restarted))
    assert sorted(known.models) == ["Double", "Double", "plate"]
    ((event, subject, text),) = known.notes
    assert (event, subject) == ("not described", "bad")
    assert "there is no file" in text


@on_loop
async def test_what_a_worker_said_meanwhile_counts(tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(MODEL)
    known, small = Known(), kind("small", str(tmp_path / "double.py"))
    task = small.describe(cast(Any, known))
    small.models = frozenset({"other"})
    await asyncio.wait_for(task, LIMIT_S)
    assert names(small) == ["other"]
    assert known.models == []


@on_loop
async def test_the_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    async def describe(models: Sequence[str]) -> tuple[ModelInfo, ...]:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(models[0])
        raise AssertionError("the future has no end")

    monkeypatch.setattr(standing, "describe", describe)
    known, small = Known(), kind("small", "m.py")
    task = small.describe(cast(Any, known))
    await asyncio.wait({task}, timeout=0.01)
    assert small.describing
    task.cancel()
    await asyncio.wait({task}, timeout=LIMIT_S)
    assert ended == ["m.py"]
    assert not small.describing
