"""`farm url`: prints the address with the token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.transports.connection import Connection, write_connection
from tests.support.dispatcher_farm import run_here

CONNECTION = Connection("tcp://n:1", url="http://node17:4242", token="t0ken", grpc="node17:8001")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "farm-run").mkdir()
    write_connection(tmp_path / "farm-run" / "farm.json", CONNECTION)
    return tmp_path


@pytest.mark.parametrize("where", [[], ["farm-run"], ["farm-run/farm.json"]])
def test_the_address_with_its_token(folder: Path, where: list[str]) -> None:
    expected = (0, "http://farm:t0ken@node17:4242\n", "")
    assert run_here("url", *where, cwd=folder) == expected


def test_its_parts(folder: Path) -> None:
    status, out, _ = run_here("url", "--json", cwd=folder)
    assert status == 0
    assert json.loads(out) == {
        "address": "http://node17:4242",
        "grpc": "node17:8001",
        "token": "t0ken",
        "url": "http://farm:t0ken@node17:4242",
    }


def test_no_farm_and_no_address(folder: Path) -> None:
    status, out, errors = run_here("url", "elsewhere", cwd=folder)
    assert (status, out) == (6, "")
    assert "no connection file elsewhere" in errors
    write_connection(folder / "farm-run" / "farm.json", Connection("tcp://n:1", token="t0ken"))
    status, out, errors = run_here("url", cwd=folder)
    assert (status, out) == (6, "")
    assert "serves no HTTP" in errors
