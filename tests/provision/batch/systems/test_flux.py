"""Flux: what its commands print, as recorded from flux-core 0.88.0, and its job scripts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.system import Stand
from farm.provision.batch.systems.flux import Flux, parse_jobs, row_of, words_of
from farm.settings import SettingsError
from tests.provision.batch.systems.conftest import assert_whole, directives

RECORDED = (Path(__file__).parent / "recorded" / "flux_jobs.json").read_text()
BANNER = "*** maintenance tonight ***\n"


def test_recorded_jobs() -> None:
    listing = parse_jobs(f"{BANNER}{RECORDED}{BANNER}")
    assert listing.problem == ""
    found = [(row.id, row.state, row.reason, row.needs_action) for row in listing.rows]
    assert found[:8] == [
        ("fEbLgkyTu", "SCHED", "", False),
        ("fEbQX97jd", "SCHED", "", False),
        ("fEbtV3a2s", "SCHED", "", False),
        ("fEbxKRiJb", "SCHED", "", False),
        ("fEc28KsHy", "SCHED", "", False),
        ("fEbi4Ad4B", "SCHED", "held: its urgency is 0", True),
        ("fEboJ65ps", "DEPEND", "depends on after-success=ƒEbGGH7iF", False),
        ("fEbGGH7iF", "RUN", "", False),
    ]
    assert {row.in_words: row.crashed for row in listing.rows[8:]} == {
        "COMPLETED": False,
        "TIMEOUT (timeout resource allocation expired)": False,
        "FAILED (exit code 3)": True,
        "FAILED (exit code 139)": True,
        "CANCELED (cancel)": False,
        "FAILED (alloc unsatisfiable request: need 9 node(s) with 1 cores each, only 4 eligible)": (
            True
        ),
    }
    assert listing.rows[7].nodes == "farmbox,farmbox"
    starts = [row.starts_at for row in listing.rows]
    assert starts == [1795540159.7977953] + [None] * 14, "the scheduler estimates one start"
    assert listing.rows[5].name == 'häld "x"|y'
    assert [row.stand for row in listing.rows[6:9]] == [Stand.PENDING, Stand.RUNNING, Stand.ENDED]


JOB: dict[str, Any] = {"jobid": "ƒA", "name": "x", "state": "RUN", "status": "RUN", "userid": 0}


@pytest.mark.parametrize(
    ("text", "problem", "rows"),
    [
        ('{"jobs": []}\n', "", 0),
        ("", "flux jobs printed no list of jobs, but ''", 0),
        (BANNER, "flux jobs printed no list", 0),
        (RECORDED[:-20], "flux jobs printed no list", 0),
        ('{"jobs": 7}\n', "a job that cannot be read (no jobid): 'null'", 0),
        ('{"jobs": ["x"]}\n', "(no jobid): '\"x\"'", 0),
        (json.dumps({"jobs": [JOB, {**JOB, "state": "NEW"}]}), "job 'ƒA' in state 'NEW'", 1),
        (json.dumps({"jobs": [JOB, {**JOB, "jobid": "7"}]}), "job '7' in state 'RUN'", 1),
        (json.dumps({"jobs": [JOB, {"jobid": "ƒA"}]}), "(no name)", 1),
    ],
)
def test_a_list_counts_as_whole_only_if_all_of_it_can_be_read(
    text: str, problem: str, rows: int
) -> None:
    assert_whole(parse_jobs(text), problem, rows)


def test_lost_nodes_and_reasons_of_the_scheduler() -> None:
    lost = {"occurred": True, "type": "node-failure", "note": "lost contact with job shell"}
    row = row_of({**JOB, "state": "INACTIVE", "status": "FAILED", "exception": lost})
    assert (row.crashed, row.taken) == (False, True)
    assert row.reason == "node-failure lost contact with job shell"
    annotations = {"sched": {"reason_pending": "no cores"}}
    row = row_of({**JOB, "state": "SCHED", "status": "SCHED", "annotations": annotations})
    assert row.in_words == "SCHED (no cores)"
    assert row_of({**JOB, "state": "CLEANUP", "status": "CLEANUP"}).stand is Stand.COMPLETING


def test_a_job_asks_for_what_its_kind_needs() -> None:
    lines = directives(
        Flux,
        queue="q",
        account="b1",
        time="90",
        cpus=2,
        workers=4,
        gpus=2,
        nodes=3,
        options=["-o x='y z'"],
    )
    assert words_of("\n".join(["#!/bin/bash", *lines, "echo"])) == [
        *("--job-name=farm-1-small+ab", "--output=/run dir/jobs/{{id.f58plain}}.out"),
        *("--cwd=/home me", "--queue=q", "--bank=b1", "--time-limit=5400s", "--nodes=3"),
        *("--ntasks=3", "--cores-per-task=16", "--gpus-per-task=2", "-o", "x=y z"),
    ]


def test_flux_starts_the_ranks() -> None:
    lines = directives(Flux, ranks=8, workers=2, cpus=3, nodes=4, gpus=4)
    wanted = {"nodes=4", "ntasks=16", "cores-per-task=3", "gpus-per-task=1"}
    assert {f"#flux: --{option}" for option in wanted} <= set(lines)
    with pytest.raises(SettingsError, match="gpus is 3: expected a number that 16 ranks on 4"):
        directives(Flux, ranks=8, workers=2, nodes=4, gpus=3)


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@pytest.mark.parametrize("job_id", ["ƒAbf", "ƒff", "fff", "fAb"])
def test_a_job_knows_its_id_in_ascii(job_id: str, locale: str) -> None:
    kind = WorkerKind(name="small", models=["m.py"])
    told = subprocess.run(
        ["bash", "-c", "\n".join([*Flux.preamble(kind), "echo $FARM_JOB"])],
        env={"PATH": "/usr/bin:/bin", "FLUX_JOB_ID": job_id, "LC_ALL": locale},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.strip() == "f" + job_id[1:]
