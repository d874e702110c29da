"""Reads `docker://IMAGE OPTIONS`: the runtime, the image and the runtime's own options."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

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
