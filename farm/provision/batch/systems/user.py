"""The user whose jobs a farm manages."""

from __future__ import annotations

import os
import pwd


def user_name() -> str:
    """Return the name of this process's user, or its number if it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
