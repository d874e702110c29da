"""Closed loops whose points are evaluated on the nodes of a real SLURM."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from farm.experiment.state.events import Told
from farm.experiment.state.journal import read_journal
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.elastic import FARM, TWO_NODES, Elastic
from tests.slurm.launched import Launched, write_files

CONFIG = """[common]
parnames = [x]
outcome_types = [continuous]
strategy_names = [sobol, random]
lb = [0]
ub = [1]
[sobol]
generator = SobolGenerator
min_asks = 10
[random]
generator = RandomGenerator
min_asks = 20
[farm]
model = double
config.sleep = 0.3
"""

DOUBLE = """
import time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def double(x, config):
    time.sleep(config["sleep"])
    return 2 * x
"""


def outcomes(journal: Path) -> list[Told]:
    return [event for event in read_journal(journal) if isinstance(event, Told)]


def test_in_one_job_on_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(DOUBLE)
    (tmp_path / "tune.ini").write_text(CONFIG)
    write_files(tmp_path)
    command = ("farm", "experiment", "run", "tune.ini", "--json")
    job = Launched(cluster, tmp_path, "-N2", "-n4", "farm.sh", "double.py", "--", *command)
    assert job.exit_code() == "0:0"
    text = job.output()
    found = re.search(r"^\{.*\}$", text, re.M)
    assert found is not None, text
    progress = json.loads(found[0])
    assert progress["places"] == 4
    told = outcomes(tmp_path / "tune.db")
    assert len(told) == progress["told"] >= 30
    assert all(event.outcomes.item() == 2 * event.points.item() for event in told)
    hosts = {str(event.extra["worker"]).partition("/")[0] for event in told}
    assert len(hosts) == 2 or not cluster.has_host_names


@pytest.mark.timeout(180)
def test_a_node_that_crashes_costs_no_point(elastic: Elastic) -> None:
    """The farm grows with demand; a node crashes during an evaluation; all is told once."""
    (elastic.folder / "tune.ini").write_text(
        CONFIG.replace("model = double", "model = double\nin_flight = 4")
    )
    elastic.serve(TWO_NODES)
    lost, _ = elastic.wait_for_workers(2)
    journal = elastic.folder / "tune.db"
    run = elastic.start(*FARM, "experiment", "run", "tune.ini", "--to", "run")
    try:
        wait_for(lambda: journal.exists() and len(outcomes(journal)) >= 5, "some outcomes")
        elastic.cluster.node("crash", lost["host"])
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
    finally:
        run.kill()
        run.communicate()
    told = outcomes(journal)
    ids = [event.ids[0] for event in told]
    assert sorted(i for i in ids if i is not None) == list(range(len(told)))
    assert len(told) >= 30
    assert all(event.outcomes.item() == 2 * event.points.item() for event in told)
    assert elastic.events("lost")
    elastic.stop()
