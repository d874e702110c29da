"""The examples of docs/graphpipe.md work as shown."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farm.protocols.graphpipe.tensors import TypeCode
from tests.support.dispatcher_farm import LIMIT_S, Served, farm_of

PAGE = (Path(__file__).parents[2] / "docs" / "graphpipe.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = "http://127.0.0.1:4242"


served = farm_of(PYTHON[0], options="--unix farm.sock")


@pytest.fixture(scope="module")
def url(served: Served) -> str:
    return served.connection.url


@pytest.mark.parametrize("which", [0, 1])
def test_the_lines_for_curl(url: str, served: Served, which: int) -> None:
    lines = re.findall(r"`(curl .*?)`", PAGE)
    assert len(lines) == 2
    command = shlex.split(lines[which].replace(ADDRESS, url))
    done = subprocess.run(
        [command[0], "-sS", "--fail", *command[1:]],
        cwd=served.folder.parent,
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert json.loads(done.stdout)["Inputs"][0]["Shape"] == [-1, 3]


def test_the_lines_for_the_published_client(url: str) -> None:
    command = [sys.executable, "-c", PYTHON[1].replace(ADDRESS, url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert re.findall(r"\d+", done.stdout) == ["2", "4", "6", "8", "10", "12", "3"]


def test_the_lines_for_a_running_server(url: str) -> None:
    shown = PYTHON[2].replace("http://host:9000", f"{url}/graphpipe/Waves")
    found: dict[str, Any] = {}
    exec(shown.replace("in:0", "x").replace("out:0", "height"), found)
    assert (found["net"].name, found["net"].max_batch) == ("Waves", 64)
    assert len(PYTHON) == 3


def test_every_code_is_listed() -> None:
    listed = re.findall(r"^\| (\d+) \| ", PAGE, re.MULTILINE)
    assert [int(code) for code in listed] == list(TypeCode)
