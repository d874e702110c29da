"""The commands of docs/dask.md run as shown, on a scheduler and workers of Dask on this machine."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

import farm
from tests.support.dask_cluster import dask_cluster
from tests.support.running_farm import wait_until
from tests.support.shown_lines import (
    LIMIT_S,
    POINT,
    changed,
    going,
    lines,
    shell_blocks,
    terminal_in,
)
from tests.test_readme import TIP

CLUSTER, GPUS = map(lines, shell_blocks("docs/dask.md"))
NET = """
import os
import farm

@farm.model(inputs={"x": 1}, outputs={"device": 1})
def net(x):
    return float(os.environ["CUDA_VISIBLE_DEVICES"])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands(tmp_path: Path) -> None:
    terminal = terminal_in(tmp_path / "work")
    (terminal.folder / "net.py").write_text(NET)
    run = terminal.folder / "farm-run"
    by_address, by_file, sweep = CLUSTER
    *workers, with_gpus = GPUS
    with dask_cluster(terminal.folder) as cluster:
        there = ("tcp://node1:8786", cluster.address)
        first = cluster.add_worker()
        for line in (changed(by_address, there), by_file):
            with going(terminal, line), farm.connect(run, wait=LIMIT_S) as client:
                assert abs(client.model("Beam")(POINT)[0] / TIP - 1.0) < 1e-12
        terminal.type(sweep)
        with h5py.File(terminal.folder / "s.h5") as file:
            assert file["status"][:].tolist() == [1] * 100
        first.kill()
        assert len(workers) == 2
        with (
            going(terminal, changed(workers[0], there)),
            going(terminal, changed(workers[1], there)),
            going(terminal, changed(with_gpus, there)),
            farm.connect(run, wait=LIMIT_S) as client,
        ):
            net = client.model("net")
            found: set[float] = set()

            def both() -> bool:
                found.update(float(value[0]) for value in net.map([[1.0]] * 8))
                return found == {0.0, 1.0}

            wait_until(both, "calls on both devices")
