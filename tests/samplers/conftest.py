"""A farm that the tests of samplers share; all tests here have the marker `samplers`.

The samplers are in an environment of their own: `make test-samplers`, and `make test-clients` for
the tests that also have the marker `clients`. Elsewhere these files are not even collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import farm
from farm.client import Client
from farm.client.remote import RemoteModel
from tests.samplers.target import MODELS, Calls, Served
from tests.support.dispatcher_farm import serving

WORKERS = 2

collect_ignore_glob = [] if find_spec("dynesty") else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/samplers/"):
            item.add_marker(pytest.mark.samplers)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("farm")
    (folder / "models.py").write_text(MODELS)
    models = ("models.py:Posterior", "models.py:Forward")
    with serving(folder, *models, "--workers", str(WORKERS)) as process:
        process.wait_for_workers(WORKERS)
        url = process.connection.url
        with farm.connect(process.folder) as client:
            yield Served(process.folder, url, client, WORKERS, folder / "calls.log")


@pytest.fixture
def client(served: Served) -> Client:
    return served.client


@pytest.fixture
def posterior(client: Client) -> RemoteModel:
    """The log of a normal density, with its gradient."""
    return client.model("posterior")


@pytest.fixture
def forward(client: Client) -> RemoteModel:
    """A linear model, whose posterior is normal: `target.linear_posterior`."""
    return client.model("forward")


@pytest.fixture
def calls(served: Served) -> Calls:
    """Return the log of the evaluations that this test causes."""
    return Calls(served.log)


@pytest.fixture
def here(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder in which `farm.connect()` finds the farm."""
    (tmp_path / "farm-run").symlink_to(served.folder)
    monkeypatch.chdir(tmp_path)
    for name in ("FARM_CONNECTION", "FARM_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
