"""A run folder belongs to one running farm; that of one that has ended is free."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.server.run_folder import take_folder
from farm.transports.connection import Connection, write_connection


def left_by(folder: Path, host: str, pid: int, endpoint: str = "") -> Path:
    file = folder / "farm.json"
    write_connection(file, Connection(endpoint, host=host, pid=pid))
    return file


def test_a_new_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    take_folder(tmp_path / "run", tmp_path / "run" / "farm.json")
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


def test_one_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"run folder .*file/run cannot be made"):
        take_folder(tmp_path / "file" / "run", tmp_path / "file" / "run" / "farm.json")


def test_a_running_farm_keeps_its_folder(tmp_path: Path) -> None:
    take_folder(tmp_path / "run", tmp_path / "run" / "farm.json")
    file = left_by(tmp_path / "run", socket.gethostname(), os.getppid(), "tcp://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"runs in .* already; stop it, or .* dir="):
        take_folder(tmp_path / "run", file)


def test_a_farm_on_another_host_keeps_it_while_it_answers(tmp_path: Path) -> None:
    take_folder(tmp_path / "run", tmp_path / "run" / "farm.json")
    with socket.create_server(("127.0.0.1", 0)) as there:
        endpoint = f"tcp://127.0.0.1:{there.getsockname()[1]}"
        file = left_by(tmp_path / "run", "another-host", 1, endpoint)
        with pytest.raises(Unavailable, match="a farm on another-host runs in"):
            take_folder(tmp_path / "run", file)
    take_folder(tmp_path / "run", file)
