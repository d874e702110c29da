"""Provenance of a sweep: command, versions, model code, machine, job, commit; no secrets."""

from __future__ import annotations

import inspect
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from farm.functions import FunctionModel, PlainFunction
from farm.model import Model
from farm.provision.batch.systems import BatchSystem, of_this_job, usable
from farm.version import __version__

PACKAGES = ("numpy", "scipy", "h5py", "salib")
"""Packages whose versions are facts of a sweep, "" for one that is not installed."""

SLURM = {
    "SLURM_JOB_ID": "slurm_job_id",
    "SLURM_ARRAY_TASK_ID": "slurm_array_task_id",
    "SLURM_CLUSTER_NAME": "slurm_cluster",
    "SLURM_JOB_NODELIST": "slurm_nodes",
}

USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
GIT_S = 10.0


def provenance(
    argv: Sequence[str],
    *,
    target: str = "",
    notes: str = "",
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> dict[str, str]:
    """Return facts to store with a sweep, as text by name; unknown facts are omitted.

    target: the farm that ran the sweep, as JSON text or an address. folder: the folder of a
    git repository; None: the current folder.
    """
    facts = {
        "argv": without_secrets(" ".join(argv)),
        "target": without_secrets(target),
        "farm_version": __version__,
        "python_version": platform.python_version(),
        **{f"{name}_version": _version(name) for name in PACKAGES},
        "host": platform.node(),
        "platform": platform.platform(),
        "folder": str(folder or Path.cwd()),
        "git": _git(folder or Path.cwd()),
        "notes": notes,
        **{key: environment.get(name, "") for name, key in SLURM.items()},
        "job": job_of(environment),
    }
    return {key: text for key, text in facts.items() if text}


def job_of(environment: Mapping[str, str] = os.environ) -> str:
    """Return the batch job that this process is in, the same when it is started again; or "".

    Also "" if its batch system does not tell it that it was started before.
    """
    system = _system_of(environment)
    if system is None:
        return ""
    task = environment.get(system.job.task, system.job.no_task)
    number = environment[system.job.id] + ("" if task == system.job.no_task else f"[{task}]")
    return f"{number} on {environment.get(system.job.cluster) or system.title}"


def restarted_job(environment: Mapping[str, str] = os.environ) -> str:
    """Return the job that this process is in, as `job_of`, if it was started before; or ""."""
    system = _system_of(environment)
    restarts = "" if system is None else environment.get(system.job.restart, "")
    return job_of(environment) if restarts not in ("", "0") else ""


def is_of_restarted_job(
    facts: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> bool:
    """Whether `facts` were written by an earlier start of the job that this process is in."""
    return restarted_job(environment) == facts.get("job", "") != ""


def _system_of(environment: Mapping[str, str]) -> BatchSystem | None:
    return of_this_job(environment, [system for system in usable() if system.job.restart])


def command_line() -> list[str]:
    """Return the command line of this process, as the user typed it."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def without_secrets(text: str) -> str:
    """Return `text` without the user names and tokens in its URLs."""
    return USER_IN_URL.sub("", text)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _git(folder: Path) -> str:
    """Return the commit, with "-dirty" if files differ from it; "" outside a repository."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return described.stdout.strip() if described.returncode == 0 else ""


def code_of(model: Model) -> str:
    """Return the fingerprint of a model's class, or of the function that it was made of.

    It tells a script or a notebook that continues a sweep whether the model was edited meanwhile.
    Comments do not count, and functions that the model calls are not looked at.
    """
    found = blake2b(digest_size=8)
    for function in _functions(model):
        for text in _texts(function.__code__):
            found.update(f"{len(text)} {text}".encode("utf-8", "surrogatepass"))
    return f"code:{found.hexdigest()}"


def _functions(model: Model) -> Iterator[FunctionType]:
    if isinstance(model, FunctionModel | PlainFunction):
        members: list[Any] = [model.function]
    else:
        mro = type(model).__mro__
        classes = mro[: mro.index(Model)]
        members = [member for each in classes for _, member in sorted(vars(each).items())]
    for member in members:
        bare = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if callable(bare) and isinstance(function := inspect.unwrap(bare), FunctionType):
            yield function


def _texts(code: CodeType) -> Iterator[str]:
    """Yield all that a function does, in texts that are the same in every process."""
    yield repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _texts(constant)
        elif isinstance(constant, frozenset):  # its order differs from process to process
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)
