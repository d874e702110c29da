"""`farm serve` keeps its run folder and its output private from other users."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dispatcher_farm import BEAM, FARM, LIMIT_S, environment, run_farm, serving

MODES = {True: 0o700, False: 0o600}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beam.py").write_text(BEAM)
    return tmp_path


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Set a umask that lets others read and write new files."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def ask_for_a_point(address: str) -> None:
    """Make the server write the experiments' journal."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as client:
        client.sendall(b'{"type": "setup", "message": {"config_str": "[common]"}}')
        assert client.recv(4096)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("existing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nothing_in_the_run_folder_is_for_others(folder: Path, existing: bool) -> None:
    if existing:  # the user or an earlier farm made it
        (folder / "run" / "logs").mkdir(parents=True)
        (folder / "run" / "logs" / "old.log").write_text("x")
    options = ("--aepsych", "127.0.0.1:0", "--mip", "unix:run/farm.mip")
    with serving(folder, "beam.py", *options) as served:
        ask_for_a_point(served.connection.addresses["aepsych"])
        paths = [folder / "run", *(folder / "run").rglob("*")]
        names = {path.name for path in paths}
        assert {"farm.json", "experiments.db", "experiments.db.lock", "farm.mip"} <= names
        assert any(name.endswith(".log") for name in names)
        wrong = {
            str(path): oct(path.stat().st_mode & 0o777)
            for path in paths
            if path.stat().st_mode & 0o777 != MODES[path.is_dir()]
        }
        assert wrong == {}


def test_a_shared_folder_is_no_run_folder(folder: Path) -> None:
    folder.chmod(0o755)
    status, out, errors = run_farm("serve", "beam.py", "--port", "0", "--dir", ".", cwd=folder)
    assert (status, out) == (2, "")
    assert "has 'beam.py' in it (mode 755, expected 700)" in errors
    assert "chmod 700 ." in errors


@pytest.mark.slow
def test_no_token_is_written_into_a_file(folder: Path) -> None:
    with serving(folder, "beam.py", "--host", "0.0.0.0") as served:
        token = served.connection.token
        status, url, _ = run_farm("url", "run", cwd=folder)
        _, out, errors = served.stop()
    assert token not in out + errors
    assert f"clients elsewhere: farm url {folder / 'run'}\n" in out
    assert status == 0
    assert url == f"http://farm:{token}@{served.connection.url.removeprefix('http://')}\n"


def test_a_terminal_shows_it(folder: Path) -> None:
    shown, terminal = pty.openpty()
    command = [*FARM, "serve", "beam.py", "--port", "0", "--host", "0.0.0.0", "--dir", "run"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=terminal, stderr=subprocess.PIPE
    ) as process:
        os.close(terminal)
        try:
            text = b""
            while b"clients elsewhere: " not in text or not text.endswith(b"\n"):
                text += os.read(shown, 4096)
        finally:
            process.terminate()
            process.communicate(timeout=LIMIT_S)
            os.close(shown)
    assert b"clients elsewhere: http://farm:" in text
