"""Signs the plan of a sweep file, which names the program to run.

A sweep file names its models and how they were started, so that the sweep can be resumed. Users
pass files on, and a file from another user must not choose the program that runs. The plan
therefore carries a keyed hash (HMAC-SHA256, RFC 2104) with a secret that only its user can read, as
Jupyter signs notebooks. The hash is of the whole plan: in another file it is wrong.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from farm.errors import Unavailable
from farm.machine.private import read_private
from farm.sweep.design.plan import Plan
from farm.sweep.file.layout import LAYOUT
from farm.sweep.file.recovery import REPLACES

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
    try:
        secret = read_private(path)
    except Unavailable as error:
        raise PermissionError(f"{error}; or remove it, and farm makes a new one") from None
    if len(secret) != LENGTH:
        raise OSError(f"{path} holds {len(secret)} bytes, expected {LENGTH}; remove it")
    return secret


SIGNATURE = "signature"
"""The fact of a plan's provenance that is the signature."""


def signed(plan: Plan) -> Plan:
    """Return `plan` with a signature. Raises OSError without a secret."""
    return replace(plan, provenance={**plan.provenance, SIGNATURE: _hash(plan)})


def is_ours(plan: Plan) -> bool:
    """Whether this user has signed `plan`; False without a secret."""
    try:
        expected = _hash(plan)
    except OSError:
        return False
    return hmac.compare_digest(expected.encode(), plan.provenance.get(SIGNATURE, "").encode())


def _hash(plan: Plan) -> str:
    """Return the keyed hash of layout, points, and all of the plan: run id, target and the rest."""
    facts = {k: v for k, v in plan.provenance.items() if k not in (SIGNATURE, REPLACES)}
    data = [LAYOUT, plan.theta_hash, plan.to_json() | {"provenance": facts}]
    text = "farm sweep plan\n" + json.dumps(data, sort_keys=True)
    return hmac.new(user_secret(), text.encode(), "sha256").hexdigest()
