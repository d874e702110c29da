"""The batch system of this machine, if there is one: does it answer, and has it the queues."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

from farm.doctor.finding import Finding, Weight, ok, warning, wrong
from farm.errors import FarmError, Unavailable
from farm.provision.batch.commands import Commands
from farm.provision.batch.plan import ClusterPlan, read_plan
from farm.provision.batch.system import BatchError, BatchSystem, Stand
from farm.provision.batch.systems import SYSTEMS
from farm.provision.batch.systems.slurm import clean
from farm.settings import SettingsError
from farm.wording import counted

ANSWER_S = 15.0


def systems(cluster: Path | None = None, used: str = "") -> list[Finding]:
    """Ask the batch systems for this user's jobs.

    cluster: a file whose system alone is asked; it is wrong if that does not answer. used: the
    title of the system that the farm uses, which alone is asked otherwise. Without both, each
    system whose commands are here is asked; one that does not answer is a warning, unless another
    one answers.
    """
    needed = _system_of(cluster)
    asked_for = needed.title if needed is not None else used
    owner = "" if asked_for else qstat_owner()
    answering: list[Finding] = []
    if owner == UNKNOWN:
        text = "qstat is neither that of PBS nor that of Grid Engine"
        remedy = "look at the output of `qstat --version` and `qstat -help`"
        answering.append(warning("batch system", text, remedy))
    silent: list[Finding] = []
    for name, system in SYSTEMS.items():
        if asked_for and system.title != asked_for:
            continue
        if owner and name in QSTAT_SYSTEMS and name != owner:
            continue  # PBS and Grid Engine have commands of the same names
        make = wrong if system is needed else warning
        try:
            asked = system()
        except Unavailable as error:
            if system is needed:
                remedy = "run this where its commands are, such as a login node; or load a module"
                silent.append(wrong("batch system", error.message, remedy))
            continue
        remedy = f"try `{system.own_jobs}` by hand; farm cannot start jobs until it answers"
        try:
            listing = asyncio.run(asyncio.wait_for(asked.jobs(), ANSWER_S))
        except (BatchError, TimeoutError) as error:
            said = str(error) or f"no answer in {ANSWER_S:g} s"
            silent.append(make("batch system", f"{system.title} does not answer: {said}", remedy))
            continue
        if listing.problem:
            answering.append(warning("batch system", f"{system.title}: {listing.problem}", remedy))
        else:
            live = sum(row.stand is not Stand.ENDED for row in listing.rows)
            text = f"{system.title} answers; you have {counted(live, 'job')}"
            answering.append(ok("batch system", text))
        if name == "slurm" and shutil.which("sinfo"):
            answering += _partitions()
    if answering:
        silent = [finding for finding in silent if finding.weight is Weight.WRONG]
    return answering + silent or [ok("batch system", "none on this machine")]


def _system_of(cluster: Path | None) -> type[BatchSystem] | None:
    """Return the batch system that a file for `--cluster` names; None if it cannot be read."""
    try:
        return None if cluster is None else _read(cluster).system
    except (SettingsError, FarmError):
        return None  # `plan` reports it


def plan(path: Path) -> list[Finding]:
    """Check a file for `farm serve --cluster`: it can be read, and its partitions exist."""
    try:
        read = _read(path)
    except (SettingsError, FarmError) as error:
        return [wrong("cluster file", str(error), f"correct {path}")]
    found: list[Finding] = []
    if read.system is SYSTEMS["slurm"] and shutil.which("sinfo"):
        try:
            there = partitions(_sinfo())
        except BatchError:  # `systems` reports it
            there = {}
        found = [
            wrong(
                "cluster file",
                f"kind {kind.name!r} wants partition {name!r}, which SLURM does not have",
                f"set queue to one of: {', '.join(sorted(there))}",
            )
            for kind in read.kinds
            for name in filter(None, (kind.queue or "").split(","))
            if there and name not in there
        ]
    text = f"{path}: {len(read.kinds)} kinds of workers for {read.system.title}"
    return found or [ok("cluster file", text)]


def partitions(text: str) -> dict[str, tuple[bool, int]]:
    """Return, by name, whether a partition is up and its usable nodes, from sinfo's lines P|a|D|t.

    The star of the default partition is dropped, as are the marks of a node's state.
    """
    found: dict[str, tuple[bool, int]] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 4 or not fields[2].isdecimal():
            continue
        name = fields[0].removesuffix("*")
        state = fields[3].rstrip("*~#!%$@^-+")
        usable = int(fields[2]) if state in ("idle", "mix", "alloc", "comp") else 0
        found[name] = (fields[1] == "up", found.get(name, (True, 0))[1] + usable)
    return found


def _read(path: Path) -> ClusterPlan:
    """Return the plan in a file, whose kinds may leave the models to the command line."""
    return read_plan(path, ("model.py",))


def _partitions() -> list[Finding]:
    try:
        found = partitions(_sinfo())
    except BatchError as error:
        return [wrong("partitions", f"sinfo: {error}", "try sinfo by hand")]
    if not found:
        return [wrong("partitions", "sinfo lists none", "ask your administrators")]
    text = ", ".join(
        f"{name} ({counted(nodes, 'node')})" for name, (_, nodes) in sorted(found.items())
    )
    if not any(is_up and nodes for is_up, nodes in found.values()):
        remedy = "jobs stay pending; look at: sinfo --list-reasons"
        return [wrong("partitions", f"none is up with usable nodes: {text}", remedy)]
    down = [name for name, (is_up, nodes) in sorted(found.items()) if not (is_up and nodes)]
    if down:
        remedy = "jobs for it stay pending; look at: sinfo --list-reasons"
        return [warning("partitions", f"{', '.join(down)} is down; all: {text}", remedy)]
    return [ok("partitions", text)]


def _sinfo() -> str:
    """Return sinfo's lines of partition, availability, nodes and their state. Raises BatchError."""
    commands = Commands(clean, timeout_s=ANSWER_S)
    return asyncio.run(commands.run("sinfo", "-h", "-o", "%P|%a|%D|%t"))


QSTAT_S = 5.0

QSTAT_SYSTEMS = ("pbs", "grid-engine")
"""The batch systems that have a command `qstat`."""

UNKNOWN = "unknown"

_PBS = re.compile(r"\bpbs_version\b", re.IGNORECASE)
"""Output of `qstat --version`; source: qstat(1B) of PBS Pro."""

_GRID_ENGINE = re.compile(r"^usage: qstat \[options\]|\bGrid Engine\b|^\w*GE \d", re.MULTILINE)
"""Output of `qstat -help`: a line with the version, such as `SGE 8.1.9`, and then the usage."""


def qstat_owner() -> str:
    """Return the key of the system that `qstat` belongs to; UNKNOWN for others; empty: no qstat."""
    if (path := shutil.which("qstat")) is None:
        return ""
    if _PBS.search(_printed(path, "--version")):
        return "pbs"
    return "grid-engine" if _GRID_ENGINE.search(_printed(path, "-help")) else UNKNOWN


def _printed(*command: str) -> str:
    """Return what a command prints; empty if it cannot be run or does not end."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=QSTAT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
