"""Processor time and context switches of a program's processes, as the kernel counts them."""

from __future__ import annotations

import contextlib
from pathlib import Path

Use = dict[str, tuple[float, float]]
"""By the name of a process: processor time in µs, and voluntary context switches."""


def processes(root: int) -> list[int]:
    """Return a process and its descendants."""
    parents: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (each / "stat").read_text()
                parents[int(each.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += sorted(child for child, parent in parents.items() if parent == pid)
    return found


def name_of(pid: int) -> str:
    """Return what a process is: "worker", "server", or the module of farm that it runs."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    if "--worker" in words or "farm.provision.local.process" in words:
        return "worker"
    return next((word for word in words if word.startswith("farm.")), "server")


def use(pids: list[int]) -> Use:
    """Return what these processes have used so far, all threads of each together."""
    used: Use = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            name = name_of(pid)
            cpu_us, switches = used.get(name, (0.0, 0.0))
            for thread in Path(f"/proc/{pid}/task").iterdir():
                cpu_us += int((thread / "schedstat").read_text().split()[0]) / 1000
                status = (thread / "status").read_text()
                switches += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
            used[name] = cpu_us, switches
    return used


def difference(after: Use, before: Use) -> Use:
    """Return what was used between two times."""
    nothing = (0.0, 0.0)
    return {
        name: (cpu - before.get(name, nothing)[0], switches - before.get(name, nothing)[1])
        for name, (cpu, switches) in after.items()
    }
