"""Callers of the same points at the same time, by any way, have them evaluated once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

import farm
from farm.errors import ModelFailed
from tests.support.dispatcher_farm import Served, serving
from tests.support.time_limits import scaled

LIMIT_S = scaled(60.0)

MODEL = """
import time
from pathlib import Path

import numpy as np
import farm

EVALUATED = Path(__file__).with_name("evaluated")
GO = Path(__file__).with_name("go")


class Batches(farm.Model):
    name = "batches"
    version = "1"
    inputs = {"x": 2}
    outputs = {"y": 1}
    max_batch = 8

    def evaluate(self, inputs, config):
        while not GO.exists():
            time.sleep(0.01)
        x = inputs["x"]
        with EVALUATED.open("a") as log:
            log.write("".join(f"{row[0]:g}\\n" for row in x))
        return np.where(x[:, :1] == 7, np.nan, x[:, :1] ** 2)


class Single(farm.Model):
    name = "single"
    version = "1"
    inputs = {"x": 2}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        if inputs["x"][0] == 8:
            while not GO.exists():
                time.sleep(0.01)
        with EVALUATED.open("a") as log:
            log.write(f"{inputs['x'][0]:g}\\n")
        if inputs["x"][0] == 9:
            raise ValueError("nine")
        return [inputs["x"][0] ** 2]
"""

POINTS = np.array([[float(k % 30), 1.0] for k in range(60)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def evaluated(folder: Path) -> Counter[str]:
    return Counter((folder / "evaluated").read_text().split())


def over_kserve(served: Served, model: str, points: Any) -> Any:
    x = {"name": "x", "shape": points.shape, "datatype": "FP64", "data": points.tolist()}
    url = f"{served.connection.url}/v2/models/{model}/infer"
    answer = requests.post(url, json={"inputs": [x]}, timeout=LIMIT_S)
    return np.array(answer.json()["outputs"][0]["data"])


def by_map(place: Any, model: str, points: Any) -> Any:
    with farm.connect(place) as client:
        return client.model(model).map(points)[:, 0]


def at_once(*asked: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(asked)) as pool:
        return [future.result(LIMIT_S) for future in [pool.submit(ask) for ask in asked]]


@pytest.mark.slow
def test_maps_and_batches_of_the_same_points_run_each_once(folder: Path) -> None:
    models = ("model.py:Batches", "model.py:Single")
    options = ("--workers", "2", "--record", "a.record", "--reuse")
    with serving(folder, *models, *options) as served:
        url = served.connection.url

        def go() -> None:
            (folder / "go").touch()

        found = at_once(
            lambda: by_map(served.folder, "batches", POINTS),
            lambda: by_map(url, "batches", POINTS[::-1]),
            lambda: over_kserve(served, "batches", POINTS),
            lambda: over_kserve(served, "batches", POINTS[5:9]),
            go,
        )
    squares = np.where(POINTS[:, 0] == 7, np.nan, POINTS[:, 0] ** 2)
    for values, wanted in zip(found, (squares, squares[::-1], squares, squares[5:9]), strict=False):
        np.testing.assert_array_equal(values, wanted)
    counts = evaluated(folder)
    assert {point for point, count in counts.items() if count > 1} <= {"7"}, "NaN is not kept"
    assert len(counts) == 30


@pytest.mark.slow
def test_a_failure_is_shared_and_not_kept(folder: Path) -> None:
    (folder / "go").touch()
    options = ("model.py:Single", "--workers", "2", "--record", "a.record", "--reuse")
    points = POINTS[:30]
    with serving(folder, *options) as served, farm.connect(served.connection.url) as client:
        model = client.model("single")
        for times in (1, 2):
            results = list(model.map(points, return_errors=True))
            assert [k for k, y in enumerate(results) if isinstance(y, Exception)] == [9]
            assert isinstance(results[9], ModelFailed)
            assert evaluated(folder)["9"] == times
    assert math.fsum(evaluated(folder).values()) == 31
