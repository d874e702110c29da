"""A run folder belongs to one running farm; that of one that has ended is free."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import farm
from farm.errors import Unavailable
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.server.wires import RunFolder
from farm.settings import Settings
from farm.transports.connection import Connection, write_connection


def left_by(folder: Path, host: str, pid: int, endpoint: str = "") -> Path:
    file = folder / "farm.json"
    write_connection(file, Connection(endpoint, host=host, pid=pid))
    return file


def test_a_new_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").take()
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


def test_one_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"run folder .*file/run cannot be made"):
        RunFolder(tmp_path / "file" / "run").take()


def test_a_running_farm_keeps_its_folder(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").take()
    left_by(tmp_path / "run", socket.gethostname(), os.getppid(), "tcp://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"runs in .* already; stop it, or .* dir="):
        RunFolder(tmp_path / "run").take()


def test_a_farm_on_another_host_keeps_it_while_it_answers(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").take()
    with socket.create_server(("127.0.0.1", 0)) as there:
        endpoint = f"tcp://127.0.0.1:{there.getsockname()[1]}"
        left_by(tmp_path / "run", "another-host", 1, endpoint)
        with pytest.raises(Unavailable, match="a farm on another-host runs in"):
            RunFolder(tmp_path / "run").take()
    RunFolder(tmp_path / "run").take()


class Double(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 2}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> object:
        return 2 * inputs["x"]


def test_a_taken_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    first = Farm([], Settings(port=0, dir=tmp_path), objects={"Double": Double()})
    with running(first) as connection:
        mine = (tmp_path / "farm.json").read_text()
        # A running process: this one's parent stands for another farm's.
        taken = mine.replace(f'"pid": {connection.pid}', '"pid": 1')
        (tmp_path / "farm.json").write_text(taken)
        second = Farm([], Settings(port=0, dir=tmp_path), objects={"Double": Double()})
        with pytest.raises(Unavailable, match=r"a farm \(process 1\) runs in"), running(second):
            pass
        assert (tmp_path / "farm.json").read_text() == taken


def test_a_folder_taken_from_another_machine_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        left = Connection(f"tcp://127.0.0.1:{port}", host="elsewhere", pid=os.getpid())
        write_connection(tmp_path / "farm.json", left)
        part = Farm([], Settings(dir=tmp_path), objects={"Double": Double()}, doors=False)
        with pytest.raises(Unavailable, match="a farm on elsewhere runs in"), running(part):
            pass
    with running(part) as connection:
        assert connection.pid == os.getpid()


def test_the_folder_of_a_farm_that_has_ended_is_free_before_its_parent_takes_note(
    tmp_path: Path,
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        left = Connection("tcp://x:1", host=socket.gethostname(), pid=ended.pid)
        write_connection(tmp_path / "farm.json", left)
        part = Farm([], Settings(dir=tmp_path), objects={"Double": Double()}, doors=False)
        with running(part) as connection:
            assert connection.pid == os.getpid()
