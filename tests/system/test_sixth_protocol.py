"""A protocol in another package, installed from its wheel, works as server and as client."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest

import farm
from tests.support.dispatcher_farm import LIMIT_S, run_farm, run_here, serving
from tests.support.wheel import installed, wheel_of

LINE = Path(__file__).parents[2] / "examples" / "line_protocol"
MODEL = """
import farm

@farm.model(inputs={"x": 2, "y": 1}, outputs={"z": 2})
def shifted(x, y):
    return x + y
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return installed(wheel_of(LINE, folder), folder / "packages")


@pytest.fixture
def folder(tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a model, for processes that have the package."""
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(packages), *([before] if before else [])])
    )
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=LIMIT_S)


def asked(address: str, *lines: str) -> list[str]:
    """Return the answer to a client of the protocol."""
    with connected(address) as connection:
        connection.sendall("".join(f"{line}\n" for line in lines).encode())
        with connection.makefile("r") as answers:
            return [answers.readline().strip() for _ in lines]


@pytest.mark.slow
def test_a_model_is_called_through_it(folder: Path) -> None:
    with serving(folder, "model.py", "--line", "127.0.0.1:0") as served:
        address = served.connection.addresses["line"]
        assert asked(address, "shifted", "shifted 1 2 0.5", "shifted 1", "other 1") == [
            "2 1 -> 2",
            "1.5 2.5",
            "error: shifted takes 3 numbers, got 1",
            "error: there is no model 'other'; the models are shifted",
        ]
        status, output, errors = served.stop()
    assert (status, errors) == (0, "farm stops; Ctrl-C again to hurry\n")
    assert f"models for clients that send lines at {address}\n" in output


@pytest.mark.slow
def test_a_farm_ends_at_once_although_an_idle_client_is_connected(folder: Path) -> None:
    """The grace period is for calls that run."""
    with (
        serving(folder, "model.py", "--line", "127.0.0.1:0", "--grace", "1000") as served,
        connected(served.connection.addresses["line"]) as connection,
    ):
        connection.sendall(b"shifted\n")
        assert connection.recv(100) == b"2 1 -> 2\n"
        assert served.stop()[0] == 0


@pytest.mark.slow
def test_its_servers_are_models_by_their_url(folder: Path) -> None:
    behind = folder / "behind"
    behind.mkdir()
    with serving(folder, "model.py", "--line", "127.0.0.1:0") as served:
        url = f"line://{served.connection.addresses['line']}"
        with serving(behind, f"shifted@{url}") as front, farm.connect(front.folder) as client:
            model = client.model("shifted")
            assert np.ravel(model([[1.0, 2.0], [0.25]])).tolist() == [1.25, 2.25]


def test_its_options_are_in_the_help_the_settings_file_and_the_errors(folder: Path) -> None:
    (folder / "farm.toml").write_text('line = "0.0.0.0:0"\n')

    assert "--line HOST:PORT" in run_farm("serve", "--help", cwd=folder)[1]
    words = ("serve", "model.py", "--config", "farm.toml", "--port", "0")
    status, _, errors = run_farm(*words, cwd=folder)
    assert status == 2
    assert "line is '0.0.0.0:0': anyone who reaches that address may call the models" in errors


def test_without_the_package_nothing_is_different(tmp_path: Path) -> None:
    status, _, errors = run_here("serve", "line://127.0.0.1:1", "--line", "x", cwd=tmp_path)
    assert status == 2
    assert "No such option '--line'" in errors or "No such option: --line" in errors
