"""A stand-in for docker and podman: `run`, `port`, `ps` and `rm`, with processes for containers.

A container is a server in a session of its own, which outlives `run`, as docker's do. Its state is
a folder of FAKE_CONTAINERS; each `run` adds its arguments to the file `runs` there. The image
selects what happens: good, slow, dies, deaf (listens elsewhere), missing, stopped (no daemon),
forbidden.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ["FAKE_CONTAINERS"])
SERVER = Path(__file__).parent / "umbridge_server.py"
FAULTS = {
    "missing": "docker: Error response from daemon: pull access denied for missing",
    "stopped": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
    "Is the docker daemon running?",
    "forbidden": "permission denied while trying to connect to the Docker daemon socket",
}


def run(words: list[str]) -> None:
    with (STATE / "runs").open("a") as file:
        file.write(json.dumps(words) + "\n")
    options = {}
    labels = []
    variables = []
    image = words[-1]
    for option, value in itertools.pairwise(words):
        options[option] = value
        if option == "--label":
            labels.append(value)
        if option == "--env":
            variables.append(value.split("=", 1))
    if image in FAULTS:
        sys.exit(FAULTS[image])
    folder = STATE / options["--name"]
    folder.mkdir()
    (folder / "labels").write_text("\n".join(labels))
    assert options["--publish"] == "127.0.0.1::4242", options
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, **dict(variables)}
    assert environment["PORT"] == "4242"
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        environment["PORT"] = str(deaf.getsockname()[1] if image == "deaf" else port)
    if "--gpus" in options:
        environment["DEVICES"] = options["--gpus"]
    command = [sys.executable, "-I", "-S", str(SERVER)]
    if image == "dies":
        command = ["/bin/sh", "-c", "echo about to fail; echo no licence >&2; exit 3"]
    if image == "slow":
        command = ["/bin/sh", "-c", 'echo wakes up; sleep 0.5; exec "$@"', "sh", *command]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    (folder / "pid").write_text(str(process.pid))
    (folder / "port").write_text(str(port))
    code = process.wait()
    remove(folder)
    sys.exit(code if code >= 0 else 128 - code)


def remove(folder: Path) -> None:
    try:
        pid = int((folder / "pid").read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        for name in ("pid", "port", "labels"):
            (folder / name).unlink()
        folder.rmdir()
    except OSError:
        pass


def ps(words: list[str]) -> None:
    if os.environ.get("FAKE_DAEMON") in FAULTS:
        sys.exit(FAULTS[os.environ["FAKE_DAEMON"]])
    wanted = {word.removeprefix("label=") for word in words if word.startswith("label=")}
    for folder in STATE.iterdir():
        if folder.is_dir() and wanted <= set((folder / "labels").read_text().splitlines()):
            print(folder.name)


match sys.argv[1:]:
    case ["run", *words]:
        run(words)
    case ["port", name, "4242/tcp"]:
        try:
            print("127.0.0.1:" + (STATE / name / "port").read_text())
        except OSError:
            sys.exit("Error: No such container")
    case ["ps", *words]:
        ps(words)
    case ["rm", "--force", *names]:
        for name in names:
            remove(STATE / name)
    case other:
        sys.exit(f"unknown: {other}")
