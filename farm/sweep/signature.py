"""Marks what a sweep file runs as written by this user.

A sweep keeps which models it ran and how they were started, so that it can be resumed. Files are
passed on; what somebody else's file names must not run because it is named there. So that part
carries a keyed hash (HMAC-SHA256, RFC 2104) with a secret that only its user can read, as Jupyter
signs notebooks.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from farm.machine.secret import user_secret

SIGNED = "target"
SIGNATURE = "target_hmac"


def signed(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts of a sweep with the signature of what it runs. Raises OSError without a secret."""
    return {**facts, SIGNATURE: _hash(facts.get(SIGNED, ""))}


def is_ours(facts: Mapping[str, str]) -> bool:
    """Whether this user has signed what these facts say is run; False without a secret."""
    try:
        expected = _hash(facts.get(SIGNED, ""))
    except OSError:
        return False
    return hmac.compare_digest(expected.encode(), facts.get(SIGNATURE, "").encode())


def _hash(target: str) -> str:
    return hmac.new(user_secret(), b"farm sweep\n" + target.encode(), "sha256").hexdigest()
