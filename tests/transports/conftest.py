"""What tests of several transports need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dask_cluster import MODELS, Cluster, dask_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A Dask cluster without workers; the models of `MODELS` are square.py in its folder."""
    (tmp_path / "square.py").write_text(MODELS)
    with dask_cluster(tmp_path) as cluster:
        yield cluster
