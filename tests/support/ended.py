"""Whether processes have ended."""

from __future__ import annotations

from pathlib import Path


def has_ended(pid: int) -> bool:
    """Whether a process has ended; its parent may not have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
