"""The last tutorial, docs/tutorials/cluster.md: both studies of the lessons before, in jobs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import h5py
import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.launched import ENDED
from tests.support.shown_blocks import blocks
from tests.support.time_limits import scaled

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
STEPS, FEWER = "(16, 2)), 120)", "(16, 2)), 20)"
"""Steps of the chain: as shown, and as here, where the posterior itself is of no interest."""


@pytest.mark.timeout(300)
def test_the_studies_of_the_tutorials_run_in_jobs(cluster: Cluster, tmp_path: Path) -> None:
    for lesson in ("simulator", "posterior"):
        for block in blocks((TUTORIALS / f"{lesson}.md").read_text()):
            if block.title not in ("", "prints"):
                text = block.text.replace(STEPS, FEWER).replace("discard=40", "discard=5")
                (tmp_path / block.title).write_text(text)
    assert FEWER in (tmp_path / "posterior.py").read_text()
    path = f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"
    variables = ["env", f"PATH={path}", f"XDG_CACHE_HOME={tmp_path / 'cache'}"]
    page = blocks((TUTORIALS / "cluster.md").read_text())
    compiled, swept, sampled = (b.text for b in page if b.note == "run in tests/slurm")

    def run(text: str) -> str:
        command = [*variables, "bash", "-euc", text]
        return cluster.run(command, cwd=tmp_path, timeout_s=scaled(60))

    swept = swept.replace("sobol:128", "sobol:32")
    run(compiled)
    for text in (swept, sampled):
        submitted = re.fullmatch(r"Submitted batch job (\d+)\n", run(text))
        assert submitted is not None
        ended = cluster.wait_for_job(submitted[1], *ENDED, limit_s=scaled(120))
        outputs = [file.read_text() for file in tmp_path.glob(f"*{submitted[1]}.out")]
        assert ended["ExitCode"] == "0:0", outputs
    with h5py.File(tmp_path / "cluster.h5") as file:
        assert file["status"][:].tolist() == [1] * 32
    assert re.search(r"conductivity [\d.]+ \+- [\d.]+", outputs[0])
