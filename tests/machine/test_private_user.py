"""The user whose jobs a farm manages."""

from __future__ import annotations

import os
import pwd

import pytest

from farm.machine.private import user_name


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_name() == pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert user_name() == str(2**31 - 7)
