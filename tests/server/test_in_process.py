"""`farm.serve`: models by name in processes, objects in threads, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import pytest

import farm
from farm.errors import ModelNotFound
from farm.server import in_process
from farm.settings import SettingsError
from tests.support.coroutines import wait_until
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


@pytest.mark.parametrize(("fork", "workers"), [(True, 2), (False, 1)])
def test_a_file_runs_in_processes_that_are_gone_afterwards(
    tmp_path: Path, fork: bool, workers: int
) -> None:
    path = tmp_path / "doubler.py"
    path.write_text(DOUBLER)
    with farm.serve(path, workers=workers, fork=fork) as client:
        outputs = list(client.model("doubler").map(list(np.arange(20.0).reshape(10, 2))))
        parents = len(parents_among(psutil.Process().children()))
    assert parents == (fork and sys.platform == "linux"), "elsewhere none is forked"
    np.testing.assert_array_equal(np.concatenate([o["y"] for o in outputs]), 2.0 * np.arange(20.0))
    pids = {int(o["pid"][0]) for o in outputs}
    assert os.getpid() not in pids
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


TALKER = """
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def talker(x):
    for number in range(int(x[0])):
        print("step", number)
    print("100 %", end="\\r")
    print(int(x[0]) * "long", end="", flush=True)
    return x
"""


def test_functions_and_files_are_there_together_and_what_files_print_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are there at once, and processes still load."""
    monkeypatch.setenv("FARM_LOG_FORMAT", "json")  # the argument has precedence
    path = tmp_path / "talker.py"
    path.write_text(TALKER)
    with farm.serve(halved, path, reserve=["talker=1"], log_format="text") as client:
        assert client.models() == ["halved", "talker"]
        with pytest.raises(ModelNotFound, match="specify a model"):
            client.model()
        assert client.model("halved")(3.0) == 1.5
        client.model("talker")(2.0)
        wait_until(lambda: "step 1" in capsys.readouterr().err)
        assert client.model("talker")(1.0) == 1.0
    assert capsys.readouterr().err.splitlines() == [
        "(worker 0) longlongstep 0",
        "(worker 0) long",
    ]
    with pytest.raises(SettingsError, match="output is 'none'; expected 'show' or 'log'"):
        farm.serve(path, output="none").__enter__()  # type: ignore[arg-type]  # a mistake


@pytest.mark.parametrize("count", [3000, 30000])
def test_only_new_output_is_shown_and_of_much_only_the_beginning(
    count: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "LOOK_EVERY_S", 1000.0)
    log = tmp_path / f"worker-node1-{os.getpid()}-0.log"
    log.write_text("of an earlier farm\n")
    with closing(in_process._Output(tmp_path)), log.open("a") as file:
        file.writelines(f"step {number}\n" for number in range(count))
    *lines, more = capsys.readouterr().err.splitlines()
    assert lines == [f"(worker 0) step {number}" for number in range(in_process.LINES_AT_ONCE)]
    assert " more lines in " in more


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


PROGRAM = """
import sys, farm

def same(x: float) -> float:
    return x

with farm.serve(same) as client:
    print("serves", flush=True)
    sys.stdin.read()
"""


def test_the_folder_of_a_killed_program_goes_with_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"serves\n"
        (killed,) = tmp_path.glob("farm-*")
        with farm.serve(where):
            assert killed.exists()
        process.kill()
    assert killed.exists()
    with farm.serve(where):
        assert not killed.exists()
    assert list(tmp_path.glob("farm-*")) == []


@pytest.mark.parametrize(
    ("models", "more", "complaint"),
    [
        ([], {}, "name of its own"),
        ([where, where], {}, "name of its own"),
        ([where], {"dask": "tcp://x:1"}, r"such as 'model\.py:Beam'"),
        ([where], {"supervise": True}, "supervise is True; expected False in a program"),
    ],
    ids=["no model", "two of one name", "a function for Dask", "supervised"],
)
def test_what_a_program_cannot_serve(
    models: list[Any], more: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        farm.serve(*models, **more).__enter__()


@pytest.mark.slow
def test_a_dask_cluster_runs_a_file(tmp_path: Path) -> None:
    (tmp_path / "square.py").write_text(MODELS)
    with dask_cluster(tmp_path) as cluster:
        cluster.add_worker()
        with farm.serve(tmp_path / "square.py:Square", dask=cluster.address) as client:
            assert client.model("Square")(3.0) == 9.0
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
        ({"mip": ["halved=127.0.0.1:0"]}, "mip is .*; expected port beside it, 0 for a free one"),
        ({"grpc_port": 0}, "grpc_port is 0; expected port beside it"),
        ({"auth": "always"}, "auth is 'always'; expected port beside it"),
        ({"workers": 0}, "workers is 0; expected the number of threads, 1 or more"),
        ({"time_limit_s": 0.3}, "time_limit_s is 0.3; expected a model in a file"),
        ({"fork": False}, "fork is False; expected a model in a file"),
    ],
)
def test_a_wrong_setting_is_one_line(more: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as caught:
        farm.serve(halved, **more).__enter__()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames][1:] == ["__enter__", "serve"]


def test_the_variable_for_the_format_of_logs_counts_in_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = tmp_path / "talker.py", tmp_path / "run"
    path.write_text(TALKER)
    monkeypatch.setenv("FARM_LOG_FORMAT", "json")
    with farm.serve(path, dir=folder, output="log") as client:
        client.model()(1.0)
        (log,) = (folder / "logs").iterdir()
        wait_until(lambda: '"message":"step 0"' in log.read_text())
    assert capsys.readouterr().err == "", "it is only logged"
    monkeypatch.setenv("FARM_LOG_FORMAT", "jsn")
    with pytest.raises(SettingsError, match="log_format is 'jsn'; expected text or json"):
        farm.serve(path).__enter__()


def test_defaults_of_protocols_need_no_port() -> None:
    with farm.serve(halved, mip=[], grpc_port=None, auth="other-users") as client:
        assert client.model("halved")(3.0) == 1.5
