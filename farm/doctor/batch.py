"""The batch system of this machine, if there is one: does it answer, and has it the queues."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from farm.doctor.finding import Finding, Weight, ok, warning, wrong
from farm.doctor.machine import printed
from farm.errors import FarmError, Unavailable
from farm.provision.batch.commands import Commands
from farm.provision.batch.plan import ClusterPlan, read_plan
from farm.provision.batch.system import BatchError, Stand
from farm.provision.batch.systems import SLURM, BatchSystem, every
from farm.settings import SettingsError
from farm.wording import counted

ANSWER_S = 15.0
PROOF_S = 5.0


def systems(cluster: Path | None = None, used: str = "") -> list[Finding]:
    """Ask the batch systems for this user's jobs.

    cluster: a file whose system alone is asked; it is wrong if that does not answer. used: the
    title of the system that the farm uses, which alone is asked otherwise. Without both, each
    system whose commands are here is asked; one that does not answer is a warning, unless another
    one answers.
    """
    needed = _system_of(cluster)
    try:
        known = every()
    except Unavailable as error:
        return [wrong("batch system", error.message, "remove that package, or install it again")]
    answering: list[Finding] = []
    silent: list[Finding] = []
    if title := needed.title if needed is not None else used:
        asked = [system for system in known if system.title == title]
    else:
        asked, answering = _with_own_commands(known)
    for system in asked:
        make = wrong if system is needed else warning
        try:
            adapter = system.load()()
        except Unavailable as error:
            if system is needed:
                remedy = "run this where its commands are, such as a login node; or load a module"
                silent.append(wrong("batch system", error.message, remedy))
            continue
        remedy = f"try `{system.own_jobs}` by hand; farm cannot start jobs until it answers"
        try:
            listing = asyncio.run(asyncio.wait_for(adapter.jobs(), ANSWER_S))
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
        if system is SLURM and shutil.which("sinfo"):
            answering += _partitions()
    if answering:
        silent = [finding for finding in silent if finding.weight is Weight.WRONG]
    return answering + silent or [ok("batch system", "none on this machine")]


def _with_own_commands(known: Sequence[BatchSystem]) -> tuple[list[BatchSystem], list[Finding]]:
    """Return the systems whose commands here, if any, are their own.

    The findings name commands that belong to none of the systems with a command of that name.
    """
    rivals: dict[str, list[BatchSystem]] = {}
    for system in known:
        if system.proof:
            rivals.setdefault(system.proof[0].split()[0], []).append(system)
    findings, others = [], []
    for command, sharing in rivals.items():
        owner = next(filter(_is_proven, sharing), None)
        others += [system for system in sharing if system is not owner]
        if owner is None and shutil.which(command) is not None:
            titles = " nor that of ".join(system.title for system in sharing)
            lines = " and ".join(f"`{system.proof[0]}`" for system in sharing if system.proof)
            text = f"{command} is neither that of {titles}"
            findings.append(warning("batch system", text, f"look at the output of {lines}"))
    return [system for system in known if system not in others], findings


def _is_proven(system: BatchSystem) -> bool:
    """Whether a command here prints what proves that it is this system's."""
    assert system.proof is not None
    line, form = system.proof
    done = printed(line.split(), PROOF_S)
    return done is not None and re.search(form, done.stdout + done.stderr) is not None


def _system_of(cluster: Path | None) -> BatchSystem | None:
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
    if read.system is SLURM and shutil.which("sinfo"):
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
    text = f"{path}: {counted(len(read.kinds), 'kind')} of workers for {read.system.title}"
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
    commands = Commands(SLURM.outside_jobs, timeout_s=ANSWER_S)
    return asyncio.run(commands.run("sinfo", "-h", "-o", "%P|%a|%D|%t"))
