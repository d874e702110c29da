"""Fixtures for tests of several transports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dask_cluster import MODELS, Cluster, dask_cluster
from tests.support.scripted_peers import Desk, Farm


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A Dask cluster without workers; the models of `MODELS` are square.py in its folder."""
    (tmp_path / "square.py").write_text(MODELS)
    with dask_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture(params=["stream", pytest.param("zmq", marks=pytest.mark.slow)])
def road(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """The folder where the local stream listens; None: the test runs over ZeroMQ."""
    return tmp_path if request.param == "stream" else None


@pytest.fixture
def both_roads(road: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Farm` of tests.support.scripted_peers listens for the local stream, and then over ZeroMQ."""
    monkeypatch.setattr(Farm, "folder", road)


@pytest.fixture
def desk(road: Path | None) -> Iterator[Desk]:
    """A dispatcher's end that the test scripts."""
    desk = Desk(road)
    yield desk
    desk.close()
