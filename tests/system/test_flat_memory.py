"""Memory of a farm's processes over many calls of one native client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

import farm
from tests.support.dispatcher_farm import serving

MODEL = """
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def twice(x):
    return 2.0 * x

twice.keeps_point = KEEPS_POINT
"""

MOST_MIB = 8.0
"""After the first calls. In a million calls that is 9 bytes a call, in 100,000 it is 84."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("keeps_point", "first", "more", "transport"),
    [
        pytest.param(False, 100_000, 900_000, "auto", id="a million calls in runs of rows"),
        pytest.param(True, 50_000, 100_000, "auto", id="calls one by one"),
        pytest.param(
            *(True, 50_000, 200_000, "zmq"), marks=pytest.mark.nightly, id="one by one by ZeroMQ"
        ),
    ],
)
def test_neither_front_door_nor_worker_nor_client_grows_with_the_calls(
    tmp_path: Path, keeps_point: bool, first: int, more: int, transport: str
) -> None:
    (tmp_path / "model.py").write_text(MODEL.replace("KEEPS_POINT", str(keeps_point)))
    options = ("model.py", "--transport", transport)
    with serving(tmp_path, *options) as served, farm.connect(served.folder) as client:
        model = client.model()
        worker = client.status()["workers"][0]["pid"]
        processes = [psutil.Process(pid) for pid in (served.process.pid, worker)]
        processes.append(psutil.Process())

        def run(count: int) -> list[float]:
            """Return the memory of each process in MiB after `count` more calls."""
            for x, y in enumerate(model.map([float(x)] for x in range(count))):
                assert y[0] == 2.0 * x
            return [process.memory_info().rss / 2**20 for process in processes]

        before = run(first)
        after = run(more)
        assert client.status()["done"] == first + more
    grown = dict(zip(["front door", "worker", "client"], np.subtract(after, before), strict=True))
    assert max(grown.values()) < MOST_MIB, f"grown by {grown} MiB over {more} calls"
