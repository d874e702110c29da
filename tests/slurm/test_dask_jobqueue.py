"""The Dask cluster of SLURM jobs in docs/dask.md, on a real SLURM."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.slurm.cluster import Cluster, wait_for

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "dask.md").read_text()
BEAM = re.search(r"`beam.py`.*?```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
JOBS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]


def test_the_jobs_of_dask_jobqueue_run_the_model(cluster: Cluster) -> None:
    folder = cluster.folder / "jobqueue"
    folder.mkdir()
    assert BEAM is not None
    (folder / "beam.py").write_text(BEAM[1])
    (folder / "page.py").write_text(JOBS)
    site = {"interface": "lo", "python": sys.executable, "local-directory": str(folder)}
    site["log-directory"] = str(folder / "logs")
    (folder / "site.yaml").write_text(json.dumps({"jobqueue": {"slurm": site}}))
    command = ["env", f"DASK_CONFIG={folder}", sys.executable, "page.py"]
    out = cluster.run(command, cwd=folder, timeout_s=100)
    assert len(out.splitlines()) == 3
    wait_for(lambda: not cluster.run(["squeue", "-h"]), "the jobs of the Dask cluster to end")
