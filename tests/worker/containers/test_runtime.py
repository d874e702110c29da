"""Command lines of container runtimes, and their messages in words; `test_model.py` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.worker.containers.image import Image
from farm.worker.containers.runtime import fault_in, program_of, run_command


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")


def test_docker_publishes_on_loopback_only() -> None:
    image = Image("docker", "a", ("-v", "/d:/d"))
    assert run_command("/bin/docker", image, 0, name="n", labels={"farm.user": "7"}) == [
        *("/bin/docker", "run", "--rm", "--name", "n", "--publish", "127.0.0.1::4242"),
        *("--label", "farm.user=7", "--env", "OMP_NUM_THREADS=3", "--env", "PORT=4242"),
        *("-v", "/d:/d", "a"),
    ]


def test_apptainer_has_the_port_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "a.sif").touch()
    image = Image("apptainer", str(tmp_path / "a.sif"), ("--nv",))
    assert run_command("/bin/apptainer", image, 5001, name="n", labels={}) == [
        *("/bin/apptainer", "run", "--env", "OMP_NUM_THREADS=3", "--env", "PORT=5001"),
        *("--nv", str(tmp_path / "a.sif")),
    ]


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles", "-1,0"])
def test_hidden_gpus_are_not_given(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    words = run_command("docker", Image("docker", "a"), 0, name="n", labels={})
    assert "--gpus" not in words


def test_own_gpu_options_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    image = Image("docker", "a", ("--gpus=all",))
    words = run_command("docker", image, 0, name="n", labels={})
    assert [word for word in words if "gpus" in word] == ["--gpus=all"]


def test_singularity_stands_in_for_apptainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "singularity").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program_of("apptainer") == str(tmp_path / "singularity")
    with pytest.raises(Unavailable, match="here is apptainer: apptainer://IMAGE"):
        program_of("podman")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?",
            "start",
        ),
        ("permission denied while trying to connect to the Docker daemon socket", "group docker"),
        ("manifest for a:1 not found: manifest unknown", "did not get the image"),
        ("Error: initializing source docker://localhost/none: pinging", "did not get the image"),
        ("could not select device driver with capabilities: [[gpu]]", "Container Toolkit"),
        ("OSError: [Errno 98] address already in use", "took the port"),
        ("no licence", ""),
    ],
)
def test_messages_in_words(said: str, words: str) -> None:
    assert words in fault_in(said)
    assert bool(words) == bool(fault_in(said))
