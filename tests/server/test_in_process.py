"""`farm.serve`: models by name in processes, objects in threads, and nothing left behind."""

from __future__ import annotations

import json
import os
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import pytest

import farm
from farm.errors import Unavailable
from farm.settings import SettingsError
from tests.support.dask_cluster import MODELS, dask_cluster
from tests.support.warm_parents import parents_among

DOUBLER = """
import farm, os

@farm.model(inputs={"x": 2}, outputs={"y": 2, "pid": 1})
def doubler(x):
    return {"y": 2 * x, "pid": os.getpid()}
"""


@farm.model(inputs={"x": 1}, outputs={"pid": 1})
def where(x: float) -> int:
    return os.getpid()


def test_a_file_runs_in_processes_that_are_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "doubler.py"
    path.write_text(DOUBLER)
    with farm.serve(path, workers=2) as client:
        outputs = list(client.model("doubler").map(list(np.arange(20.0).reshape(10, 2))))
    np.testing.assert_array_equal(np.concatenate([o["y"] for o in outputs]), 2.0 * np.arange(20.0))
    pids = {int(o["pid"][0]) for o in outputs}
    assert os.getpid() not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere none is forked")
def test_processes_are_forked_unless_that_is_turned_off(tmp_path: Path) -> None:
    path = tmp_path / "doubler.py"
    path.write_text(DOUBLER)
    for fork in (True, False):
        with farm.serve(path, workers=2, fork=fork) as client:
            assert client.model("doubler")([1.0, 2.0])["y"].tolist() == [2.0, 4.0]
            assert len(parents_among(psutil.Process().children())) == fork


def test_an_object_runs_in_this_process() -> None:
    with farm.serve(where) as client:
        assert client.model("where")(0.0) == os.getpid()


def test_a_function_has_its_sizes_in_its_annotations() -> None:
    def scaled(x: float, v: Annotated[np.ndarray, 2]) -> Annotated[np.ndarray, 2]:
        return x * v

    with farm.serve(scaled) as client:
        assert client.model()({"x": 2.0, "v": [1.0, 3.0]}).tolist() == [2.0, 6.0]
    with pytest.raises(TypeError, match="'x' of 'function' has no size"), farm.serve(lambda x: x):
        pass


def test_other_clients_come_by_http_when_a_port_is_said(tmp_path: Path) -> None:
    with farm.serve(where, port=0, dir=tmp_path):
        url = json.loads((tmp_path / "farm.json").read_text())["url"]
        with urllib.request.urlopen(f"{url}/Info", timeout=10) as answer:
            assert json.load(answer)["models"] == ["where"]
    assert not (tmp_path / "farm.json").exists()


def test_no_model_or_two_of_one_name() -> None:
    with pytest.raises(ValueError, match="name of its own"), farm.serve():
        pass
    with pytest.raises(ValueError, match="name of its own"), farm.serve(where, where):
        pass


def test_a_taken_run_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    folder = tmp_path / "taken"
    with pytest.raises(Unavailable, match="cannot be made"), farm.serve(where, dir=folder):
        pass


def test_a_dask_cluster_runs_a_file(tmp_path: Path) -> None:
    (tmp_path / "square.py").write_text(MODELS)
    with dask_cluster(tmp_path) as cluster:
        cluster.add_worker()
        with farm.serve(tmp_path / "square.py:Square", dask=cluster.address) as client:
            assert client.model("Square")(3.0) == 9.0
        with (
            pytest.raises(ValueError, match=r"such as 'model\.py:Beam'"),
            farm.serve(where, dask=cluster.address),
        ):
            pass
        assert cluster.tasks() == []


def halved(x: float) -> float:
    return x / 2


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"workers": "2"}, "workers is '2'; expected a whole number"),
        ({"port": "x"}, "port is 'x'; expected a whole number"),
        ({"workers": -1}, "workers is -1; expected 0 or more"),
        ({"portt": 1}, "'portt' is not a setting"),
    ],
)
def test_a_wrong_setting_is_one_line(more: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as caught:
        farm.serve(halved, **more).__enter__()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames][1:] == ["__enter__", "serve"]
