"""Model specifications, read as text: files, modules, commands and URLs. Nothing is loaded.

`loader.py` beside this file lists the forms and loads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.worker.containers.runtime import located as located_image
from farm.worker.file_version import version_of_file
from farm.worker.kinds import COMMAND, CONTAINERS, FILES, ONE_AT_A_TIME, PICKLES
from farm.worker.servers import forms, urls_of

ALIAS = re.compile(r"(?P<alias>[A-Za-z_][\w.-]*)=(?P<spec>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Spec:
    """The parts of a specification.

    alias: the name that it gives to the model, or "". text: the rest. urls: servers and container
    images. command: a program of the line protocol, or None. path: the file, or the module as a
    path; name: the object in it, or "".
    """

    alias: str
    text: str
    urls: tuple[str, ...]
    command: str | None
    path: Path
    name: str

    @property
    def is_file(self) -> bool:
        """Whether it names a file by its extension."""
        return (
            not self.urls and self.command is None and self.path.suffix in (".py", *FILES, *PICKLES)
        )


def parsed(spec: str) -> Spec:
    """Return the parts of a specification."""
    named = ALIAS.fullmatch(spec)
    alias, text = (named["alias"], named["spec"]) if named else ("", spec)
    if text.startswith(COMMAND):
        return Spec(alias, text, (), text.removeprefix(COMMAND), Path(), "")
    path, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    return Spec(alias, text, tuple(urls_of(text)), None, Path(path).expanduser(), name)


def all_forms() -> str:
    """Return the forms of specifications, for messages."""
    files = ", ".join(f"FILE{suffix}" for suffix in FILES if suffix != ".r")
    return (
        f"FILE.py:NAME, FILE.py, package.module:NAME, {files}, {COMMAND}COMMAND, "
        f"{', '.join(forms())}, MODEL@URL, MODEL@URL,URL or ALIAS=any of these"
    )


def located(spec: str) -> str:
    """Return the spec with an absolute path, for a process in another folder."""
    parts = parsed(spec)
    alias = parts.alias and parts.alias + "="
    if parts.urls:
        return alias + located_image(parts.text)
    if not parts.is_file:
        return spec
    return f"{alias}{parts.path.absolute()}{parts.name and ':' + parts.name}"


def needs_folder(spec: str) -> bool:
    """Whether the spec is looked up in the current folder first: a module, or a command."""
    parts = parsed(spec)
    return not (parts.urls or parts.is_file)


def source_of(spec: str) -> str:
    """Return the file, module or command that a spec names; "" if it names servers."""
    parts = parsed(spec)
    if parts.is_file:
        return str(parts.path.resolve())
    if parts.command is not None:
        return parts.command
    return "" if parts.urls else str(parts.path)


def version_of(spec: str) -> str:
    """Return the version that a model without one of its own has by its file; it is not loaded.

    "" if the spec names no file, or the file has no version.
    """
    parts = parsed(spec)
    content = content_of(parts)
    return "" if content is None else version_of_file(parts.path, content)


def content_of(parts: Spec) -> bytes | None:
    """Return the content of a model's file; None if it alone does not determine the answers."""
    kind = FILES.get(parts.path.suffix)
    if not parts.is_file or not (parts.path.suffix == ".py" or (kind and kind.whole)):
        return None
    try:
        return parts.path.read_bytes()
    except OSError:
        return None


def runs_one_at_a_time(spec: str) -> bool:
    """Whether the model is one program or container, which evaluates one point at a time."""
    parts = parsed(spec)
    if parts.urls:
        return parts.urls[0].partition(":")[0] in CONTAINERS.schemes
    return parts.command is not None or parts.path.suffix in ONE_AT_A_TIME


def most_servers(specs: Sequence[str]) -> int:
    """Return the largest number of servers that one model has; 0 if there are none."""
    return max([len(parsed(spec).urls) for spec in specs], default=0)
