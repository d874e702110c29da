"""Identities of peers: how a peer names itself when it connects, and proves itself on return.

A peer sends its identity first on a connection (on ZeroMQ it is the ROUTING_ID), under encryption
or on a socket of the same user. A worker's identity is its name and a secret that no other peer
learns: knowing only the name, a peer can neither replace the worker nor speak in its name.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from pathlib import Path

from farm.machine.private import user_name

CLIENT_PREFIX = b"client:"
"""Prefix of the identities of native clients. Those of workers are their names, which begin with a
host, and host names contain no colon.
"""

SECRET_MARK = b"#"
LONGEST_PART = 60
"""Characters of a user, host or program in a client's identity, which has at most 255 bytes."""


def worker_identity(name: str) -> str:
    """Return a new identity for a worker called `name`, different for each start."""
    return f"{name}{SECRET_MARK.decode()}{secrets.token_hex(16)}"


def client_identity() -> str:
    """Return a new identity for a client: its user, host, program and process, and a random part.

    Such as `client:anna@login1, mcmc.py 812-9c4e01aa`.
    """
    script = Path((sys.argv or [""])[0])
    name = script.parent.name if script.name == "__main__.py" else script.name
    program = "python" if name in ("", "-c", "-m") else name
    parts = (user_name(), socket.gethostname(), program)
    user, host, program = (
        part.encode("ascii", "replace").decode()[:LONGEST_PART] for part in parts
    )
    prefix = CLIENT_PREFIX.decode()
    return f"{prefix}{user}@{host}, {program} {os.getpid()}-{secrets.token_hex(4)}"


def client_in(identity: bytes) -> str:
    """Return the name of a client, which all its connections from one process share."""
    name = identity.removeprefix(CLIENT_PREFIX).decode("utf-8", "replace")
    return re.sub(r"-[0-9a-f]{8}$", "", name)


def name_in(identity: bytes) -> str:
    """Return the name in an identity, without the secret, for people and logs."""
    return identity.partition(SECRET_MARK)[0].decode("utf-8", "replace")
