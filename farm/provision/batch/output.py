"""The end of a job's output, which tells why the job failed."""

from __future__ import annotations

from pathlib import Path

BYTES = 8192
"""How much of the end is searched."""


def last_words(path: Path) -> str:
    """Return the last output of a job: farm's error line if there is one, or the last lines."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return f"; {path} cannot be read"
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("farm: error: ")]
    said = " / ".join(errors[-1:] or lines[-2:])
    return f"; {path} ends: {said[-400:]}" if said else f"; {path} is empty"
