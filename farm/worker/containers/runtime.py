"""Images and command lines of docker, podman and apptainer, errors in words, and free ports.

Between the choice of a port and the start of the server, another program may take the port, such as
the container of another worker with another model.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.errors import Unavailable

APPTAINER = "apptainer"

OURS = {
    "-d": "farm starts the container and follows its output",
    "--detach": "farm starts the container and follows its output",
    "--name": "farm names its containers, one for each worker",
    "--rm": "farm removes its containers",
    "-p": "farm publishes the port on the loopback address alone",
    "--publish": "farm publishes the port on the loopback address alone",
    "-P": "farm publishes the port on the loopback address alone",
    "--publish-all": "farm publishes the port on the loopback address alone",
}
"""Options of `docker run` and `podman run` that farm sets itself, with the reason."""

NETWORKS = re.compile(r"host|none|container:.*|ns:.*")
"""Networks in which no port can be published."""

_SOURCE = re.compile(r"[a-z][a-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Image:
    """A container image. runtime: docker, podman or apptainer; options: those of its `run`."""

    runtime: str
    name: str
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.runtime}://{self.name}"


def parsed(url: str) -> Image:
    """Return the image that a URL names. Raises ValueError if an option is farm's own."""
    runtime, _, rest = url.partition("://")
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise ValueError(f"{url!r} cannot be split into words: {error}") from None
    if not words or words[0].startswith("-"):
        raise ValueError(
            f"{url!r} names no image; expected {runtime}://IMAGE, then options of `{runtime} run`"
        )
    image = Image(runtime, words[0], tuple(words[1:]))
    if runtime != APPTAINER:
        _check(image)
    return image


def _check(image: Image) -> None:
    for position, word in enumerate(image.options):
        option, _, value = word.partition("=")
        short = word[:2] if re.match(r"-[pPd]", word) else option
        if short in OURS:
            raise ValueError(f"{image} has the option {word!r}: leave it out, {OURS[short]}")
        if option in ("--network", "--net"):
            value = value or " ".join(image.options[position + 1 : position + 2])
            if NETWORKS.fullmatch(value):
                raise ValueError(
                    f"{image} has the network {value!r}, from which farm cannot publish a port on "
                    "the loopback address alone; expected a bridge, which is the default"
                )


def file_of(image: Image) -> Path | None:
    """Return the file that apptainer runs; None if the image comes from a registry."""
    name = image.name
    if image.runtime != APPTAINER or _SOURCE.match(name):
        return None
    is_path = name.startswith(("/", ".", "~")) or name.endswith(".sif")
    return Path(name).expanduser() if is_path else None


def located(url: str) -> str:
    """Return the URL with the absolute path of an image's file, for a process in another folder."""
    if not url.startswith(APPTAINER + "://"):
        return url
    image = parsed(url)
    path = file_of(image)
    if path is None:
        return url
    return f"{APPTAINER}://{shlex.join([str(path.absolute()), *image.options])}"


PORT = 4242
"""The port inside a container of docker or podman, in the variable PORT: UM-Bridge's default."""

HIDDEN = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that name no GPU."""

PASSED = ("OMP_NUM_THREADS",)
"""Variables that a container gets from its worker."""

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "docker": ("docker",),
    "podman": ("podman",),
    APPTAINER: ("apptainer", "singularity"),
}
"""The programs of each runtime, best first."""

FAULTS: tuple[tuple[str, str], ...] = (
    (
        r"permission denied.*(docker|daemon|socket)",
        "your user may not use Docker; ask for membership of the group docker, or use "
        "podman://IMAGE or apptainer://IMAGE, which need no rights",
    ),
    (
        r"cannot connect to (the docker daemon|podman)|is the docker daemon running",
        "its daemon does not run; start it, or use podman://IMAGE or apptainer://IMAGE, which need "
        "none",
    ),
    (
        r"manifest unknown|pull access denied|no such image|repository does not exist|"
        r"name unknown|requested access to the resource is denied|could not open image|"
        r"unable to find image|image not known|failed to resolve reference|"
        r"unable to pull|error initializing source|initializing source|invalid reference format",
        "it did not get the image; check the name, the network and the login to its registry",
    ),
    (
        r"could not select device driver|nvidia.com/gpu|unresolvable CDI|nvidia-container",
        "it cannot give a GPU to a container; install the NVIDIA Container Toolkit, or serve "
        "without --gpus",
    ),
    (
        r"address already in use|address in use|EADDRINUSE|errno 98\b",
        "another program took the port; start it again",
    ),
)
"""Patterns of the runtimes' messages, with what is wrong and what to do."""

