"""The folders of farm: disk, file system, permissions, and all that is left of them."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from farm.doctor.finding import Finding, Weight, ok, warning, wrong
from farm.machine.private import LOCK, OTHERS, abandoned
from farm.sweep.file.signature import key_path
from farm.transports.connection import CLIENTS_FILE, WORKERS_FILE

MOUNTS = Path("/proc/self/mountinfo")

SHARED = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cephfs", "ceph", "fuse.beegfs", "panfs")
"""File systems that several machines usually see."""

HINTS = {
    "nfs": "other machines see new files some seconds late",
    "nfs4": "other machines see new files some seconds late",
    "lustre": "farm uses no flock here; many small files are slow",
    "tmpfs": "it is in memory, is lost at a reboot, and other machines do not see it",
    "ramfs": "it is in memory, is lost at a reboot, and other machines do not see it",
}

LEAST_BYTES, LOW_BYTES = 64 * 2**20, 2**30
"""Free space below which nothing works, and below which logs and sweeps may soon fill the disk."""

KEYS = (CLIENTS_FILE, WORKERS_FILE, "farm.key")


def disk(folder: Path, mounts: Path = MOUNTS) -> list[Finding]:
    """Check that the folder, or the one that it would be made in, can be written and has room."""
    place = nearest(folder)
    kind = file_system(place, mounts)
    free = shutil.disk_usage(place).free
    facts = os.statvfs(place)
    text = f"{free / 2**30:.1f} GiB free on {kind or 'the disk'} of {place}"
    if facts.f_flag & os.ST_RDONLY or not os.access(place, os.W_OK | os.X_OK):
        remedy = "choose another: farm serve --dir FOLDER"
        return [wrong("disk", f"{place} cannot be written by this user", remedy)]
    if free < LEAST_BYTES or (facts.f_files and not facts.f_favail):
        what = text if free < LEAST_BYTES else f"no more files can be made in {place}"
        return [wrong("disk", what, "make room, or choose another: farm serve --dir FOLDER")]
    if free < LOW_BYTES:
        return [warning("disk", text, "make room: logs, records and sweeps grow")]
    hint = HINTS.get(kind, "all machines that mount it can start workers" * (kind in SHARED))
    return [ok("disk", text + (f"; {hint}" if hint else ""))]


def permissions(folder: Path) -> list[Finding]:
    """Check that only this user can enter the run folder and read the keys in it."""
    if not folder.is_dir():
        return [ok("keys", f"no run folder {folder} yet")]
    found = []
    facts = folder.stat()
    keys = [folder / name for name in KEYS if (folder / name).exists()]
    if facts.st_uid != os.geteuid():
        text = f"{folder} belongs to user {facts.st_uid}, who can read its keys"
        found.append(wrong("keys", text, "serve from a folder of your own: --dir FOLDER"))
    elif keys and facts.st_mode & OTHERS:
        text = f"others can enter {folder} (mode {stat.S_IMODE(facts.st_mode):o}, expected 700)"
        found.append(wrong("keys", text, f"chmod 700 {folder}"))
    for path in keys:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            text = f"others can read {path} (mode {mode:o}, expected 600), so farm refuses it"
            found.append(wrong("keys", text, f"chmod 600 {path}"))
        elif not os.access(path, os.R_OK):
            found.append(wrong("keys", f"this user cannot read {path}", f"chown or chmod {path}"))
    if found:
        return found
    names = ", ".join(path.name for path in keys)
    return [ok("keys", f"{names} in {folder}, for this user only" if keys else f"none in {folder}")]


def left(folder: Path) -> list[Finding]:
    """List all that farm has on this machine's disks for this user, with how to remove it.

    folder: the run folder. Other run folders are looked for in the current folder only.
    """
    found = [*_run_folders(folder), *_temporary()]
    key = key_path()
    if key.exists():
        remedy = f"rm {shlex.quote(str(key))}, and sweep files written so far need --trust"
        found.append(_left(f"the key {key}, which signs this user's sweep files", remedy))
    return found or [ok("left on disk", "nothing")]


def _run_folders(folder: Path) -> Iterator[Finding]:
    """Yield a finding for the run folder, and for others in the current folder."""
    for path in sorted({folder, *Path().glob("farm-*")}):
        marks = [name for name in (*KEYS, "logs", "jobs") if (path / name).exists()]
        if not (marks and _is_own(path)):
            continue
        remedy = f"rm -r {shlex.quote(str(path))}"
        text = f"the run folder {path}, {_size(path)}"
        if CLIENTS_FILE in marks:
            text += ", of a farm that runs or was killed"
            remedy = f"farm stop {shlex.quote(str(path))}, and then: {remedy}"
        yield _left(text, remedy)


def _temporary() -> Iterator[Finding]:
    """Yield a finding for each temporary folder of farm."""
    place = Path(tempfile.gettempdir())
    gone = set(abandoned())
    for path in sorted(filter(_is_own, place.iterdir())):
        text = f"the temporary folder {path}, {_size(path)}"
        remedy = f"rm -r {shlex.quote(str(path))}"
        if path in gone:
            remedy = f"the next start of a farm removes it; or: {remedy}"
            yield _left(f"{text}, of a process that was killed", remedy)
        elif (path / LOCK).exists():
            yield _left(f"{text}, in use", "it goes with the process that uses it")
        elif path.name.startswith("farm-"):
            remedy = f"once no farm of yours runs here: {remedy}"
            yield _left(f"{text}, which no process has locked", remedy)


def _left(text: str, remedy: str) -> Finding:
    return Finding("left on disk", Weight.OK, text, remedy)


def _is_own(path: Path) -> bool:
    """Whether a path is a folder of this user, and no link."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()


def _size(folder: Path) -> str:
    """Return the size of all files in a folder."""
    paths = (Path(where, name) for where, _, names in os.walk(folder) for name in names)
    return f"{sum(path.lstat().st_size for path in paths if path.exists()) / 2**20:.1f} MiB"


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def file_system(place: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that a path is on, such as `nfs4`; empty if unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after.split():
            continue
        point = Path(fields[4].replace("\\040", " "))  # mountinfo(5) escapes blanks
        if place.is_relative_to(point) and len(point.parts) >= best:  # the last mount is on top
            best, kind = len(point.parts), after.split()[0]
    return kind
