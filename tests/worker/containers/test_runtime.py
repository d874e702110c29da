"""Command lines of container runtimes, and their messages in words; `test_model.py` runs them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.worker.containers.runtime import (
    Image,
    fault_in,
    file_of,
    free_port,
    is_anothers,
    located,
    parsed,
    program_of,
    run_command,
)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")


def command(program: str, image: str, *options: str, port: int = 0) -> list[str]:
    labels = {"farm.user": "7"} if program != "apptainer" else {}
    return run_command(program, Image(program, image, options), port, name="n", labels=labels)


def test_docker_publishes_on_loopback_only() -> None:
    assert command("docker", "a", "-v", "/d:/d") == [
        *("docker", "run", "--rm", "--name", "n", "--publish", "127.0.0.1::4242"),
        *("--label", "farm.user=7", "--env", "OMP_NUM_THREADS=3", "--env", "PORT=4242"),
        *("-v", "/d:/d", "a"),
    ]


def test_apptainer_has_the_port_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "a.sif").touch()
    assert command("apptainer", str(tmp_path / "a.sif"), "--nv", port=5001) == [
        *("apptainer", "run", "--env", "OMP_NUM_THREADS=3", "--env", "PORT=5001"),
        *("--nv", str(tmp_path / "a.sif")),
    ]
    assert command("apptainer", "user/image:latest")[-1] == "docker://user/image:latest"


@pytest.mark.parametrize(
    ("program", "visible", "given"),
    [
        ("docker", "2", ["--gpus", "device=2"]),
        ("docker", "GPU-1,GPU-2", ["--gpus", '"device=GPU-1,GPU-2"']),
        ("podman", "1,2", ["--device=nvidia.com/gpu=1", "--device=nvidia.com/gpu=2"]),
        ("apptainer", "1,2", ["--nv", "CUDA_VISIBLE_DEVICES=1,2"]),
        *[("docker", hidden, []) for hidden in ("", "-1", "NoDevFiles", "-1,0")],
    ],
)
def test_gpus(
    monkeypatch: pytest.MonkeyPatch, program: str, visible: str, given: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    words = command(program, "a")
    about = [w for w in words if "gpu" in w or "device" in w or "CUDA" in w or w == "--nv"]
    assert about == given


def test_own_gpu_options_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    words = command("docker", "a", "--gpus=all")
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


LISTENS = """
import os, socket, subprocess, sys
if sys.argv[1:] == ["child"]:
    sys.exit(subprocess.run([sys.executable, "-I", "-S", "-c", os.environ["LISTENS"]]).returncode)
found = socket.create_server(("127.0.0.1", 0))
print(found.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_free_port_can_be_used() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_a_listener_of_this_process_is_not_the_containers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_anothers(port, 1 << 30)
        assert not is_anothers(port, os.getpgrp())
    assert not is_anothers(port, 1 << 30)  # nothing is known of it


def test_a_listener_of_a_grandchild_in_its_own_group() -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENS, "child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "LISTENS": LISTENS},
        process_group=0,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    assert not is_anothers(port, process.pid)
    assert is_anothers(port, 1 << 30)
    process.communicate()


@pytest.mark.parametrize(
    ("url", "image"),
    [
        ("docker://a", Image("docker", "a")),
        ("docker://r.io:5000/a/b@sha256:12", Image("docker", "r.io:5000/a/b@sha256:12")),
        (
            "podman://a -v '/my data:/d' --network mine",
            Image("podman", "a", ("-v", "/my data:/d", "--network", "mine")),
        ),
        ("apptainer://a --net", Image("apptainer", "a", ("--net",))),
    ],
)
def test_parts(url: str, image: Image) -> None:
    assert parsed(url) == image


@pytest.mark.parametrize(
    "options",
    [
        *("-p 1:1", "-p1:1", "--publish=1:1", "-P", "-d", "--name x", "--rm"),
        *("--network host", "--net=none", "--network=container:x"),
    ],
)
def test_options_that_are_farms_own(options: str) -> None:
    with pytest.raises(ValueError, match=r"docker://a has the (option|network) '"):
        parsed(f"docker://a {options}")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/images/a.sif", "/images/a.sif"),
        ("a.sif", "a.sif"),
        ("./sandbox", "sandbox"),
        ("user/image:1", None),
        ("library://user/image", None),
        ("docker://user/image", None),
    ],
)
def test_files_of_apptainer(name: str, path: str | None) -> None:
    assert file_of(Image("apptainer", name)) == (None if path is None else Path(path))
    assert file_of(Image("docker", name)) is None


def test_places_for_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = f"apptainer://{tmp_path}/a.sif --bind '/b c'"
    assert located("apptainer://a.sif --bind '/b c'") == absolute
    for url in ("apptainer://user/image", "docker://./a.sif", "http://a"):
        assert located(url) == url
