"""Farms and clients in several processes: why calls wait, who uses the farm, how long it takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import farm
from farm.cli import run
from farm.client import Client
from farm.monitoring import progress as progress_module
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings
from tests.provision.batch.test_elastic import Site
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import LIMIT_S, serving
from tests.support.scenes import sweeping

MODEL = """
import os, time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def gate(x):
    while x[0] >= 1 and not os.path.exists("open"):
        time.sleep(0.002)
    return x
"""


def sweeps(client: Client) -> list[dict[str, Any]]:
    return [row for row in client.progress() if row["kind"] == "sweep"]


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False])
def test_a_chain_waits_behind_a_sweep_in_another_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], native: bool
) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    with serving(tmp_path, "m.py", "--workers", "2") as served:
        served.wait_for_workers(2)
        target = str(served.folder) if native else served.connection.url
        with (
            sweeping(tmp_path, target) as process,
            farm.connect(target, client="sampler", chain="3") as client,
        ):
            wait_until(lambda: any(row["in_flight"] == 2 for row in client.status()["queues"]))
            wait_until(lambda: sweeps(client))
            (row,) = sweeps(client)
            assert (row["name"], row["done"], row["total"]) == ("survey", 0, 60)
            sweep = row["client"]
            mine = client.model().submit([0.0])
            wait_until(lambda: client.why()["phase"] == "queued")
            found = client.why()
            assert found["position"] == 1
            assert found["workers"]["running"] == {sweep: 2}
            clients = {row["client"]: row for row in client.clients()}
            assert set(clients) == {sweep, "sampler"}
            assert (clients[sweep]["running"], clients[sweep]["callers"]) == (2, 1)
            assert clients[sweep]["share"] == 1.0
            assert clients["sampler"]["queued"] == 1
            assert run(["status", "--why", sweep, "--to", target]) == 0
            assert "1 of 'sampler' (it holds fewer workers per caller)" in capsys.readouterr().out
            (tmp_path / "open").touch()
            assert mine.result(LIMIT_S)[0] == 0.0
            assert process.wait(LIMIT_S) == 0
            wait_until(lambda: sweeps(client)[0]["state"] == "complete")
            (row,) = sweeps(client)
            assert (row["done"], row["failed"], row["ends_in_s"]) == (60, 0, None)
            assert run(["status", "--to", target]) == 0
            assert "complete" in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_that_is_killed_disappears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "SILENT_S", 4.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODEL)
    settings = Settings(port=0, workers=1, dir=tmp_path / "run")
    with (
        running(Farm([str(tmp_path / "m.py")], settings)),
        farm.connect(tmp_path / "run") as client,
    ):
        with sweeping(tmp_path, tmp_path / "run") as process:
            wait_until(lambda: sweeps(client))
            process.kill()
        wait_until(lambda: sweeps(client) == [])
        wait_until(lambda: all(row["queued"] == 0 for row in client.clients()))
        (tmp_path / "open").touch()


@pytest.mark.slow
def test_the_owner_cancels_what_a_sweep_has_in_the_queue(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    with serving(tmp_path, "m.py", "--workers", "1") as served:
        served.wait_for_workers(1)
        with (
            sweeping(tmp_path, served.folder) as process,
            farm.connect(served.folder, client="sampler") as client,
        ):
            wait_until(lambda: any(row["queued"] == 19 for row in client.clients()))
            (sweep,) = (row["client"] for row in client.clients())
            assert client.cancel_calls(sweep) == 19
            (tmp_path / "open").touch()
            assert process.wait(LIMIT_S) == 1  # some points failed
            wait_until(lambda: sweeps(client)[0]["state"] == "complete")
            (row,) = sweeps(client)
            assert (row["done"], row["failed"]) == (41, 19)


def test_a_full_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path)
    monkeypatch.setenv("PATH", f"{site.commands}:{os.environ['PATH']}")
    site.change(
        "sbatch",
        'echo RUNNING > "$0.state"',
        f"""
    while [ ! -e "{tmp_path}/nodes" ]; do sleep 0.05; done; echo RUNNING > "$0.state\"""",
    )
    site.change("squeue", "|None|N/A|end", "|Resources|2125-11-25T08:00:00|end")
    (tmp_path / "double.py").write_text((tmp_path / "double.py").read_text().partition("\n")[2])
    with site.farm(max_jobs=1) as client:
        with farm.connect(tmp_path / "run", client="me", wait=LIMIT_S) as mine:
            call = mine.model().submit([2.0])
            wait_until(lambda: [job["state"] for job in mine.why()["jobs"]] == ["PENDING"])
            found = mine.why()
            (job,) = found["jobs"]
            assert (job["reason"], job["phase"]) == ("Resources", "pending")
            assert job["starts_at"] > 4e9
            assert found["workers"]["count"] == 0
            assert run(["status", "--why", "me", "--to", str(tmp_path / "run")]) == 0
            out = capsys.readouterr().out
            assert "is pending (PENDING Resources), expected to start 2125-11-25 08:00" in out
            assert "has 1 of at most 1 jobs" in out
            (tmp_path / "nodes").touch()
            assert call.result(LIMIT_S)[0] == 4.0
        wait_until(lambda: client.why("me")["phase"] is None)
