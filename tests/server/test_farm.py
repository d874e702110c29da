"""A complete farm: the order of its start, its refusals, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import urllib3

import farm
from farm import wording
from farm.call import Call, Operation
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.first_worker import FirstWorker
from farm.errors import Unavailable
from farm.model import Inputs
from farm.policies import ModelPolicy
from farm.provision import own_workers
from farm.provision.local.supervisor import WorkersFailed
from farm.provision.own_workers import OwnWorkers
from farm.server.doors import Doors
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.server.wires import RunFolder
from farm.settings import Settings, SettingsError, read_settings
from farm.transports.connection import read_connection
from tests.support.batch_jobs import JOBS
from tests.support.coroutines import until, wait_until
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


def test_workers_of_its_own_that_do_not_join_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wording, "JOIN_S", 0.1)
    model, loads = tmp_path / "beam.py", tmp_path / "loads"
    wait = f"while os.environ['FARM_REPLICA'] == '1' and not os.path.exists({str(loads)!r}):"
    model.write_text(f"import os, time\n{wait}\n    time.sleep(0.01)\n{BEAM}")
    part = Farm([str(model)], Settings(dir=tmp_path / "run", workers=2), doors=False)
    with running(part), farm.connect(tmp_path / "run") as client:

        def missing() -> list[str]:
            return [e["text"] for e in client.status()["events"] if e["event"] == "missing"]

        wait_until(lambda: client.status()["expected"] == {"workers": 2, "joined": 1})
        wait_until(missing)
        assert missing()[0].startswith("2 workers expected, ")
        loads.touch()
        wait_until(lambda: client.status()["expected"] == {})


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
        policies = part.dispatcher._scheduler.policies
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


def test_models_that_cannot_be_loaded_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')\n")
    part = Farm([str(tmp_path / "broken.py")], Settings(port=0, dir=tmp_path / "run"))
    with pytest.raises(WorkersFailed, match="no licence"), running(part):
        pass
    assert not (tmp_path / "run" / "farm.json").exists()


def test_native_clients_wait_for_the_first_worker(tmp_path: Path) -> None:
    """A client of a farm that was killed here is back sooner than the workers."""
    go, answered = tmp_path / "go", threading.Event()
    wait = f"import time\nfrom pathlib import Path\nwhile not Path({str(go)!r}).exists():\n"
    (tmp_path / "beam.py").write_text(wait + "    time.sleep(0.01)\n" + BEAM)
    folder = tmp_path / "run"
    part = Farm([str(tmp_path / "beam.py")], Settings(port=0, dir=folder))
    point = {"E": [1, 2, 4], "load": [8]}
    call = farm.Call("beam", farm.Operation.EVALUATE, (np.array([1.0, 2, 4]), np.array([8.0])))

    def serve() -> list[float]:
        with running(part), farm.connect(folder) as client:
            outputs = list(client.model("beam").evaluate(point))
            assert answered.wait(LIMIT_S)  # the farm ends with this block
            return outputs

    with ThreadPoolExecutor(2) as threads:
        served = threads.submit(serve)
        try:
            wait_until((folder / "farm.json").exists)
            with farm.connect(folder) as client:
                asked = [client.submit(call), client.submit(call), client.submit(call)]
                found = threads.submit(lambda: client.model("beam").evaluate(point))
                wait_until(lambda: client.status()["requests_for_models"] == 4)
                asked[1].cancel()
                wait_until(lambda: client.status()["requests_for_models"] == 3)
                awaited = "the farm waits for its first worker, which loads "
                assert client.status()["awaited"].startswith(awaited)
                go.touch()
                assert list(found.result(LIMIT_S)) == [8, 4, 2]
                for one in (asked[0], asked[2]):
                    assert list(one.result(LIMIT_S).outputs[0]) == [8, 4, 2]
        finally:
            go.touch()
            answered.set()
        assert served.result(LIMIT_S) == [8, 4, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mpi", "in_its_job"), [(None, ""), (2, ""), (None, "slurm"), (None, "pbs")]
)
def test_workers_that_the_farm_did_not_start_are_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mpi: int | None, in_its_job: str
) -> None:
    if in_its_job:  # as the launcher starts them next to the front door
        variables = JOBS[in_its_job].variables
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


def test_what_metrics_and_status_need_is_loaded_beside_the_loop_once_the_doors_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_in: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(
        "farm.server.doors.load_late", lambda: loaded_in.put(threading.current_thread().name)
    )
    settings = Settings(port=0, dir=tmp_path)
    with running(Farm([], settings, objects={"Double": Double()})):
        assert loaded_in.get(timeout=LIMIT_S) == "imports"


class Ends:
    """Notes what a farm undoes, in order; doors: an error that closing these raises."""

    def __init__(self, patch: pytest.MonkeyPatch, doors: Exception | None = None) -> None:
        self.order: list[str] = []
        for owner, method in (
            (FirstWorker, "fails"),
            (Doors, "close"),
            (Dispatcher, "close"),
            (OwnWorkers, "stop"),
            (RunFolder, "leave"),
        ):
            error = doors if owner is Doors else None
            patch.setattr(owner, method, self._noted(owner, getattr(owner, method), error))

    def _noted(self, owner: type, method: Any, error: Exception | None) -> Any:
        def noted(*arguments: Any, **named: Any) -> Any:
            self.order.append(owner.__name__)
            result = method(*arguments, **named)
            return self._fails(result, error) if error else result

        return noted

    async def _fails(self, result: Any, error: Exception) -> None:
        await result
        raise error


IN_ORDER = ["FirstWorker", "Doors", "Dispatcher", "OwnWorkers", "RunFolder"]


def test_a_farm_stops_in_order_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Ends(monkeypatch)
    part = Farm([], Settings(port=0, dir=tmp_path), objects={"Double": Double()})
    with running(part):
        assert ended.order == []
    assert ended.order == IN_ORDER
    asyncio.run(part.stop())
    assert ended.order == IN_ORDER


@pytest.mark.slow
async def test_a_farm_that_hurries_waits_neither_for_calls_nor_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_workers, "STOP_WORKERS_S", 3600.0)
    model, begun = tmp_path / "beam.py", tmp_path / "begun"
    model.write_text(BEAM)
    settings = Settings(dir=tmp_path / "run", workers=1, grace_s=3600.0)
    part = Farm([str(model)], settings, doors=False)
    await part.start()
    try:
        await part.ready()
        config = json.dumps({"begun": str(begun), "sleep": 3600})
        inputs = np.ones(3), np.ones(1)
        call = Call("beam", Operation.EVALUATE, inputs, config=config)
        asked = asyncio.create_task(part.dispatcher.submit(call))
        await until(begun.exists)
        stopping = asyncio.create_task(part.stop())
        part.hurry()
        async with asyncio.timeout(LIMIT_S):
            await stopping
        with pytest.raises(Unavailable, match="shut down before the call finished"):
            await asked
    finally:
        part.own.hurry()


def test_a_door_that_fails_to_close_keeps_nothing_else_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ends(monkeypatch, OSError("it is stuck"))
    part = Farm([], Settings(port=0, dir=tmp_path), objects={"Double": Double()})
    with pytest.raises(OSError, match="it is stuck"), running(part):
        pass
    assert ended.order == IN_ORDER
    assert not (tmp_path / "farm.json").exists()


def test_a_farm_whose_doors_do_not_open_ends_what_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ends(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = Settings(port=other.getsockname()[1], dir=tmp_path)
        with pytest.raises(Unavailable, match="port=0"), running(Farm([], settings)):
            pass
    assert ended.order == IN_ORDER
    assert not (tmp_path / "farm.json").exists()
