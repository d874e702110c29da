"""A report of use arrives as it was, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.errors import InvalidRequest
from farm.wire.usage import Used, decode_usage


@pytest.mark.parametrize("used", [Used(), Used(10, 1.5), Used(None, 0.0)])
def test_reports_arrive_as_they_were(used: Used) -> None:
    assert decode_usage(json.loads(json.dumps(used._asdict()))) == used


def test_keys_of_later_versions_are_ignored() -> None:
    assert decode_usage({"memory_bytes": 5, "gpu": 1}) == Used(5, None)


@pytest.mark.parametrize(
    "data",
    [
        7,
        [],
        "text",
        {"memory_bytes": -1},
        {"memory_bytes": 1.5},
        {"memory_bytes": True},
        {"processor": "1"},
        {"processor": True},
        {"processor": -0.1},
        {"processor": float("inf")},
        {"processor": float("nan")},
    ],
)
def test_others_are_refused(data: Any) -> None:
    with pytest.raises(InvalidRequest):
        decode_usage(data)
