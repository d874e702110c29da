"""Containers of a stand-in runtime: start, errors, loss, and what is left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from farm.machine.programs import EXIT_SERVER_GONE
from farm.model import Inputs, Model
from farm.worker.containers import keeping, model
from farm.worker.containers.runtime import Image, free_port
from farm.worker.loader import LoadError, load_models
from farm.worker.servers import SEAT
from tests.support.running_farm import wait_until

RUNTIME = Path(__file__).parents[2] / "support" / "container_runtime"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the stand-in keeps its containers; it comes first on PATH."""
    monkeypatch.setenv("PATH", f"{RUNTIME}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CONTAINERS", str(tmp_path))
    monkeypatch.setenv("FAKE_PYTHON", sys.executable)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(SEAT, raising=False)
    started: list[model.Container] = []
    start = model.Container.__init__

    def noted(self: model.Container, program: str, image: Image) -> None:
        started.append(self)
        start(self, program, image)

    monkeypatch.setattr(model.Container, "__init__", noted)
    yield tmp_path
    for container in started:
        if hasattr(container, "_tied"):
            container.close()


def containers(state: Path) -> list[str]:
    return [folder.name for folder in state.iterdir() if (folder / "pid").exists()]


def runs(state: Path) -> list[list[str]]:
    return [json.loads(line) for line in (state / "runs").read_text().splitlines()]


def value(found: Model, x: float) -> float:
    return float(found.evaluate(Inputs(in0=np.array([x])), {})[0][0])


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_a_container_is_started_used_and_removed(state: Path, runtime: str) -> None:
    models = load_models([f"{runtime}://slow -v /data:/data:ro"])
    assert list(models) == ["double", "device"]
    assert models["double"].description == f"double in {runtime}://slow"
    assert value(models["double"], 3.0) == 6.0
    (words,) = runs(state)
    assert words[-3:] == ["-v", "/data:/data:ro", "slow"]
    assert "--rm" in words
    (name,) = containers(state)
    assert words[words.index("--name") + 1] == name


def test_one_container_for_each_start_and_one_model_of_it_under_another_name(state: Path) -> None:
    for _ in range(2):
        ((name, found),) = load_models(["twice=double@docker://good"]).items()
        assert (name, value(found, 4.0)) == ("twice", 8.0)
    assert len(set(containers(state))) == 2


def test_apptainer_tries_another_port(state: Path) -> None:
    image = state / "taken.sif"
    image.touch()
    models = load_models([f"double@apptainer://{image} --bind /data"])
    assert value(models["double"], 1.0) == 2.0
    first, second = runs(state)
    assert first != second
    assert second[-3:] == ["--bind", "/data", str(image)]


def test_the_server_of_another_program_is_not_taken_for_the_containers(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = state / "good.sif"
    image.touch()
    environment = {**os.environ, "PORT": "0"}
    command = [sys.executable, "-I", "-S", str(RUNTIME / "umbridge_server.py")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline().split()[-1])
        ports = itertools.chain([port], iter(free_port, 0))
        monkeypatch.setattr(model, "free_port", lambda: next(ports))
        load_models([f"double@apptainer://{image}"])
        other.kill()
    assert f"PORT={port}" not in runs(state)[-1]  # the first may have ended before it began


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "docker://dies",
            "the container of docker://dies ended with exit code 3. Its last output: no licence",
        ),
        (
            "docker://missing",
            "the container of docker://missing ended with exit code 1 (it did not get the image; "
            "check the name, the network and the login to its registry)",
        ),
        ("docker://-v a", "names no image; expected docker://IMAGE"),
        ("docker://a -p 80:80", "leave it out, farm publishes the port on the loopback"),
        ("docker://a -p80:80", "leave it out, farm publishes the port on the loopback"),
        ("docker://a --network host", "cannot publish a port on the loopback address alone"),
        ("docker://a 'b", "No closing quotation"),
        ("apptainer://./none.sif", "there is no file 'none.sif'"),
        ("none@docker://good", "no model 'none'"),
    ],
)
def test_errors(state: Path, spec: str, words: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_models([spec])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert containers(state) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("stopped", "docker cannot be used: its daemon does not run; start it, or use podman://"),
        ("forbidden", "docker cannot be used: your user may not use Docker; ask for membership"),
    ],
)
def test_a_daemon_that_cannot_be_used(
    state: Path, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_DAEMON", fault)
    with pytest.raises(LoadError, match=words):
        load_models(["docker://good"])


def test_no_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LoadError, match="apptainer nor singularity, which is not on PATH; install"):
        load_models(["apptainer://a.sif"])
    (tmp_path / "podman").symlink_to("/bin/true")
    with pytest.raises(LoadError, match="here is podman: podman://IMAGE"):
        load_models(["docker://a"])


def test_a_server_that_listens_elsewhere(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "ANSWER_S", 0.3)
    with pytest.raises(LoadError, match=r"no UM-Bridge server answered at its port 4242 within"):
        load_models(["docker://deaf"])
    assert containers(state) == []


SERVE = """
import sys, numpy as np
from farm.model import Inputs
from farm.worker.loader import load_models
(found,) = load_models(["double@" + sys.argv[1]]).values()
print("ready", flush=True)
for line in sys.stdin:
    print(found.evaluate(Inputs(in0=np.array([float(line)])), {})[0][0], flush=True)
"""


def serving(spec: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, spec],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, SEAT: "0"},
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("group", [False, True])
def test_a_killed_worker_leaves_no_container(state: Path, group: bool) -> None:
    process = serving("docker://good")
    assert len(containers(state)) == 1
    (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not containers(state), "the guard removed the container")


def test_the_worker_ends_with_its_container(state: Path) -> None:
    process = serving("docker://good")
    (name,) = containers(state)
    os.kill(int((state / name / "pid").read_text()), signal.SIGKILL)
    assert process.wait() == EXIT_SERVER_GONE
    _, said = process.communicate()
    assert "this process ends" in said


def test_a_call_that_kills_the_container_ends_the_worker(state: Path) -> None:
    process = serving("docker://good")
    _, said = process.communicate("13\n")
    assert process.returncode == EXIT_SERVER_GONE
    assert "this process ends" in said
    wait_until(lambda: not containers(state), "the guard removed the container")


def test_leftovers_of_dead_processes_are_removed(state: Path) -> None:
    name = f"farm-{os.getpid()}-1-ab"  # this process began at another time
    program = str(RUNTIME / "docker")
    labels = [w for k, v in keeping.labels().items() for w in ("--label", f"{k}={v}")]
    port = ["--publish", "127.0.0.1::4242", "--env", "PORT=4242"]
    runs = []
    for each, own in ((name, labels), (keeping.new_name(), labels), ("farm-1-1-cd", [])):
        command = [program, "run", "--name", each, *port, *own, "good"]
        runs.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    wait_until(lambda: len(containers(state)) == 3, "all run")
    assert keeping.remove_leftovers(program) == [name]
    assert name not in containers(state)
    subprocess.run([program, "rm", "--force", *containers(state)], check=True)
    for run in runs:
        run.wait()
