"""`farm stop`: real farms end in order, and the command says when."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.cli import run
from farm.errors import Unavailable
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings
from farm.transports.connection import Connection, read_connection, write_connection
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM, LIMIT_S, Served, farm_command, farm_of
from tests.support.supervised_farm import supervised

served = farm_of(BEAM, scope="function")


def test_a_farm_ends_in_order(capsys: pytest.CaptureFixture[str], served: Served) -> None:
    assert run(["stop", served.connection.url]) == 0
    out, errors = capsys.readouterr()
    assert out == ""
    first, last = errors.splitlines()
    assert f"(process {served.process.pid} on " in first
    assert first.endswith("1 worker ends")
    assert last.startswith("ended after ")
    assert served.process.wait(LIMIT_S) == 0
    with pytest.raises(Unavailable, match="no connection file"):
        read_connection(served.folder)


def test_a_running_call_is_waited_for_and_killed_by_now(
    capsys: pytest.CaptureFixture[str], served: Served, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    config = f'{{"sleep": 600, "begun": "{begun}"}}'
    words = ("call", "1,2,4", "8", "--config", config, "--to", "run", "--wait", "2")
    with farm_command(*words, cwd=tmp_path) as caller:
        wait_until(begun.exists, LIMIT_S)
        assert run(["stop", str(served.folder), "--timeout", "0"]) == 7
        _, errors = capsys.readouterr()
        assert "1 running calls get 30 s" in errors
        assert f"to hurry it: farm stop --now {served.folder}" in errors
        assert served.process.poll() is None
        assert run(["stop", str(served.folder), "--now"]) == 0
        assert "1 running calls are killed" in capsys.readouterr().err
        assert served.process.wait(LIMIT_S) == 0
        caller.communicate(timeout=LIMIT_S)
        assert caller.returncode == 6


def test_a_supervised_farm_ends_with_its_keeper(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    with supervised(tmp_path, "beam.py") as farm:
        pid = farm.up().pid
        assert run(["stop", str(farm.folder)]) == 0
        assert f"(process {pid} and {farm.keeper.pid} on " in capsys.readouterr().err
        assert farm.keeper.wait(LIMIT_S) == 0
        assert "started again" not in farm.errors.read_text()


def test_the_farm_of_another_program_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with running(Farm([], Settings(port=0, dir=tmp_path / "run", workers=0), doors=False)):
        assert run(["stop", str(tmp_path / "run")]) == 2
    assert "end the program that started it" in capsys.readouterr().err


def test_a_farm_that_has_ended_is_unreachable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["stop", str(tmp_path)]) == 6
    assert "no connection file" in capsys.readouterr().err
    write_connection(tmp_path / "farm.json", Connection("tcp://127.0.0.1:1", host="elsewhere"))
    assert run(["stop", str(tmp_path)]) == 6
    assert "kill" not in capsys.readouterr().err
