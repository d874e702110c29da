"""Command lines of docker, podman and apptainer, and their errors in words."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from farm.errors import Unavailable
from farm.worker.containers.image import APPTAINER, Image, file_of

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
    if image.runtime == APPTAINER:
        variables["PORT"] = str(port)
        own = _gpus_of_apptainer(variables)
        words = [f"{key}={value}" for key, value in variables.items()]
        own += [word for each in words for word in ("--env", each)]
        return [program, "run", *own, *image.options, _source(image)]
    variables["PORT"] = str(PORT)
    own = ["--rm", "--name", name, "--publish", f"127.0.0.1::{PORT}"]
    own += [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    own += [word for key, value in variables.items() for word in ("--env", f"{key}={value}")]
    return [program, "run", *own, *_gpus(image), *image.options, image.name]


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


def _gpus(image: Image) -> list[str]:
    devices = _devices()
    if not devices or any(word.startswith(("--gpus", "--device")) for word in image.options):
        return []
    if image.runtime == "podman":
        return [f"--device=nvidia.com/gpu={each.strip()}" for each in devices.split(",")]
    value = f"device={devices}"
    # A value with commas is read as CSV: quotes keep it one field.
    return ["--gpus", f'"{value}"' if "," in value else value]


def _gpus_of_apptainer(variables: dict[str, str]) -> list[str]:
    devices = _devices()
    if not devices:
        return []
    variables["CUDA_VISIBLE_DEVICES"] = devices
    return ["--nv"]


def fault_in(text: str) -> str:
    """Return in words what a runtime's output complains about; "" if it is not known."""
    found = (words for pattern, words in FAULTS if re.search(pattern, text, re.IGNORECASE))
    return next(found, "")
