"""A farm whose jobs wait in a full partition: page, terminal and Python say what for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import farm
from tests.slurm.cluster import wait_for
from tests.slurm.elastic import FARM, MODEL, ONE_KIND, Elastic
from tests.support.browser import chromium


def address(elastic: Elastic) -> str:
    """Return the farm's address with its token; all hosts share this machine's network."""
    url = urlsplit(elastic.run(*FARM, "url", "run").strip())
    return f"http://{url.username}:{url.password}@127.0.0.1:{url.port}"


@pytest.mark.timeout(240)
@pytest.mark.skipif(shutil.which("chromedriver") is None, reason="the page needs chromium-driver")
def test_a_full_partition(elastic: Elastic, tmp_path: Path) -> None:
    """Other people's job has all nodes of the partition."""
    (elastic.folder / "double.py").write_text(MODEL.format(name="double", factor=2))
    words = ("-N4", "--exclusive", "--partition=cpu", "--time=30", "--wrap", "sleep 1800")
    other = elastic.cluster.sbatch(*words)
    elastic.cluster.wait_for_job(other, "RUNNING")
    elastic.serve(ONE_KIND)
    here = address(elastic)
    with (
        farm.connect(here, client="me") as client,
        chromium(tmp_path / "profile") as browser,
    ):
        call = client.model("double").submit([3.0])
        wait_for(lambda: any(job["starts_at"] for job in client.why()["jobs"]), "SLURM's word")
        found = client.why()
        (job,) = found["jobs"]
        assert (job["state"], job["reason"], found["workers"]["count"]) == (
            "PENDING",
            "Resources",
            0,
        )
        stand = "pending (PENDING Resources), expected to start "
        why = f"SLURM job {job['id']} of kind 'small' is {stand}"
        assert any(line.startswith(why) for line in found["why"])

        browser.show_as(1120, 900)
        browser.open(here)
        browser.until_text("#notices", "1 job waits in the queue: Resources")
        browser.until_text("#notices", "no worker serves model 'double' now")
        browser.click("#waits-table tbody button")
        assert why in browser.until_text("#why-answer", why)
        row = browser.text("#jobs-table tbody tr")
        assert all(part in row for part in (job["id"], "small", "PENDING Resources"))
        assert browser.complaints() == []

        assert why in elastic.run(*FARM, "status", "--why", "me", "--to", "run")
        told = " ".join(elastic.run(*FARM, "status", "--to", "run").split())
        assert "small pending PENDING Resources, expected " in told
        assert "Resources" in elastic.run(*FARM, "top", "run")
        past = elastic.run(*FARM, "status", "--since", "10m", "--to", "run")
        assert f"submitted job {job['id']}: small" in past
        state = json.loads(elastic.run(*FARM, "status", "--json", "--to", "run"))
        assert [row["client"] for row in state["clients"]] == ["me"]

        elastic.run("scancel", other)
        assert call.result(60)[0] == 6.0
    elastic.stop()
    assert elastic.jobs() == {}
