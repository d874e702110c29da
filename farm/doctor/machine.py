"""This machine: memory, limits of processes, clock, processors, GPUs and container runtimes."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import time
from subprocess import CompletedProcess

from farm.doctor.finding import Finding, ok, warning, wrong
from farm.machine.resources import OPEN_FILES, allowed_cpus, usable_memory
from farm.provision.batch.allocation import end_time
from farm.provision.local.devices import devices
from farm.worker.containers.runtime import PROGRAMS, fault_in

GIB = 2**30

FEW_FILES = 4096
"""A farm of many workers and clients needs more open files than this."""

LITTLE_MEMORY = GIB
FEW_PROCESSES = 1024
SOON_S = 600.0
COMMAND_S = 5.0
OLDEST_CLOCK = 1_735_689_600.0
"""2025-01-01: no clock of a machine with this farm is earlier."""


def memory() -> list[Finding]:
    """Check the memory that this process may use."""
    usable = usable_memory()
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    found = []
    if limit != resource.RLIM_INFINITY:
        text = f"each process may map {_gib(limit)} of addresses (ulimit -v)"
        found.append(warning("memory", text, "ulimit -v unlimited; models may fail to load"))
    text = f"{_gib(usable)} usable"
    if usable < whole:
        text += f" of {_gib(whole)} (limit of this container or job)"
    if usable < LITTLE_MEMORY:
        found.append(warning("memory", text, "ask for more, or start fewer workers: -n"))
    return found or [ok("memory", text)]


def open_files() -> list[Finding]:
    """Check how many files and connections one process may open; farm raises the soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        text = f"a process may open {hard} files and connections; large farms need {OPEN_FILES}"
        return [warning("open files", text, "raise it in /etc/security/limits.conf (nofile)")]
    return [ok("open files", f"{'unlimited' if hard == resource.RLIM_INFINITY else hard}")]


def processes() -> list[Finding]:
    """Check how many processes this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    cpus = allowed_cpus()
    if hard != resource.RLIM_INFINITY and hard < FEW_PROCESSES:
        text = f"this user may have {hard} processes; each worker is one, and has threads"
        return [warning("processors", text, "raise it by ulimit -u")]
    return [ok("processors", f"{cpus} for this process, of {os.cpu_count()}")]


def clock(now: float | None = None) -> list[Finding]:
    """Check that the clock is plausible, and that the system keeps it right if it says so."""
    now = time.time() if now is None else now
    shown = time.strftime("%F %T %Z", time.localtime(now))
    remedy = "synchronise it, such as by chrony: ends of jobs are compared between machines"
    if now < OLDEST_CLOCK:
        return [wrong("clock", f"it shows {shown}", remedy)]
    done = printed(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    answer = "" if done is None or done.returncode else done.stdout.strip()
    if answer == "no":
        return [warning("clock", f"{shown}, and the system does not synchronise it", remedy)]
    return [ok("clock", shown + (", synchronised" if answer == "yes" else ""))]


def gpus() -> list[Finding]:
    """Show the GPUs that workers may use."""
    bound = os.environ.get("CUDA_VISIBLE_DEVICES")
    if bound is None and shutil.which("nvidia-smi") is None:
        return [ok("GPUs", "none (no nvidia-smi here)")]
    try:
        found = devices("auto")
    except Exception as error:
        if bound is not None:
            return [ok("GPUs", f"none for this process: CUDA_VISIBLE_DEVICES is {bound!r}")]
        remedy = "look at what nvidia-smi says; workers of --gpus cannot start"
        return [warning("GPUs", f"nvidia-smi lists none: {error}", remedy)]
    return [ok("GPUs", f"{len(found)}: {', '.join(found)}")]


def containers() -> list[Finding]:
    """Show the container runtimes whose programs are here, and whether Docker's daemon answers."""
    found = [name for name in PROGRAMS if any(map(shutil.which, PROGRAMS[name]))]
    if not found:
        return [ok("containers", "no docker, podman or apptainer here")]
    findings = [ok("containers", ", ".join(found))]
    if "docker" in found:
        done = printed(["docker", "version", "--format", "{{.Server.Version}}"])
        said = f"no answer in {COMMAND_S:g} s, or it cannot be run"
        if done is not None:
            said = done.stderr if done.returncode else ""
        if said:
            text = f"docker cannot be used: {' '.join(said.split())}"
            remedy = fault_in(said) or "look at what `docker version` says"
            others = [name for name in found if name != "docker"]
            findings = [ok("containers", ", ".join(others))] if others else []
            findings.append(warning("containers", text, remedy))
    return findings


def time_limits() -> list[Finding]:
    """Check limits after which the system ends processes here: CPU time, and the job's end."""
    found = []
    soft, _ = resource.getrlimit(resource.RLIMIT_CPU)
    if soft != resource.RLIM_INFINITY:
        text = f"each process here is ended after {soft} s of processor time (ulimit -t)"
        found.append(warning("time limits", text, "serve from a node without that limit, or a job"))
    ends_at = end_time()
    if ends_at is not None:
        left = ends_at - time.time()
        text = f"this batch job ends in {left / 60:.0f} min"
        if left < SOON_S:
            found.append(warning("time limits", text, "submit a longer job"))
        else:
            found.append(ok("time limits", text))
    return found or [ok("time limits", "none")]


def printed(command: list[str], limit_s: float = COMMAND_S) -> CompletedProcess[str] | None:
    """Return how a command ended and what it printed; None if it is missing or takes too long."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    return None


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
