"""Signs the part of a sweep file that names the program to run.

A sweep file names its models and how they were started, so that the sweep can be resumed. Users
pass files on, and a file from another user must not choose the program that runs. That part of the
file therefore carries a keyed hash (HMAC-SHA256, RFC 2104) with a secret that only its user can
read, as Jupyter signs notebooks.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from farm.machine.secret import user_secret

SIGNED = "target"
SIGNATURE = "target_hmac"


def signed(facts: Mapping[str, str]) -> dict[str, str]:
    """Return `facts` with a signature of the target they name. Raises OSError without a secret."""
    return {**facts, SIGNATURE: _hash(facts.get(SIGNED, ""))}


def is_ours(facts: Mapping[str, str]) -> bool:
    """Whether this user has signed the target that `facts` names; False without a secret."""
    try:
        expected = _hash(facts.get(SIGNED, ""))
    except OSError:
        return False
    return hmac.compare_digest(expected.encode(), facts.get(SIGNATURE, "").encode())


def _hash(target: str) -> str:
    return hmac.new(user_secret(), b"farm sweep\n" + target.encode(), "sha256").hexdigest()
