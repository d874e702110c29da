"""Provenance of a sweep: command, versions, machine, job and git commit, without secrets."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from farm.version import __version__

PACKAGES = ("numpy", "scipy", "h5py")
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
    }
    return {key: text for key, text in facts.items() if text}


def job_of(environment: Mapping[str, str] = os.environ) -> str:
    """Return the SLURM job that this process is in, the same when SLURM starts it again; or ""."""
    if "SLURM_JOB_ID" not in environment:
        return ""
    return f"{environment['SLURM_JOB_ID']} on {environment.get('SLURM_CLUSTER_NAME', '')}"


def restarted_job(environment: Mapping[str, str] = os.environ) -> str:
    """Return the job that this process is in if SLURM has started it before; otherwise ""."""
    return "" if environment.get("SLURM_RESTART_COUNT", "0") == "0" else job_of(environment)


def is_of_restarted_job(
    facts: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> bool:
    """Whether `facts` were written by an earlier start of the job that this process is in."""
    then = {name: facts[key] for name, key in SLURM.items() if key in facts}
    return restarted_job(environment) == job_of(then) != ""


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
