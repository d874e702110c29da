"""The loop between demand and SLURM, here with a stand-in; tests/slurm has it with the real one."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
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

    def say(self, command: str, text: str) -> None:
        """Let a command print this alone, with exit code 0."""
        (self.commands / f"{command}.says").write_text(text)

    def hang(self, command: str) -> None:
        (self.commands / f"{command}.hangs").touch()

    def change(self, command: str, old: str, new: str) -> None:
        path = self.commands / command
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def mend(self, command: str) -> None:
        for how in ("fails", "says", "hangs"):
            (self.commands / f"{command}.{how}").unlink(missing_ok=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    found = Site(tmp_path)
    monkeypatch.setenv("PATH", f"{found.commands}:{os.environ['PATH']}")
    # Otherwise pauses of minutes follow refusals that last long on a busy machine.
    monkeypatch.setattr(policy, "LONGEST_PAUSE_S", policy.FIRST_PAUSE_S)
    return found


def sbatch(script: str) -> str:
    done = subprocess.run(["sbatch"], input=script, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def events(client: farm.Client, *kinds: str) -> list[str]:
    return [e["text"] for e in client.status()["events"] if e["event"] in kinds]


def queued(client: farm.Client) -> int:
    return sum(row["queued"] for row in client.status()["queues"])


@pytest.mark.slow
def test_jobs_that_are_submitted_at_once_have_ids_of_their_own(site: Site) -> None:
    """As those of a batch system do: farm knows a worker's job by its id."""
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda _: sbatch("exit 0"), range(24)))
    assert len(set(ids)) == 24


def test_one_job_finds_out_what_it_serves_and_goes_when_idle(site: Site) -> None:
    with site.farm() as client:
        wait_until(lambda: client.models() == ["Double"], "the model")
        assert client.model()([2.0])[0] == 4.0
        assert client.status()["slurm"]["system"] == "SLURM"
        wait_until(lambda: site.states() == ["COMPLETED"], "the job let go")
        wait_until(lambda: events(client, "ended"), "word of that")
        assert client.model()([3.0])[0] == 6.0
        assert events(client, "from elsewhere") == []
    assert len(site.states()) == 2
    assert "RUNNING" not in site.states()


@pytest.mark.slow
def test_a_job_that_no_signal_reaches_is_drained_over_the_farms_own_connection(site: Site) -> None:
    site.change("scancel", "*) kill -TERM", '*) [ "$drain" ] && continue; kill -TERM')
    with site.farm() as client:
        wait_until(lambda: client.models() == ["Double"], "the model")
        wait_until(lambda: site.states() == ["COMPLETED"], "the job let go")
        wait_until(lambda: events(client, "ended"), "word of that")
        assert events(client, "cancelled") == []


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
        site.mend("sbatch")
        assert answer.result(LIMIT_S)[0] == 4.0
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
def test_a_refusal_is_shown_and_said_to_callers_and_another_try_made(site: Site) -> None:
    site.fail("sbatch", "sbatch: error: no such account")
    with site.farm() as client:
        wait_until(lambda: events(client, "refused"), "a refusal")
        assert events(client, "refused") == ["sbatch: error: no such account; next try in 5 s"]
        (kind,) = client.status()["cluster"]["kinds"]
        assert kind["problem"] == "refused: sbatch: error: no such account"
        assert 0 < kind["next_try_in_s"] <= 5
        site.mend("sbatch")
        wait_until(lambda: client.models() == ["Double"], "another try")
        wait_until(lambda: not client.status()["cluster"]["kinds"][0]["problem"], "all to be well")


@pytest.mark.slow
@pytest.mark.parametrize(
    "ends",
    [
        "echo Socket timed out >&2; exit 1",
        "echo welcome to the cluster",
        "printf '4\\0002\\n'",
    ],
    ids=["time-out", "banner", "NUL"],
)
def test_a_job_whose_id_sbatch_did_not_tell_is_found(site: Site, ends: str) -> None:
    site.change("sbatch", "echo $id", ends)
    with site.farm(max_jobs=2) as client:
        wait_until(lambda: events(client, "adopted"), "the job to be found")
        assert len(events(client, "unsure")) == 1
        assert events(client, "refused") == []
        wait_until(lambda: client.models() == ["Double"], "its workers")
        wait_until(lambda: site.states() == ["COMPLETED"], "it to be let go")
        assert events(client, "failed") == []
        (kind,) = client.status()["cluster"]["kinds"]
        assert (kind["problem"], kind["next_try_in_s"]) == ("", None)


@pytest.mark.slow
def test_banners_around_sbatchs_answer_mean_nothing(site: Site) -> None:
    site.change("sbatch", "echo $id", "echo '* maintenance *'; echo; echo $id; echo bye")
    with site.farm() as client:
        wait_until(lambda: client.models() == ["Double"], "the model")
        assert events(client, "failed", "refused", "unsure", "adopted") == []
        wait_until(lambda: events(client, "started"), "the farm to take notice")
        (job,) = client.status()["cluster"]["jobs"]
        assert job["id"] == "1"
    assert site.states() == ["COMPLETED"]


