"""What failed, as Python asks a farm: over its own protocol and over HTTP."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from farm.client import connect
from farm.client.failures import FailedCalls, LostWorkers, row_of
from farm.errors import ModelFailed
from farm.server.in_process import serve
from farm.transports.connection import read_connection

LOSS = {
    "id": "3f2a90c1",
    "cause": "crash",
    "text": "exit code 3",
    "count": 2,
    "first": 1.0,
    "last": 2.0,
    "worker": "n1/1-a",
    "host": "n1",
    "hosts": {"n1": 2},
    "exit_code": 3,
    "signal": "",
    "detail": "",
}


def root(x: float) -> float:
    return math.sqrt(x)


def test_failures_are_asked_over_any_line(tmp_path: Path) -> None:
    with serve(root, port=0, dir=tmp_path / "run") as client:
        assert client.failures() == []
        assert client.losses() == []
        model = client.model("root")
        for x in (-1.0, 4.0, -2.0):
            if x > 0:
                assert model(x) == 2.0
                continue
            with pytest.raises(ModelFailed):
                model(x)
        (found,) = client.failures()
        assert isinstance(found, FailedCalls)
        assert (found.kind, found.model, found.operation) == ("ModelFailed", "root", "evaluate")
        assert (found.count, found.text) == (2, "ValueError: math domain error")
        assert found.first <= found.last
        assert "return math.sqrt(x)" in found.detail
        with connect(read_connection(tmp_path / "run").url) as other:
            assert other.failures() == [found]


def test_a_row_is_read_whatever_else_a_newer_farm_says_of_it() -> None:
    row = row_of(LostWorkers, {**LOSS, "weather": "rain"})
    assert (row.cause, row.exit_code, row.hosts) == ("crash", 3, {"n1": 2})
