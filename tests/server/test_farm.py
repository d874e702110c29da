"""A complete farm: the order of its start, its refusals, and that nothing stays behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import urllib3

import farm
from farm.errors import Unavailable
from farm.model import Inputs
from farm.policies import ModelPolicy
from farm.provision.local.supervisor import WorkersFailed
from farm.server.farm import Farm, running
from farm.settings import Settings, SettingsError, read_settings
from farm.transports.connection import read_connection
from tests.support.batch_jobs import JOBS
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM, LIMIT_S


class Double(farm.Model):
    inputs = {"x": 2}  # as users write it
    outputs = {"y": 2}

    def evaluate(self, inputs: Inputs, config: farm.Config) -> object:
        return 2 * inputs["x"]


def evaluate(url: str, headers: dict[str, str] | None = None) -> tuple[int, object]:
    answer = urllib3.request(
        "POST",
        f"{url}/Evaluate",
        json={"name": "Double", "input": [[1, 2]]},
        headers=headers,
        timeout=LIMIT_S,
        retries=False,
    )
    return answer.status, answer.json()


def test_objects_are_served_by_threads_and_the_file_goes_with_the_farm(tmp_path: Path) -> None:
    settings = Settings(port=0, dir=tmp_path)
    with running(Farm([], settings, objects={"Double": Double()})) as connection:
        assert evaluate(connection.url) == (200, {"output": [[2.0, 4.0]]})
        assert read_connection(tmp_path).url == connection.url
        with farm.connect(tmp_path) as client:
            assert client.models() == ["Double"]
    assert not (tmp_path / "farm.json").exists()


def test_without_doors_native_clients_are_served(tmp_path: Path) -> None:
    part = Farm([], Settings(dir=tmp_path), objects={"Double": Double()}, doors=False)
    with running(part) as connection, farm.connect(tmp_path) as client:
        assert connection.url == ""
        points = np.array([[1.0, 2.0], [3.0, 4.0]])
        assert client.model("Double").map(points).tolist() == [[2, 4], [6, 8]]


def test_a_web_page_under_another_name_is_no_local_user(tmp_path: Path) -> None:
    settings = Settings(port=0, dir=tmp_path)
    with running(Farm([], settings, objects={"Double": Double()})) as connection:
        rebound = {"Host": "evil.example:80"}
        status, body = evaluate(connection.url, rebound)
        assert status == 401
        assert "farm.json" in str(body)
        rebound["Authorization"] = f"Bearer {connection.token}"
        assert evaluate(connection.url, rebound)[0] == 200


def test_policies_of_models_in_a_file_reach_the_scheduler(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text('[model.Double]\nreserve = "25%"\npriority = 5\n')
    settings = Settings(port=0, dir=tmp_path / "run", **read_settings(file))
    part = Farm([], settings, objects={"Double": Double()})
    with running(part) as connection:
        assert evaluate(connection.url)[0] == 200
        policies = part.dispatcher.policies
        assert policies == {"Double": ModelPolicy(reserve_percent=25.0, priority=5)}


@pytest.mark.parametrize("policy", [{"reserve": ("Treble=1",)}, {"model_priority": ("Treble=1",)}])
def test_a_policy_of_a_model_that_is_not_served_is_refused(
    tmp_path: Path, policy: dict[str, tuple[str, ...]]
) -> None:
    settings = Settings(port=0, dir=tmp_path, **policy)  # type: ignore[arg-type]
    part = Farm([], settings, objects={"Double": Double()})
    with pytest.raises(SettingsError, match="model 'Treble'; farm serves Double"), running(part):
        pass
    with running(Farm([], settings)) as connection:  # workers from elsewhere may bring it
        assert connection.url


def test_a_taken_port_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = Settings(port=other.getsockname()[1], dir=tmp_path)
        part = Farm([], settings, objects={"Double": Double()})
        with pytest.raises(Unavailable, match="port=0"), running(part):
            pass
    assert not (tmp_path / "farm.json").exists()


def test_models_that_cannot_be_loaded_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')\n")
    part = Farm([str(tmp_path / "broken.py")], Settings(port=0, dir=tmp_path / "run"))
    with pytest.raises(WorkersFailed, match="no licence"), running(part):
        pass
    assert not (tmp_path / "run" / "farm.json").exists()


def test_workers_serve_what_is_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    part = Farm([str(tmp_path / "beam.py")], Settings(port=0, dir=tmp_path / "run"))
    with running(part), farm.connect(tmp_path / "run") as client:
        result = client.model("beam").evaluate({"E": [1, 2, 4], "load": [8]})
        assert list(result) == [8, 4, 2]
    assert list((tmp_path / "run" / "logs").glob("*.log"))


def test_clients_of_a_farm_without_a_worker_yet_are_told(tmp_path: Path) -> None:
    """A client of a farm that was killed here is back sooner than the workers."""
    go = tmp_path / "go"
    wait = f"import time\nfrom pathlib import Path\nwhile not Path({str(go)!r}).exists():\n"
    (tmp_path / "beam.py").write_text(wait + "    time.sleep(0.01)\n" + BEAM)
    folder = tmp_path / "run"
    part = Farm([str(tmp_path / "beam.py")], Settings(port=0, dir=folder))

    def serve() -> list[float]:
        with running(part), farm.connect(folder) as client:
            return list(client.model("beam").evaluate({"E": [1, 2, 4], "load": [8]}))

    with ThreadPoolExecutor(1) as threads:
        served = threads.submit(serve)
        try:
            wait_until((folder / "farm.json").exists)
            with (
                farm.connect(folder) as client,
                pytest.raises(Unavailable, match="is starting and waits for its first worker"),
            ):
                client.model("beam")
        finally:
            go.touch()
        assert served.result(LIMIT_S) == [8, 4, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mpi", "in_its_job"), [(None, ""), (2, ""), (None, "slurm"), (None, "pbs")]
)
def test_workers_that_the_farm_did_not_start_are_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mpi: int | None, in_its_job: str
) -> None:
    if in_its_job:  # as the launcher starts them next to the front door
        variables, _ = JOBS[in_its_job]
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
    model, run = tmp_path / "beam.py", tmp_path / "run"
    model.write_text(BEAM)
    part = Farm([str(model)], Settings(dir=run, workers=1, mpi=mpi), doors=False)
    words = [
        sys.executable,
        "-m",
        "farm.provision.local.process",
        str(model),
        "--connect",
        str(run),
    ]
    with running(part), farm.connect(run) as client, subprocess.Popen(words) as process:
        try:
            wait_until(lambda: len(client.status()["workers"]) == 2)
            events = client.status()["events"]
        finally:
            process.kill()
    who = f"process {process.pid} on {socket.gethostname()}, which this farm did not start"
    texts = [event["text"] for event in events if event["event"] == "from elsewhere"]
    assert texts == ([] if in_its_job else [who])