HEADER_ONLY = "farm|JOBID|STATE|NODELIST|NAME|REASON|START_TIME|end\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    ["", HEADER_ONLY, f"{HEADER_ONLY}farm|1|COMPL"],
    ids=["nothing", "no rows", "cut"],
)
def test_a_list_without_the_job_ends_no_job_and_starts_no_second_one(
    site: Site, answer: str
) -> None:
    """A running job was taken for gone: it idled until the farm stopped, or another was started."""
    with site.farm(min_jobs=1, max_jobs=1) as client:
        wait_until(lambda: client.models() == ["Double"], "the model")
        site.say("squeue", answer)
        looks_at = site.commands / "looks"
        site.change("squeue", "#!/bin/sh\n", f"#!/bin/sh\necho >> {looks_at}\n")
        wait_until(lambda: looks_at.exists() and looks_at.stat().st_size >= 3, "three lists")
        (job,) = client.status()["cluster"]["jobs"]
        assert (job["id"], job["phase"]) == ("1", "serving")
        assert client.model()([2.0])[0] == 4.0
        assert events(client, "ended", "failed") == []
        problem = client.status()["cluster"]["problem"]
        assert bool(problem) == (answer != HEADER_ONLY)
        site.mend("squeue")
    assert site.states() == ["COMPLETED"]


@pytest.mark.slow
def test_a_list_from_before_the_submissions_leads_to_no_more_jobs(site: Site) -> None:
    """Four pending jobs with max_jobs = 2, and three left over, came of such a list."""
    site.change("sbatch", "echo RUNNING", "exit; echo RUNNING")  # all jobs stay in the queue
    site.change("scancel", 'kill -TERM "-$(cat "$here/jobs/$word.pid")"', ":")
    site.change("scancel", 'kill -KILL "-$(cat "$here/jobs/$word.pid")"', ":")
    site.say("squeue", HEADER_ONLY)
    asked = site.commands / "asked"
    site.change("scontrol", "#!/bin/sh\n", f"#!/bin/sh\necho >> {asked}\n")
    with site.farm(min_jobs=2, max_jobs=2) as client:
        wait_until(lambda: asked.exists() and asked.stat().st_size >= 2, "questions about both")
        wait_until(lambda: len(client.status()["cluster"]["jobs"]) == 2, "both jobs")
        assert site.states() == ["PENDING", "PENDING"]
    assert site.states() == ["CANCELLED", "CANCELLED"]


@pytest.mark.slow
def test_while_squeue_hangs_jobs_come_and_go(site: Site) -> None:
    site.hang("squeue")
    with site.farm() as client:
        wait_until(lambda: client.models() == ["Double"], "the model")
        wait_until(lambda: site.states() == ["COMPLETED"], "the job let go")
        wait_until(lambda: events(client, "ended"), "word of that")
        assert client.model()([3.0])[0] == 6.0
        assert len(site.states()) == 2
        site.mend("squeue")
    assert "RUNNING" not in site.states()


@pytest.mark.slow
def test_a_failing_squeue_means_nothing_for_the_jobs(site: Site) -> None:
    with site.farm(min_jobs=1) as client:
        wait_until(lambda: client.models() == ["Double"], "the model")
        site.fail("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
        wait_until(lambda: client.status()["cluster"]["problem"], "squeue to fail")
        assert client.model()([2.0])[0] == 4.0
        slurm = client.status()["cluster"]
        assert len(slurm["jobs"]) == 1
        assert page_reads("k") <= set(slurm["kinds"][0])
        assert page_reads("j") <= set(slurm["jobs"][0])
        site.mend("squeue")
        wait_until(lambda: not client.status()["cluster"]["problem"], "squeue to answer")
        assert len(site.states()) == 1
    assert site.states() == ["COMPLETED"]


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


def test_a_job_that_fails_says_why_and_the_next_one_waits(site: Site) -> None:
    (site.folder / "double.py").write_text("import no_such_module_here\n")
    with site.farm() as client:
        wait_until(lambda: events(client, "failed"), "a failed job")
        (text,) = events(client, "failed")
        assert "FAILED" in text
        assert "no_such_module_here" in text
        assert client.status()["cluster"]["kinds"][0]["next_try_in_s"] > 0


def test_a_caller_of_a_model_that_is_awaited_hears_how_that_stands(site: Site) -> None:
    site.fail("sbatch", "sbatch: error: the cluster is full")
    with site.farm() as client:
        wait_until(lambda: events(client, "refused"), "a refusal")
        why = (
            r"^no model is known yet: waiting for workers of kind small .*: refused: "
            r"sbatch: error: the cluster is full$"
        )
        with pytest.raises(Unavailable, match=why):
            client.expect_models()
        with pytest.raises(Unavailable, match=why):
            client.expect_models("Double")


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


# The end of a job's output
