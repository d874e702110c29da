"""Configs and derivative arguments from a request's JSON; test_umbridge.py has more of them."""

from __future__ import annotations

import pytest

from farm.encoding.config import decode_config
from farm.encoding.json_numbers import MOST_CONFIG
from farm.errors import InvalidInput


def test_a_config_may_have_a_million_characters() -> None:
    body = b'{"name":"beam","input":[[1]],"config":{"a":"%b"}}'
    message = {"config": {"a": "x" * (MOST_CONFIG - 8)}}
    assert len(decode_config(message, body)) == MOST_CONFIG
    message["config"]["a"] += "x"
    with pytest.raises(InvalidInput, match=f"expected {MOST_CONFIG} at most"):
        decode_config(message, body)
