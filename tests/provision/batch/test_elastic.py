"""The loop between demand and SLURM, here with a stand-in; tests/slurm has it with the real one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import requests

import farm
from farm.call import Call, Operation
from farm.errors import Unavailable
from farm.provision.batch import policy
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.plan import ClusterPlan
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings, SettingsError
from farm.transports.connection import read_connection
from tests.provision.slurm_stand_in import install
from tests.server.test_page import used as page_reads
from tests.support.dispatcher_farm import LIMIT_S, serving
from tests.support.running_farm import wait_until

MODEL = """
import farm

class Double(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        return 2 * inputs["x"]
"""


IN_JOBS_ONLY = "import os; os.environ['SLURM_JOB_ID']\n"
"""The start of a model that this machine cannot describe: a first job finds out what it serves."""


class Site:
    """A folder with a model that only jobs can load, and a stand-in SLURM on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands = install(folder / "bin")
        (folder / "double.py").write_text(IN_JOBS_ONLY + MODEL)

    @contextlib.contextmanager
    def farm(
        self, *, doors: bool = False, start_timeout_s: float | None = None, **values: Any
    ) -> Iterator[farm.Client]:
        defaults = {"name": "small", "idle_timeout_s": 2.0, "grow_after_s": 0.5}
        kind = WorkerKind(models=[str(self.folder / "double.py")], **{**defaults, **values})
        settings = Settings(
            port=0, workers=0, dir=self.folder / "run", start_timeout_s=start_timeout_s
        )
        part = Farm([], settings, plan=ClusterPlan((kind,), host="127.0.0.1"), doors=doors)
        with running(part), farm.connect(self.folder / "run") as client:
            yield client

    def earlier(self) -> None:
        """Leave a run folder as of a farm that kept no list of its jobs."""
        (self.folder / "run" / "jobs").mkdir(parents=True, mode=0o700)
        (self.folder / "run").chmod(0o700)
        (self.folder / "run" / "jobs" / "identity").write_text("0123abcd")

    def states(self) -> list[str]:
        """What has become of the jobs."""
        return [path.read_text().strip() for path in sorted(self.commands.glob("jobs/*.state"))]

    def fail(self, command: str, text: str) -> None:
        (self.commands / f"{command}.fails").write_text(text)

    def change(self, command: str, old: str, new: str) -> None:
        path = self.commands / command
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def mend(self, command: str) -> None:
        (self.commands / f"{command}.fails").unlink(missing_ok=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    found = Site(tmp_path)
    monkeypatch.setenv("PATH", f"{found.commands}:{os.environ['PATH']}")
    # Otherwise pauses of minutes follow refusals that last long on a busy machine.
    monkeypatch.setattr(policy, "LONGEST_PAUSE_S", policy.FIRST_PAUSE_S)
    return found


def events(client: farm.Client, *kinds: str) -> list[str]:
    return [e["text"] for e in client.status()["events"] if e["event"] in kinds]


def queued(client: farm.Client) -> int:
    return sum(row["queued"] for row in client.status()["queues"])


def test_one_job_finds_out_what_it_serves_and_goes_when_idle(site: Site) -> None:
    with site.farm() as client:
        wait_until(lambda: client.models() == ["Double"], "the model")
        (job,) = client.status()["cluster"]["jobs"]
        assert page_reads("j") <= set(job)
        assert client.model()([2.0])[0] == 4.0
        assert client.status()["slurm"]["system"] == "SLURM"
        assert page_reads("k") <= set(client.status()["cluster"]["kinds"][0])
        wait_until(lambda: site.states() == ["COMPLETED"], "the job let go")
        wait_until(lambda: events(client, "ended"), "word of that")
        assert client.model()([3.0])[0] == 6.0
        assert events(client, "from elsewhere") == []
    assert len(site.states()) == 2
    assert "RUNNING" not in site.states()


def test_models_are_known_and_calls_wait_before_the_first_job(site: Site) -> None:
    (site.folder / "double.py").write_text(MODEL)
    site.fail("sbatch", "sbatch: error: the cluster is full")
    with site.farm() as client:
        assert client.model("Double").describe().inputs[0].shape == (1,)
        assert client.models() == ["Double"]
        assert site.states() == []
        assert events(client, "refused") == []
        answer = client.model().submit([2.0])
        wait_until(lambda: events(client, "refused"), "a refusal")
        assert not answer.done()
        text = "sbatch: error: the cluster is full; next try in 5 s"
        assert events(client, "refused")[0] == text
        site.mend("sbatch")
        assert answer.result(LIMIT_S)[0] == 4.0
        wait_until(lambda: not client.status()["cluster"]["kinds"][0]["problem"], "all to be well")
        assert events(client, "not described") == []


def test_first_requests_wait_for_the_job_that_knows_the_models(site: Site) -> None:
    site.fail("sbatch", "sbatch: error: the cluster is full")
    with site.farm(doors=True) as client, ThreadPoolExecutor() as pool:
        url = read_connection(site.folder / "run").url
        body = {"name": "Double", "input": [[2.0]]}
        first = pool.submit(requests.post, f"{url}/Evaluate", json=body, timeout=LIMIT_S)
        wait_until(lambda: client.status()["requests_for_models"] == 1, "the request waits")
        wait_until(lambda: events(client, "not described"), "the reason")
        (text,) = events(client, "not described")
        wait_until(lambda: events(client, "refused"), "a refusal")
        why = (
            r"^no model is known yet: waiting for workers of kind small .*: refused: "
            r"sbatch: error: the cluster is full$"
        )
        for awaited in ((), ("Double",)):
            with pytest.raises(Unavailable, match=why):
                client.expect_models(*awaited)
        site.mend("sbatch")
        assert text == (
            f"loading '{site.folder}/double.py' raised KeyError: 'SLURM_JOB_ID' "
            f"({site.folder}/double.py:1); the farm knows these models once a worker has joined"
        )
        assert first.result(LIMIT_S).json()["output"] == [[4.0]]


@pytest.mark.slow
def test_after_the_start_timeout_a_call_fails_with_the_reason(site: Site) -> None:
    (site.folder / "double.py").write_text(MODEL)
    site.fail("sbatch", "sbatch: error: the cluster is full")
    with site.farm(doors=True, start_timeout_s=1.5) as client:
        wait_until(lambda: client.models() == ["Double"], "the description")
        native = client.model().submit([1.0])
        url = read_connection(site.folder / "run").url
        body = {"name": "Double", "input": [[2.0]]}
        answer = requests.post(f"{url}/Evaluate", json=body, timeout=LIMIT_S)
        assert answer.status_code == 503
        assert re.fullmatch(
            r"no worker of model 'Double' has joined within 1\.5 s: waiting for workers of kind "
            r"small \(.*double\.py\): refused: sbatch: error: the cluster is full",
            answer.json()["error"]["message"],
        )
        assert not native.done(), "its caller may wait as long as it likes"
        site.mend("sbatch")
        assert native.result(LIMIT_S)[0] == 2.0


@pytest.mark.slow
def test_before_the_jobs_of_an_earlier_farm_are_known_nothing_is_submitted(site: Site) -> None:
    site.earlier()
    site.fail("squeue", "no controller")
    with site.farm(min_jobs=1) as client:
        wait_until(lambda: events(client, "no word from SLURM"), "squeue to fail")
        looks_at = site.commands / "looks"
        site.mend("squeue")
        site.change("squeue", "#!/bin/sh\n", f"#!/bin/sh\necho >> {looks_at}; exit 0\n")
        wait_until(lambda: looks_at.exists() and looks_at.stat().st_size >= 2, "empty answers")
        assert site.states() == []
        site.change("squeue", "; exit 0", "")
        wait_until(lambda: len(site.states()) == 1, "the job")


@pytest.mark.slow
def test_a_job_that_fails_says_why_and_the_next_one_waits(site: Site) -> None:
    (site.folder / "double.py").write_text("import no_such_module_here\n")
    with site.farm() as client:
        wait_until(lambda: events(client, "failed"), "a failed job")
        (text,) = events(client, "failed")
        assert "FAILED" in text
        assert "no_such_module_here" in text
        assert client.status()["cluster"]["kinds"][0]["next_try_in_s"] > 0


PLAN = """
[[workers]]
name = "small"
models = ["double.py"]
min_jobs = 1
"""


@pytest.mark.slow
def test_calls_that_come_back_before_the_workers_wait_for_them(site: Site) -> None:
    (site.folder / "plan.toml").write_text('host = "127.0.0.1"' + PLAN)
    with serving(site.folder, "--slurm", "plan.toml", "--no-supervise") as first:
        first.wait_for_workers(1)
        with farm.connect(site.folder / "run") as client:
            wait_until(lambda: events(client, "started"), "the farm to take notice")
            (worker,) = client.status()["workers"]
            process = psutil.Process(worker["pid"])
            supervisor = process.parent()
            assert supervisor is not None
            supervisor.suspend()  # it would end a worker that stands still for seconds
            process.suspend()
            try:
                answer = client.submit(Call("Double", Operation.EVALUATE, (np.array([2.0]),)))
                first.kill()
                with serving(site.folder, "--slurm", "plan.toml", "--no-supervise") as second:
                    wait_until(lambda: queued(client) == 1, "the call again")
                    assert client.models() == ["Double"]
                    assert client.status()["workers"] == []
                    process.resume()
                    assert answer.result(LIMIT_S).outputs[0][0] == 4.0
                    assert client.status()["workers"][0]["name"] == worker["name"]
                    supervisor.resume()
                    second.stop()
            finally:
                for stopped in (process, supervisor):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        stopped.resume()
    assert not (site.folder / "run" / "jobs" / "models.json").exists(), "it has ended in order"


def test_what_cannot_work_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = WorkerKind(name="a", models=["m.py"], template=str(tmp_path / "none.in"))
    settings = Settings(port=0, dir=tmp_path)
    monkeypatch.setenv("PATH", str(install(tmp_path / "bin")))
    with pytest.raises(SettingsError, match="cannot be read"):
        Farm([], settings, plan=ClusterPlan((kind,)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="not on the PATH"):
        Farm([], settings, plan=ClusterPlan((kind,)))
