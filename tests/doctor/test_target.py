"""The doctor says why a farm does not answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from farm.doctor import target
from farm.doctor.finding import Finding, Weight
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings
from farm.transports.connection import Connection, write_connection

HERE = socket.gethostname()


def only(findings: list[Finding]) -> tuple[Weight, str]:
    (found,) = findings
    return found.weight, found.text


def test_no_farm_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FARM_CONNECTION", "FARM_URL"):
        monkeypatch.delenv(name, raising=False)
    assert only(target.answers(None))[0] is Weight.OK
    weight, text = only(target.answers("nosuch"))
    assert (weight, text) == (Weight.WRONG, "there is no nosuch")


def test_a_farm_that_answers_without_a_worker(tmp_path: Path) -> None:
    with running(Farm([], Settings(port=0, dir=tmp_path / "run", workers=0), doors=False)):
        first, second = target.answers(str(tmp_path / "run"))
    assert (first.weight, "0 workers, 0 queued calls" in first.text) == (Weight.OK, True)
    assert (second.weight, "has no worker" in second.text) == (Weight.WARNING, True)


def test_the_batch_system_that_a_farm_uses(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert target.batch_system(str(folder)) == ""
    farm = Farm([], Settings(port=0, dir=folder, workers=0), doors=False)
    with running(farm):
        assert target.batch_system(str(folder)) == ""
        farm.dispatcher.add_part("cluster", lambda: {"system": "SLURM"})
        assert target.batch_system(str(folder)) == "SLURM"


def test_a_stale_connection_file(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = Connection("", local="gone", host=HERE, pid=ended.pid)
    write_connection(tmp_path / "farm.json", dead)
    weight, text = only(target.answers(str(tmp_path)))
    assert weight is Weight.WRONG
    assert f"stale connection file: process {ended.pid} on {HERE} has ended" in text


def test_a_process_that_lives_and_is_silent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("farm.client.client.ANSWER_S", 0.1)
    path = tmp_path / "silent"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        write_connection(
            tmp_path / "farm.json", Connection("", local="silent", host=HERE, pid=os.getpid())
        )
        (found,) = target.answers(str(tmp_path))
    assert found.weight is Weight.WRONG
    assert f"process {os.getpid()} on {HERE} lives but does not answer" in found.text
    assert f"kill {os.getpid()}" in found.remedy


def test_a_farm_of_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("farm.client.client.ANSWER_S", 0.1)
    there = Connection("", local="nosuch", host="elsewhere", pid=1)
    write_connection(tmp_path / "farm.json", there)
    (found,) = target.answers(str(tmp_path))
    assert "can only be reached from elsewhere" in found.text
    assert "--host 0.0.0.0" in found.remedy


def test_a_file_that_others_can_read(tmp_path: Path) -> None:
    write_connection(tmp_path / "farm.json", Connection("tcp://127.0.0.1:1"))
    (tmp_path / "farm.json").chmod(0o644)
    weight, text = only(target.answers(str(tmp_path)))
    assert (weight, "chmod 600" in text) == (Weight.WRONG, True)


def test_an_address_without_a_server() -> None:
    weight, text = only(target.answers("http://127.0.0.1:1"))
    assert (weight, "127.0.0.1:1" in text) == (Weight.WRONG, True)


def test_the_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(target, "PORT", other.getsockname()[1])
        assert only(target.port(None))[0] is Weight.WARNING
        mine = Connection("tcp://h:1", url=f"http://127.0.0.1:{target.PORT}", host=HERE)
        write_connection(tmp_path / "farm.json", replace(mine, pid=os.getpid()))
        assert only(target.port(str(tmp_path)))[0] is Weight.OK
    monkeypatch.setattr(target, "PORT", 0)  # another process could take any other
    assert only(target.port(None)) == (Weight.OK, "0 is free")


def test_the_folder_of_a_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FARM_CONNECTION", raising=False)
    monkeypatch.delenv("FARM_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    assert target.folder_of(None) == Path("farm-run")
    assert target.folder_of("http://h:1") == Path("farm-run")
    assert target.folder_of("run7") == Path("run7")
    assert target.folder_of("run7/farm.json") == Path("run7")
