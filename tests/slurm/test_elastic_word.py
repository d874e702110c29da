"""`farm serve --slurm` where wrappers garble SLURM's answers, and its words mislead."""

from __future__ import annotations

import shutil

import pytest

from tests.slurm.cluster import wait_for
from tests.slurm.elastic import ONE_KIND, Elastic

SBATCH = """#!/bin/sh
echo "*** maintenance on 1 May ***"
echo
{sbatch} "$@"
echo "see you"
"""

SQUEUE = """#!/bin/sh
if [ -e {folder}/hangs ]; then exec sleep 600; fi
if [ -e {folder}/empty ]; then echo >> {folder}/empty; exit 0; fi
echo "*** maintenance on 1 May ***"
exec {squeue} "$@"
"""


@pytest.mark.timeout(240)
def test_a_sites_wrappers_cost_no_job(elastic: Elastic) -> None:
    site = elastic.folder / "site"
    site.mkdir()
    programs = {name: shutil.which(name) for name in ("sbatch", "squeue")}
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (site / name).write_text(text.format(folder=site, **programs))
        (site / name).chmod(0o755)
    elastic.serve(ONE_KIND.replace("max_jobs = 3", "min_jobs = 1\nmax_jobs = 2"), site=site)
    elastic.wait_for_workers(1)
    wait_for(lambda: elastic.events("started"), "the farm to take notice")
    before = elastic.jobs()
    (site / "empty").touch()
    with elastic.calling("double", 20, 0.5) as answers:
        elastic.wait_for_workers(2)
        assert answers() == [2.0 * n for n in range(20)]
    wait_for(lambda: (site / "empty").stat().st_size >= 3, "empty answers")
    assert set(before) < set(elastic.jobs()) | {job["id"] for job in jobs_of(elastic)}
    (site / "hangs").touch()
    wait_for(lambda: len(elastic.jobs()) == 1, "the job that is idle to be let go", 60)
    wait_for(lambda: len(jobs_of(elastic)) == 1, "word of that", 60)
    for kind in ("failed", "refused", "unsure"):
        assert elastic.events(kind) == []
    (site / "hangs").unlink()
    elastic.stop()
    assert elastic.jobs() == {}


def jobs_of(elastic: Elastic) -> list[dict[str, str]]:
    found: list[dict[str, str]] = elastic.status()["cluster"]["jobs"]
    return found


@pytest.mark.timeout(240)
def test_a_job_that_is_requeued_as_the_farm_stops_is_cancelled(elastic: Elastic) -> None:
    """SLURM reports it as COMPLETING, as it does jobs that end, and would start it again."""
    elastic.serve(ONE_KIND.replace("max_jobs = 3", "min_jobs = 2\nmax_jobs = 2"))
    elastic.wait_for_workers(2)
    wait_for(lambda: len(elastic.events("started")) == 2, "the farm to take notice")
    for job in elastic.jobs():
        elastic.run("scontrol", "requeue", job)
    elastic.stop()
    assert elastic.run("squeue", "-h", "-t", "PD,R,S,CF", "-o", "%i %T") == ""