IN_USE = re.compile(FAULTS[-1][0], re.IGNORECASE)


def program_of(runtime: str) -> str:
    """Return the path of a runtime's program. Raises Unavailable if there is none."""
    for name in PROGRAMS[runtime]:
        found = shutil.which(name)
        if found is not None:
            return found
    wanted = " nor ".join(PROGRAMS[runtime])
    others = [each for each, names in PROGRAMS.items() if any(map(shutil.which, names))]
    there = f"; here is {' and '.join(others)}: {others[0]}://IMAGE" if others else ""
    raise Unavailable(
        f"{runtime}:// needs the program {wanted}, which is not on PATH; install it or load its "
        f"module{there}"
    )


def run_command(
    program: str, image: Image, port: int, *, name: str, labels: Mapping[str, str]
) -> list[str]:
    """Return the command that runs an image until it ends.

    port: where the server is to listen; inside of docker and podman it is PORT, which they publish
    at a free port of the loopback address.
    """
    variables = {key: os.environ[key] for key in PASSED if key in os.environ}
    devices = _devices()
    if image.runtime == APPTAINER:
        variables["PORT"] = str(port)
        if devices:
            variables["CUDA_VISIBLE_DEVICES"] = devices
        own = [*["--nv"] * bool(devices), *_each("--env", variables)]
        return [program, "run", *own, *image.options, _source(image)]
    variables["PORT"] = str(PORT)
    own = ["--rm", "--name", name, "--publish", f"127.0.0.1::{PORT}"]
    own += [*_each("--label", labels), *_each("--env", variables), *_gpus(image, devices)]
    return [program, "run", *own, *image.options, image.name]


def _each(option: str, values: Mapping[str, str]) -> list[str]:
    return [word for key, value in values.items() for word in (option, f"{key}={value}")]


def _source(image: Image) -> str:
    path = file_of(image)
    if path is not None:
        if not path.exists():
            raise Unavailable(f"{image}: there is no file {str(path)!r} (looked from {Path.cwd()})")
        return str(path)
    return image.name if "://" in image.name else f"docker://{image.name}"


def _devices() -> str:
    """Return the GPUs of this process; "" if it was not given any."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    return "" if named.split(",")[0] in HIDDEN else named


def _gpus(image: Image, devices: str) -> list[str]:
    if not devices or any(word.startswith(("--gpus", "--device")) for word in image.options):
        return []
    if image.runtime == "podman":
        return [f"--device=nvidia.com/gpu={each.strip()}" for each in devices.split(",")]
    value = f"device={devices}"
    # A value with commas is read as CSV: quotes keep it one field.
    return ["--gpus", f'"{value}"' if "," in value else value]


def fault_in(text: str) -> str:
    """Return in words what a runtime's output complains about; "" if it is not known."""
    found = (words for pattern, words in FAULTS if re.search(pattern, text, re.IGNORECASE))
    return next(found, "")


LISTENS = "0A"
"""The state TCP_LISTEN in /proc/net/tcp (proc(5))."""


def free_port() -> int:
    """Return a port that is free on all addresses now."""
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    return port


def is_anothers(port: int, group: int) -> bool:
    """Whether a program outside process group `group` and its children listens at the port.

    False if it is not known: on systems without /proc, and for processes that hide their files.
    """
    inodes = set()
    for uid, inode in _listeners(port):
        if uid != os.getuid():
            return True
        inodes.add(f"socket:[{inode}]")
    owners = [pid for pid in _pids() if inodes & _sockets(pid)]
    return bool(owners) and not any(_belongs(pid, group) for pid in owners)


def _listeners(port: int) -> Iterator[tuple[int, str]]:
    """Yield user and inode of each socket that listens at the port."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    yield int(words[7]), words[9]


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _belongs(pid: int, group: int) -> bool:
    """Whether a process is in the group, or a descendant of a process in it."""
    while pid > 1:
        try:
            if os.getpgid(pid) == group:
                return True
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
