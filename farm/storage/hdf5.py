"""HDF5 files on any file system: opening with retries, and the errors that h5py raises."""

from __future__ import annotations

import time
from pathlib import Path

import h5py

PATIENCE_S = 5.0
"""Longest wait for readers, in seconds: a short read takes less, a longer one is an error."""

HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""Exceptions that h5py raises for a damaged file or a full disk, depending on the call."""


def open_file(path: Path, mode: str, *, patience_s: float = PATIENCE_S) -> h5py.File:
    """Open an HDF5 file, with HDF5's own lock if the file system supports locks.

    To write, waits up to `patience_s` seconds for programs that read it. Raises OSError.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return h5py.File(path, mode, locking="best-effort")
        except BlockingIOError:
            if mode == "r" or time.monotonic() > until:
                raise
        time.sleep(0.05)
