"""How many functions a sweep calls for each of its points, beside those of the client.

A number falls in the commit that lowers it. `benchmarks/sweep_rows.py` counts a whole sweep, with
the client, and shows the functions.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Hints, ModelInfo, Result, TensorInfo
from farm.storage import lock
from farm.sweep.file import store as store_module
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.run import run as run_module
from farm.sweep.run.evaluator import AnswerReceiver
from farm.sweep.run.in_flight import PointsInFlight
from farm.sweep.run.run import Rules, Run, Stop
from tests.sweep.samples import plan_of

TOGETHER, ALONE = 23, 103
"""Function calls for each point, of an evaluator that takes many calls together, and of others."""

MORE = 1
POINTS = 4000
INFO = ModelInfo("m", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),))
ANSWER = Result((np.ones(1),), run_time_s=1e-6, worker="host/1")


class Alone:
    """Answers each call at once, on the thread that submits it."""

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        return INFO

    def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
        future: Future[Result] = Future()
        future.set_result(ANSWER)
        return future


class Together(Alone):
    """Takes many calls together, too."""

    def __init__(self) -> None:
        self._ids = count()

    @property
    def line(self) -> Together:
        return self

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: AnswerReceiver
    ) -> list[int]:
        for key, _ in calls:
            receiver.put(key, ANSWER)
        receiver.flush()
        return [call_id for call_id, _ in zip(self._ids, calls, strict=False)]

    def cancel(self, ids: Iterable[int]) -> bool:
        return False


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing depends on the time that the sweep takes, or on when garbage is collected."""
    monkeypatch.setattr(run_module, "STATUS_S", 1e9)
    monkeypatch.setattr(store_module, "BATCH_S", 1e9)
    monkeypatch.setattr(lock, "BEAT_S", 1e9)
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("kind", "most"), [(Together, TOGETHER), (Alone, ALONE)])
def test_a_point_costs_no_more_function_calls(tmp_path: Path, kind: type[Alone], most: int) -> None:
    calls_of(tmp_path / "first.h5", kind, 300)  # what is loaded at first
    assert calls_of(tmp_path / "s.h5", kind, POINTS) / POINTS <= most + MORE


def calls_of(path: Path, kind: type[Alone], points: int) -> int:
    """Return the function calls of a whole run, from the first point to the verified file."""
    plan = plan_of(f"random:{points}", {"x": "0:1"}, info=INFO)
    sent = PointsInFlight(kind(), plan)
    run = Run(Store.create(path, plan), sent, rules=Rules(in_flight=256), stop=Stop())
    profile = cProfile.Profile()
    progress = profile.runcall(run.go)
    assert (progress.state, progress.done) == (COMPLETE, points)
    total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]  # not in the stubs
    return total
