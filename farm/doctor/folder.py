"""The run folder: its disk and file system, its permissions and those of the keys in it."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from farm.doctor.finding import Finding, ok, warning, wrong
from farm.machine.private import OTHERS
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
