"""Fixtures of the tests that need SLURM, all of which have the marker `slurm`.

One cluster serves the whole session; it is restored before each test.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.elastic import Elastic, elastic_on


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/slurm/"):
            item.add_marker(pytest.mark.slurm)


@contextlib.contextmanager
def cluster_with(**settings: str) -> Iterator[Cluster]:
    """Run a separate cluster for the block."""
    state = Path(tempfile.mkdtemp(prefix="farm-slurm-"))
    with Cluster(state, **settings).running() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Cluster]:
    with cluster_with() as cluster:
        yield cluster


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster; all hosts share this machine's network."""
    yield session_cluster
    session_cluster.reset()


@pytest.fixture(scope="session")
def session_netns_cluster() -> Iterator[Cluster]:
    with cluster_with(net="netns") as cluster:
        yield cluster


@pytest.fixture
def netns_cluster(session_netns_cluster: Cluster) -> Iterator[Cluster]:
    """A second cluster, where each host has its own address and 127.0.0.1, like real ones."""
    yield session_netns_cluster
    session_netns_cluster.reset()


@pytest.fixture
def elastic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Elastic]:
    with elastic_on(cluster, request.node.name) as farm:
        yield farm
