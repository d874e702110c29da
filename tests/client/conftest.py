"""A farm of two workers that all tests of the client share, and the official server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farm.client import Client, RemoteModel, connect
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.dispatcher_farm import Served, serving
from tests.support.scripted_lines import MODELS, in_farm
from tests.support.umbridge_models import official_server
from tests.transports import conftest as transports

road, both_roads, desk = transports.road, transports.both_roads, transports.desk

NAMES = ("Affine", "Beam", "Long", "Misfit", "Moody", "Once", "Plane", "Two")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("farm")
    (folder / "models.py").write_text(MODELS)
    specs = [f"models.py:{name}" for name in NAMES]
    with serving(folder, *specs, "--workers", "2") as farm:
        yield farm


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of `umbridge.serve_models`."""
    with official_server(tmp_path_factory.mktemp("official") / "log") as url:
        yield url


@pytest.fixture(params=["native", "http"])
def target(request: pytest.FixtureRequest, served: Served) -> str | Path:
    """Return a target of `connect`: a run folder, or a farm's URL."""
    return served.folder if request.param == "native" else served.connection.url


@pytest.fixture
def client(target: str | Path) -> Iterator[Client]:
    with connect(target) as client:
        # What an earlier test left running, or a worker that it killed, would delay this one.
        wait_until(lambda: in_farm(client) == 0 and len(client.status()["workers"]) == 2)
        yield client


@pytest.fixture
def moody(client: Client) -> RemoteModel:
    return client.model("moody")


SQUARE = """
import time
from pathlib import Path
import farm

class Square(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}
    version = "1"

    def evaluate(self, inputs, config):
        while inputs["x"][0] == 50.0 and not Path(__file__).with_name("go").exists():
            time.sleep(0.01)
        return inputs["x"] ** 2
"""


@pytest.fixture(params=["native", "http"])
def run_forker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Runs a program that forks: with a farm's target, whose model waits at 50 for a file `go`."""
    (tmp_path / "square.py").write_text(SQUARE)

    def run(program: str, *words: object) -> None:
        target = farm.folder if request.param == "native" else farm.connection.url
        command = [sys.executable, "-c", program, *map(str, (target, *words))]
        subprocess.run(command, check=True, timeout=3 * LIMIT_S)

    with serving(tmp_path, "square.py", "--workers", "2") as farm:
        yield run
