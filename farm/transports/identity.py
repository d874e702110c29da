"""Identities of peers: how a peer names itself when it connects, and proves itself on return.

A peer sends its identity first on a connection (on ZeroMQ it is the ROUTING_ID), under encryption
or on a socket of the same user. A worker's identity is its name and a secret that no other peer
learns: knowing only the name, a peer can neither replace the worker nor speak in its name.
"""

from __future__ import annotations

import secrets

CLIENT_PREFIX = b"client:"
"""Prefix of the identities of native clients. Those of workers are their names, which begin with a
host, and host names contain no colon.
"""

SECRET_MARK = b"#"


def worker_identity(name: str) -> str:
    """Return a new identity for a worker called `name`, different for each start."""
    return f"{name}{SECRET_MARK.decode()}{secrets.token_hex(16)}"


def name_in(identity: bytes) -> str:
    """Return the name in an identity, without the secret, for people and logs."""
    return identity.partition(SECRET_MARK)[0].decode("utf-8", "replace")
