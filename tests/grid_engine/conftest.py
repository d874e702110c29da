"""Fixtures of the tests that need Grid Engine, all of which have the marker `grid_engine`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grid_engine.cluster import GridCluster, GridFarm
from tests.slurm.elastic import ending


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/grid_engine/"):
            item.add_marker(pytest.mark.grid_engine)


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[GridCluster]:
    with GridCluster(Path(tempfile.mkdtemp(prefix="farm-grid-engine-"))).running() as cluster:
        yield cluster


@pytest.fixture
def cluster(session_cluster: GridCluster) -> Iterator[GridCluster]:
    """The session's cluster, restored after each test."""
    yield session_cluster
    session_cluster.reset()


@pytest.fixture
def farm(cluster: GridCluster, request: pytest.FixtureRequest) -> Iterator[GridFarm]:
    with ending(GridFarm(cluster, cluster.folder / request.node.name)) as farm:
        yield farm
