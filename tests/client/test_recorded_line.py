"""A client's own record: what was answered once is not asked again."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.errors import ModelFailed, Unavailable
from farm.model import Config, Inputs
from farm.record.entry import Entry, Status
from farm.record.file import entries_in


class Square(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 2}
    version = "1"

    def __init__(self) -> None:
        self.ran: list[list[float]] = []

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.ran.append(inputs["x"].tolist())
        if inputs["x"][0] < 0:
            raise ValueError("negative")
        return inputs["x"] ** 2 if inputs["x"][1] else [np.nan, np.nan]

    def gradient(self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Any, config: Config) -> Any:
        self.ran.append(sens.tolist())
        return 2 * inputs["x"] * sens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.record"


def entries(path: Path) -> list[Entry]:
    return [e for e, _, _ in entries_in(path, lambda place: None) if isinstance(e, Entry)]


@pytest.mark.parametrize("native", [True, False], ids=["native", "http"])
def test_a_client_that_starts_again_asks_nothing_twice(path: Path, native: bool) -> None:
    square = Square()
    points = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [2.0, 1.0]])
    run = path.with_name("run")
    with farm.serve(square, port=0, dir=run):
        target = run if native else json.loads((run / "farm.json").read_text())["url"]
        for _ in range(2):
            with farm.connect(target, record=path, reuse=True, client="me") as client:
                model = client.model()
                assert np.array_equal(model.map(points)[:, 0], [1.0, 4.0, 9.0, 4.0])
                assert [y[0] for y in model.map(list(points))] == [1.0, 4.0, 9.0, 4.0]
                assert dict(model.as_completed(list(points)))[3][0] == 4.0
                assert model([2.0, 1.0])[0] == 4.0
                assert model.submit([3.0, 1.0]).result()[0] == 9.0
                gradient = model.gradient(0, 0, [2.0, 1.0], [1.0, 0.0])
                assert gradient.tolist() == [4.0, 0.0]
                assert client.status()["client_record"]["trouble"] == ""
    assert len(square.ran) - square.ran.count([2.0, 1.0]) == 3
    assert 1 <= square.ran.count([2.0, 1.0]) <= 2, "twins in one map are both sent"
    assert {entry.client for entry in entries(path)} == {"me"}


def test_failures_and_nan_are_asked_again(path: Path) -> None:
    square = Square()
    run = path.with_name("run")
    with farm.serve(square, dir=run), farm.connect(run, record=path, reuse=True) as client:
        model = client.model()
        for _ in range(2):
            with pytest.raises(ModelFailed):
                model([-1.0, 1.0])
            assert np.isnan(model([0.0, 0.0])).all()
    assert len(square.ran) == 4
    assert [e.status for e in entries(path)] == [Status.FAILED, Status.NOT_FINITE] * 2


def test_another_version_is_asked_again(path: Path) -> None:
    square = Square()
    target = path.with_name("run")
    with farm.serve(square, dir=target):
        for version in ("", "7", "7", "8"):
            with farm.connect(target, record=path, reuse=True, version=version) as client:
                client.model()([1.0, 1.0])
    assert len(square.ran) == 3
    assert [entry.version for entry in entries(path)] == ["1", "7", "8"]


def test_a_model_without_a_version_is_recorded_and_asked(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    square = Square()
    square.version = ""
    run = path.with_name("run")
    with farm.serve(square, dir=run), farm.connect(run, record=path, reuse=True) as client:
        for _ in range(2):
            client.model()([1.0, 1.0])
    assert len(square.ran) == len(entries(path)) == 2
    (said,) = [r for r in caplog.records if r.levelno >= logging.WARNING and "version" in r.message]
    assert 'farm.connect(..., version="1")' in said.message


def test_a_record_without_reuse_only_keeps(path: Path) -> None:
    square = Square()
    run = path.with_name("run")
    with farm.serve(square, dir=run), farm.connect(run, record=path) as client:
        for _ in range(2):
            client.model()([1.0, 1.0])
    assert len(square.ran) == len(entries(path)) == 2


def test_two_clients_cannot_share_a_record(path: Path) -> None:
    run = path.with_name("run")
    with farm.serve(Square(), dir=run):
        first = farm.connect(run, record=path)
        with pytest.raises(Unavailable, match="is in use"):
            farm.connect(run, record=path)
        first.close()
        farm.connect(run, record=path).close()
    with pytest.raises(ValueError, match="reuse and version need record"):
        farm.connect("http://127.0.0.1:1", reuse=True)
