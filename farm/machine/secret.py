"""A secret of this user, shared by every machine with the same home folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

LENGTH = 32


def user_secret(environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the 32 random bytes in `farm/key` below `$XDG_STATE_HOME` (default `~/.local/state`).

    A missing file is created, readable by its owner only. Raises OSError if it cannot be created or
    read, and PermissionError if others can read or write it. Source: XDG Base Directory
    Specification 0.8.
    """
    path = key_path(environment)
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".key.{secrets.token_hex(8)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(LENGTH))
        with contextlib.suppress(FileExistsError):  # another process was quicker
            os.link(new, path)
    finally:
        new.unlink()
    return _read(path)


def key_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the secret."""
    state = environment.get("XDG_STATE_HOME", "")
    # The specification says to ignore relative paths.
    folder = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return folder / "farm" / "key"


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        mode = found.st_mode & 0o777
        if found.st_uid != os.geteuid() or mode & 0o077:
            raise PermissionError(
                f"{path} is not yours alone (owner {found.st_uid}, mode {mode:o}); "
                "remove it, and farm makes a new one"
            )
        secret = file.read(LENGTH + 1)
    if len(secret) != LENGTH:
        raise OSError(f"{path} holds {len(secret)} bytes, expected {LENGTH}; remove it")
    return secret
