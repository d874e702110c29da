"""How a peer says who it is when it dials in, and how it proves to be the same when it comes back.

A peer's identity is its first word on a connection (on ZeroMQ its ROUTING_ID), said under
encryption or on a socket of the same user. That of a worker is its name and a secret of its own,
which no other peer is ever told: whoever has the name alone can neither take the worker's place
nor speak in its name.
"""

from __future__ import annotations

import secrets

CLIENT_PREFIX = b"client:"
"""Identities of native clients begin so; those of workers are their names, which begin with a host,
and hosts have no colon."""

SECRET_MARK = b"#"


def worker_identity(name: str) -> str:
    """The identity of one incarnation of the worker called `name`: another one each time."""
    return f"{name}{SECRET_MARK.decode()}{secrets.token_hex(16)}"


def name_in(identity: bytes) -> str:
    """The name in an identity, for people and logs: without the secret."""
    return identity.partition(SECRET_MARK)[0].decode("utf-8", "replace")
